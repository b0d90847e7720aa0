"""`kvlake demo`: run it, print its figures, leave its report."""

import json
from pathlib import Path
from typing import Any

import click

from kvlake.base.errors import ConfigError
from kvlake.base.units import parse_bytes
from kvlake.cli.demo.summary import print_files, print_summary
from kvlake.cli.places import cache_dir
from kvlake.cli.tables import print_json


class Bytes(click.ParamType[int]):
    """A size as people write it."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


@click.command
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="build/demo",
    show_default=True,
    help="Folder for the report and the store.",
)
@click.option("--sessions", type=click.IntRange(1), default=12, show_default=True, help="Conversations to hold.")
@click.option(
    "--memory",
    "memory_bytes",
    type=Bytes(),
    default="384 MiB",
    show_default=True,
    help="Capacity of the memory tier; 12 sessions need about four times as much.",
)
@click.option(
    "--tokens",
    "typical_tokens",
    type=click.IntRange(64, 3600),
    default=1800,
    show_default=True,
    help="Tokens of a typical text.",
)
@click.option("--seed", default=0, show_default=True, help="Of the order in which sessions return.")
@click.option("--keep/--no-keep", default=True, show_default=True, help="Leave the store in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def demo(ctx: click.Context, /, keep: bool, as_json: bool, **chosen: Any) -> None:
    """Kill a model's process and see its conversations go on.

    A small model holds conversations over real texts, with a memory too small for all of them; then each goes on three
    ways: computed anew, from memory, and from disk after `kill -9`. The first run converts the model (half a minute); a
    run takes about three minutes on two cores. The exit code is 1 when an answer differs or the disk saved no time.
    """  # fmt: skip
    from kvlake.cli import smollm

    # Before the imports, which take seconds: without a model there is nothing to import them for.
    smollm.find_weights()
    try:
        from kvlake.cli.demo import report, results, run
        from kvlake.cli.demo.progress import progress_for_terminal
    except ImportError as error:
        raise ConfigError(f"the demo needs a package that is not installed ({error}); {smollm.CURE}") from error
    settings = run.DemoSettings(cache_dir=cache_dir(), **chosen)
    course = run.run(settings, progress_for_terminal())
    found = results.build_report(settings, course)
    write(settings.out / "report.json", json.dumps(found, indent=1))
    write(settings.out / "report.html", report.render(found))
    # The report is written first: whatever goes wrong from here on, the figures are there.
    if not keep:
        run.clear_store(settings.store)
    if as_json:
        print_json(found)
    else:
        print_summary(found)
        print_files(settings.out, keep=keep)
    wrong = results.complaints(found)
    for complaint in wrong:
        click.echo(f"Error: {complaint}", err=True)
    if wrong:
        ctx.exit(1)


def write(path: Path, text: str) -> None:
    """All of it or nothing: a reader never meets half a report."""
    draft = path.with_suffix(path.suffix + ".new")
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
