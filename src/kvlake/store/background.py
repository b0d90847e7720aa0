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

_RETRY_S = 5.0
"""Time between attempts to copy down what a slower tier would not take."""


class Background:
    """The background thread of one store."""

    def __init__(self, core: Core, moves: Moves, commit: Callable[[], bool], sweep: Callable[[], None]) -> None:
        self._core, self._moves, self._commit, self._sweep = core, moves, commit, sweep
        self._wake = threading.Condition()
        self._queue: deque[list[BlockKey]] = deque()  # guarded by _wake
        self._queued = self._done = 0  # batches ever; guarded by _wake
        self._uncommitted = False  # guarded by _wake
        self._closing = False  # guarded by _wake
        self._next_commit = self._next_sweep = self._next_retry = 0.0  # monotonic; of the thread alone
        self._thread = threading.Thread(target=self._run, name="kvlake-background", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def demote_soon(self, keys: Sequence[BlockKey]) -> None:
        """Have blocks that were just put copied down and committed."""
        with self._wake:
            if keys:
                self._queue.append(list(keys))
                self._queued += 1
            self._uncommitted = True
            self._wake.notify_all()

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until everything queued before has been copied down; False when the time ran out.

        On the background thread itself, where a sweep may come to wait, there is nothing to wait for: also False.
        """
        if threading.current_thread() is self._thread:
            return False
        with self._wake:
            goal = self._queued
            self._wake.wait_for(lambda: self._done >= goal or self._closing, timeout_s)
            return self._done >= goal

    def catch_up(self, timeout_s: float | None) -> bool:
        """Drain, with another try of what a slower tier would not take before; False when it still will not."""
        self.demote_soon(self._stuck())
        return self.drain(timeout_s) and not self._core.stuck

    def stop(self, patience_s: float) -> bool:
        """Copy down what is left for as long as that gets on, and end the thread; False where a tier hangs.

        One that does not move for `patience_s` is not waited for.
        """
        if threading.current_thread() is self._thread:
            self._closing = True
            return True
        self.demote_soon(self._stuck())
        before = self._copied()
        while not (drained := self.drain(patience_s)) and (copied := self._copied()) != before:
            before = copied
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if drained and self._thread.is_alive():
            self._thread.join(patience_s)
        return drained

    def tell(self, callback: Callable[[str], None], session_id: str) -> None:
        """Call into the engine's code, whose faults are not the store's."""
        try:
            callback(session_id)
        except Exception:
            log.exception("an on_idle callback failed for session %r", session_id)
            self._core.count("callback_errors")

    def _run(self) -> None:
        while (keys := self._next()) is not None:
            try:
                self._work(keys)
            except Exception:
                # The outermost loop: a fault here costs misses, never the thread.
                log.exception("background work of the store failed")
                self._core.count("background_errors")
            finally:
                with self._wake:
                    self._done += bool(keys)
                    self._wake.notify_all()

    def _next(self) -> list[BlockKey] | None:
        """The next batch, empty when it is merely time to look around; None when the store closes."""
        with self._wake:
            if not self._queue and not self._closing:
                self._wake.wait(self._core.options.commit_interval_s if self._uncommitted else _SWEEP_S)
            if self._closing:
                return None
            return self._queue.popleft() if self._queue else []

    def _work(self, keys: list[BlockKey]) -> None:
        clock = self._core.clock
        if keys:
            self._moves.demote(keys)
        for position in range(len(self._core.tiers)):
            self._moves.relieve(position)
        if self._uncommitted and clock.monotonic() >= self._next_commit:
            self._next_commit = clock.monotonic() + self._core.options.commit_interval_s
            self._commit_now()
        if clock.monotonic() >= self._next_retry:
            self._next_retry = clock.monotonic() + _RETRY_S
            self._moves.demote(self._stuck())
        if clock.monotonic() >= self._next_sweep:
            self._next_sweep = clock.monotonic() + _SWEEP_S
            self._sweep()

    def _stuck(self) -> list[BlockKey]:
        """What a slower tier would not take, in the order of its chains."""
        core = self._core
        with core.lock:
            found = [entry for key in core.stuck if (entry := core.index.get(key)) is not None]
            return [entry.key for entry in sorted(found, key=lambda entry: entry.depth)]

    def _copied(self) -> int:
        with self._core.lock:
            return sum(count for what, count in self._core.counts.items() if what.startswith("copied_to"))

    def _commit_now(self) -> None:
        with self._wake:
            self._uncommitted = False  # what is put from here on needs another commit
        done = False
        try:
            done = self._commit()
        finally:
            if not done:
                self.demote_soon([])
