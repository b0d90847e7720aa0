"""What happens without being asked: blocks written through, commits, relief above the watermark, idle sessions, expiry.

One daemon thread. It sleeps until there is work, or until the next moment at which there may be.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from kvlake.keys.block import BlockKey
from kvlake.store.core import Core
from kvlake.store.moves import Moves

log = logging.getLogger(__name__)

_SWEEP_S = 1.0
"""Time between looks for idle sessions and expired blocks."""


class Background:
    """The background thread of one store."""

    def __init__(self, core: Core, moves: Moves, commit: Callable[[], bool], sweep: Callable[[], None]) -> None:
        self._core, self._moves, self._commit, self._sweep = core, moves, commit, sweep
        self._wake = threading.Condition()
        self._queue: deque[list[BlockKey]] = deque()  # guarded by _wake
        self._working = False  # guarded by _wake
        self._uncommitted = False  # guarded by _wake
        self._closing = False  # guarded by _wake
        self._thread = threading.Thread(target=self._run, name="kvlake-background", daemon=True)
        self._thread.start()

    def demote_soon(self, keys: Sequence[BlockKey]) -> None:
        """Have blocks that were just put copied down and committed."""
        with self._wake:
            if keys:
                self._queue.append(list(keys))
            self._uncommitted = True
            self._wake.notify_all()

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until everything queued before has been copied down; False when the time ran out."""
        if threading.current_thread() is self._thread:
            return True
        with self._wake:
            return self._wake.wait_for(lambda: not self._queue and not self._working, timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Drain, then end the thread."""
        self.drain(timeout_s)
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        next_sweep = next_commit = 0.0
        clock, options = self._core.clock, self._core.options
        while True:
            with self._wake:
                if not self._queue and not self._closing:
                    self._wake.wait(options.commit_interval_s if self._uncommitted else _SWEEP_S)
                if self._closing:
                    return
                keys = self._queue.popleft() if self._queue else []
                self._working = True
                commit_due = self._uncommitted and clock.monotonic() >= next_commit
                if commit_due:
                    self._uncommitted = False  # what is put from here on needs another commit
            try:
                self._step(keys)
                if commit_due:
                    next_commit = clock.monotonic() + options.commit_interval_s
                    if not self._commit():
                        self.demote_soon([])
                if clock.monotonic() >= next_sweep:
                    next_sweep = clock.monotonic() + _SWEEP_S
                    self._sweep()
            except Exception:
                # The outermost loop: a fault here costs misses, never the thread.
                log.exception("background work of the store failed")
                self._core.count("background_errors")
            finally:
                with self._wake:
                    self._working = False
                    self._wake.notify_all()

    def _step(self, keys: list[BlockKey]) -> None:
        if keys:
            self._moves.demote(keys)
        for position in range(len(self._core.tiers)):
            self._moves.relieve(position)
