"""What is shown while the demo works: bars on a terminal that rich can draw on, one line per stage elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Protocol

import click

from kvlake.base.units import format_seconds

Advance = Callable[[], None]


class Progress(Protocol):
    """Tells a person how far the work is."""

    def note(self, text: str) -> None:
        """Say one thing."""
        ...

    def stage(self, text: str, steps: int) -> AbstractContextManager[Advance]:
        """A stage of so many steps; what the `with` block gets is called after each."""
        ...


class Lines:
    """One line per stage, when it is done."""

    def note(self, text: str) -> None:
        click.echo(text, err=True)

    @contextmanager
    def stage(self, text: str, steps: int) -> Iterator[Advance]:
        began_s = time.monotonic()
        yield lambda: None
        click.echo(f"{text:<56} {format_seconds(time.monotonic() - began_s)}", err=True)


class Bars:
    """A bar per stage, which stays when it is done."""

    def __init__(self) -> None:
        # Part of the demo's extra, not of the base install.
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    @contextmanager
    def stage(self, text: str, steps: int) -> Iterator[Advance]:
        from rich import progress

        # Stages stand under each other, so their names take the same room.
        columns: tuple[progress.ProgressColumn, ...] = (
            progress.TextColumn(f"{text:<56}", markup=False),
            progress.BarColumn(24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        with progress.Progress(*columns, console=self._console) as bars:
            yield partial(bars.advance, bars.add_task(text, total=steps))


def progress_for_terminal() -> Progress:
    """Bars where stderr is a terminal and rich is installed."""
    if not sys.stderr.isatty():
        return Lines()
    try:
        return Bars()
    except ImportError:
        return Lines()
