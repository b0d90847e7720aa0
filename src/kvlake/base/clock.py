"""Time comes in through the door, so that a test can hold it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of time: one that people and files share, one that never steps back."""

    def wall(self) -> float:
        """Unix time in seconds; survives restarts, so that a TTL kept on disk means the same later."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow; for deadlines and back-off within this process."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
