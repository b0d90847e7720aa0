"""One vectored read or write of a file: the unit that a disk queue runs."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol


class Job(NamedTuple):
    """Move `nbytes` between `offset` of the file and the buffers, in order."""

    fd: int
    offset: int
    buffers: list[memoryview]
    """Writable also for a write (their address is taken that way); with O_DIRECT page-aligned, whole pages each."""
    nbytes: int
    write: bool
    tag: Any
    """The caller's own; comes back with the result."""
    holds: list[ctypes.c_char] | None = None
    """The buffers' exports (`staging.hold`), where the maker of the job has them: taking one costs a microsecond."""
    judge: Callable[[], object] | None = None
    """What a queue of threads calls on the thread that moved all the bytes, while they are in that core's cache."""


class Queue(Protocol):
    """Runs jobs, several at a time. Used by one thread at a time."""

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, int]]:
        """Yield each job with the bytes it moved, or with -errno, in any order."""
        ...

    def close(self) -> None:
        """Give back the kernel's part."""
        ...
