"""Time in a test's hand."""

import threading


class FakeClock:
    """A clock that stands still until it is told to go on. Thread-safe; meets `kvlake.base.clock.Clock`."""

    def __init__(self, wall_s: float = 1_700_000_000.0, monotonic_s: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._wall_s, self._monotonic_s = wall_s, monotonic_s  # guarded by _lock

    def __repr__(self) -> str:
        return f"<FakeClock wall {self.wall():.3f}, monotonic {self.monotonic():.3f}>"

    def wall(self) -> float:
        with self._lock:
            return self._wall_s

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks. Raises ValueError for a negative time: `set_wall` steps back."""
        if seconds < 0:
            raise ValueError(f"time cannot pass backwards: {seconds}")
        with self._lock:
            self._wall_s += seconds
            self._monotonic_s += seconds

    def set_wall(self, wall_s: float) -> None:
        """Set the wall clock alone, as an operator or NTP does; it may go back."""
        with self._lock:
            self._wall_s = wall_s
