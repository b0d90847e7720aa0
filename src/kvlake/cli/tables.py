"""What commands print: rows -> a table for people; values -> JSON for programs."""

import base64
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click
from tabulate import tabulate

from kvlake.base.units import format_seconds


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; what is not text stands to the right."""
    listed = [list(row) for row in rows]
    # As text, or tabulate would read a session named "007" as a number.
    right = [all(_is_figure(row[at]) for row in listed) for at in range(len(header))]
    align = ["right" if each else "left" for each in right]
    click.echo(tabulate(listed, header, tablefmt="simple", disable_numparse=True, colalign=align if listed else None))


def print_json(value: Any) -> None:
    """JSON, with dataclasses as objects and bytes in hexadecimal."""
    click.echo(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def count(number: int, noun: str) -> str:
    """1, "block" -> "1 block"; 1234, "block" -> "1,234 blocks"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ago(unix_s: float) -> str:
    """A time in the past -> "12.3 s ago"."""
    return f"{format_seconds(max(0.0, time.time() - unix_s))} ago"


def _is_figure(cell: object) -> bool:
    return isinstance(cell, int | float) or (isinstance(cell, str) and cell[:1].isdigit() and not cell.isidentifier())


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.hex()
    return base64.b64encode(bytes(value)).decode()
