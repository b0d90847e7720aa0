"""Writes docs/reference.md from the code: commands, settings, errors. `make fix` runs it."""

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path

import click

import kvlake.base.errors
import kvlake.config
from kvlake.base.units import format_bytes, format_seconds
from kvlake.cli.main import main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
WIDTH = 100


def commands() -> Iterator[click.Context]:
    """Every command with its path, a group before its members."""
    # With the group's own settings: a command keeps the help option of whoever asks for it first.
    todo = [click.Context(main, info_name="kvlake", **main.context_settings | {"terminal_width": WIDTH})]
    while todo:
        context = todo.pop()
        yield context
        if isinstance(context.command, click.Group):
            names = reversed(context.command.list_commands(context))
            members = ((name, context.command.get_command(context, name)) for name in names)
            todo += [click.Context(member, context, name) for name, member in members if not member.hidden]


def settings() -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(kvlake.config.Settings)


def errors() -> list[type[Exception]]:
    root = kvlake.base.errors.KvlakeError
    return [kind for kind in vars(kvlake.base.errors).values() if inspect.isclass(kind) and issubclass(kind, root)]


def render() -> str:
    parts = [
        "# Reference",
        "Written by `tools/reference.py` from the code; do not edit.",
        "## Commands",
        *(f"### `{each.command_path}`\n\n```text\n{each.command.get_help(each)}\n```" for each in commands()),
        "## Settings",
        _table("setting", "type", "default", "what it does", rows=map(_setting, settings())),
        "## Errors",
        _table("error", "also a", "when", rows=map(_error, errors())),
    ]
    return "\n\n".join(parts) + "\n"


def _setting(field: dataclasses.Field) -> tuple[str, ...]:
    kind = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
    return f"`{field.name}`", f"`{kind}`", _default(field), field.metadata["help"]


def _default(field: dataclasses.Field) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if field.name.endswith("_bytes") and value:
        return f"`{format_bytes(value)}`"
    return f"`{format_seconds(value)}`" if field.name.endswith("_s") else f"`{value!r}`"


def _error(kind: type[Exception]) -> tuple[str, ...]:
    parents = ", ".join(f"`{parent.__name__}`" for parent in kind.__bases__)
    return f"`{kind.__name__}`", parents, inspect.getdoc(kind).partition("\n\n")[0].replace("\n", " ")


def _table(*header: str, rows) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
