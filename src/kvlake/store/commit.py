"""Making durable what the store holds: first the tiers' blocks, then the log of the sessions that name them."""

import logging
import threading
from collections.abc import Callable

from kvlake.store.core import Core
from kvlake.store.lanes import Lanes
from kvlake.store.sessionlog import SessionLog

log = logging.getLogger(__name__)


class Commit:
    """Call it to commit. The log's I/O runs on a thread of its own, one write after the other, so that a disk that
    hangs holds nobody up for longer than `io_timeout_s`. Thread-safe.
    """

    def __init__(self, core: Core, session_log: SessionLog | None) -> None:
        self._core, self._log = core, session_log
        self._lane = Lanes(1, "kvlake-sessions")
        self._lock = threading.Lock()
        """Held by the commit under way."""
        self._closed = False  # of the lane alone: no write comes after the close

    def __call__(self) -> bool:
        """Make everything durable that was there before the call; False when that failed or took too long."""
        timeout_s = self._core.options.io_timeout_s
        if not self._lock.acquire(timeout=min(2 * timeout_s, threading.TIMEOUT_MAX)):
            return False
        try:
            synced = [guard.sync() for guard in self._core.tiers]
            session_log = self._log
            if session_log is None:
                return all(synced)
            return self._within(timeout_s, lambda: self._write(session_log)) and all(synced)
        finally:
            self._lock.release()

    def close(self, timeout_s: float) -> None:
        """Close the log after its last write; one that hangs is left open."""
        session_log = self._log
        if session_log is not None:
            self._within(timeout_s, lambda: self._shut(session_log))
        self._lane.close()

    def _within(self, timeout_s: float, call: Callable[[], bool]) -> bool:
        future = self._lane.submit(call)
        try:
            return future.result(timeout_s)
        except OSError as error:  # TimeoutError is one
            future.cancel()
            self._failed(error)
            return False

    def _shut(self, session_log: SessionLog) -> bool:
        self._closed = True
        session_log.close()
        return True

    def _write(self, session_log: SessionLog) -> bool:
        """Write what has changed of the sessions. On the lane, so that no two writes meet."""
        core = self._core
        if self._closed:
            return False
        with core.lock:
            draft = session_log.draft(core.sessions)
        if draft is None:
            return True
        try:
            session_log.write(draft)
        except OSError as error:
            with core.lock:
                draft.restore(core.sessions)
            self._failed(error)
            return False
        return True

    def _failed(self, error: OSError) -> None:
        log.warning("the session log could not be written: %s", error or "no answer in time")
        self._core.count("session_log_errors")
