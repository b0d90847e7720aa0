"""Making durable what the store holds: first the tiers' blocks, then the log of the sessions that name them."""

import logging
import threading
from concurrent.futures import Future
from typing import TypeVar

from kvlake.store.core import Core
from kvlake.store.lanes import Lanes
from kvlake.store.sessionlog import SessionLog

log = logging.getLogger(__name__)

T = TypeVar("T")


class Commit:
    """Call it to commit. The log's I/O runs on a thread of its own, one write after the other, so that a disk that
    hangs holds nobody up for longer than `io_timeout_s`. Thread-safe.
    """

    def __init__(self, core: Core, session_log: SessionLog | None) -> None:
        self._core, self._log = core, session_log
        self._lane = Lanes(1, "kvlake-sessions")
        self._lock = threading.Lock()
        """Held by the commit under way."""
        self._closed = False  # guarded by _lock

    def __call__(self) -> bool:
        """Make everything durable that was there before the call; False when that failed or took too long."""
        timeout_s = self._core.options.io_timeout_s
        if not self._lock.acquire(timeout=min(2 * timeout_s, threading.TIMEOUT_MAX)):
            return False
        try:
            if self._closed:
                return False
            synced = [guard.sync() for guard in self._core.tiers]
            if self._log is None:
                return all(synced)
            return bool(self._within(timeout_s, self._lane.submit(self._write))) and all(synced)
        finally:
            self._lock.release()

    def close(self, timeout_s: float) -> None:
        """Close the log after its last write; one that hangs is left open."""
        with self._lock:
            self._closed = True
        if self._log is not None:
            self._within(timeout_s, self._lane.submit(self._log.close))
        self._lane.close()

    def _within(self, timeout_s: float, future: "Future[T]") -> T | None:
        try:
            return future.result(timeout_s)
        except OSError as error:  # TimeoutError is one
            future.cancel()
            self._failed(error)
            return None

    def _write(self) -> bool:
        """Write what has changed of the sessions. On the lane, so that no two writes meet."""
        core = self._core
        assert self._log is not None
        with core.lock:
            draft = self._log.draft(core.sessions)
        if draft is None:
            return True
        try:
            self._log.write(draft)
        except OSError as error:
            with core.lock:
                draft.restore(core.sessions)
            self._failed(error)
            return False
        return True

    def _failed(self, error: OSError) -> None:
        log.warning("the session log could not be written: %s", error or "no answer in time")
        self._core.count("session_log_errors")
