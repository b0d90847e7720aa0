"""What commands print: rows -> a table for people; values -> JSON for programs."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click
from tabulate import tabulate

from kvlake.base.units import format_seconds


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; a column stands to the right where its header begins with `>`."""
    align = ["right" if name.startswith(">") else "left" for name in header]
    names = [name.removeprefix(">") for name in header]
    # No parsing of numbers: a session may be named "007".
    listed = [list(map(str, row)) for row in rows]
    click.echo(tabulate([names, *listed], "firstrow", disable_numparse=True, colalign=align))


def print_json(value: Any) -> None:
    """JSON, with dataclasses as objects and bytes in hexadecimal."""
    click.echo(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def count(number: int, noun: str) -> str:
    """1, "block" -> "1 block"; 1234, "block" -> "1,234 blocks"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ago(unix_s: float) -> str:
    """A time in the past -> "12.3 s ago"."""
    return f"{format_seconds(max(0.0, time.time() - unix_s))} ago"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")
