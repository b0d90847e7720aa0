"""A tier behind a breaker: whatever goes wrong in it comes out as an outcome, is counted, and stops being asked for a
while.
"""

import errno
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from kvlake.base.clock import Clock
from kvlake.base.errors import KvlakeError
from kvlake.keys.block import BlockKey
from kvlake.store.lanes import Lanes
from kvlake.tiers.tier import Block, Durable, Get, Put, Read, Tier, Trimmable, Usage, Viewable

log = logging.getLogger(__name__)

_FAILURES_TO_OPEN = 5
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 1.0, 60.0
_PATIENCE_S = 0.1
"""A get with a shorter deadline than this says nothing of the tier's health by missing it."""

_LANES = 8

T = TypeVar("T")


class Breaker:
    """Closed while things go well; open after some failures in a row; after a back-off one trial decides.

    Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row; guarded by _lock
        self._backoff_s = 0.0  # guarded by _lock
        self._trial_at = 0.0  # monotonic; guarded by _lock

    @property
    def is_open(self) -> bool:
        """Whether the tier is given up for now: nothing has gone well since the failures that opened the breaker."""
        return self._backoff_s > 0

    def admits(self) -> bool:
        """Whether a call may be made now. After the back-off that is one call: the others wait for how it ends."""
        with self._lock:
            if not self._backoff_s:
                return True
            now_s = self._clock.monotonic()
            if now_s < self._trial_at:
                return False
            self._trial_at = now_s + self._backoff_s
            return True

    def succeed(self) -> None:
        """A call went well: all is forgotten."""
        with self._lock:
            self._failures, self._backoff_s = 0, 0.0

    def fail(self) -> None:
        """A call failed or took too long."""
        with self._lock:
            self._failures += 1
            if self._failures >= _FAILURES_TO_OPEN:
                self._backoff_s = min(max(_BACKOFF_FIRST_S, 2 * self._backoff_s), _BACKOFF_MAX_S)
                self._trial_at = self._clock.monotonic() + self._backoff_s


class Guard:
    """One tier as the store sees it: it never raises for a fault of the medium, and never takes longer than it may.

    A call with a deadline runs on a daemon thread. A get that misses it may still end, into buffers that nobody uses
    any more. A put that does has read its payload when that was no longer promised to stand: what it stores is
    removed again, and until then the tier is not asked to put these blocks.
    """

    def __init__(self, tier: Tier, clock: Clock, timeout_s: float) -> None:
        self.tier = tier
        self.breaker = Breaker(clock)
        self._timeout_s = timeout_s
        self._lanes = Lanes(_LANES, f"kvlake-{tier.name}")
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._counts: Counter[str] = Counter()  # guarded by _lock
        self._under_way = 0  # calls; guarded by _lock
        self._late: Counter[BlockKey] = Counter()  # of puts and removals out of time, not ended; guarded by _lock
        self._closed = False  # guarded by _lock

    @property
    def name(self) -> str:
        return self.tier.name

    def usage(self) -> Usage:
        return self.tier.usage()

    def counters(self) -> dict[str, int]:
        """What happened here, each as `<tier>_<what>`; the tier's own counts among them."""
        own: Mapping[str, int] = getattr(self.tier, "counters", {})
        with self._lock:
            return {f"{self.name}_{what}": count for what, count in (self._counts + Counter(own)).items()}

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        failed = [Put.ERROR] * len(blocks)
        keys = [block.key for block in blocks]
        if not blocks or self._refuses(len(blocks), keys):
            return failed

        def take_back(outcomes: list[Put]) -> None:
            stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Put.STORED]
            self.tier.remove(stored, wipe=True)

        try:
            outcomes: list[Put] = self._call(
                lambda: self.tier.put(blocks), self._timeout_s, self._end_late(keys, take_back)
            )
        except OSError as error:
            self._fail("put", error)
            return failed
        self._judge(Put.ERROR in outcomes)
        return outcomes

    def get(self, reads: Sequence[Read], timeout_s: float) -> list[Get]:
        """With `timeout_s` math.inf it waits on the caller's own thread, as it always does for a tier in memory."""
        if not reads or self._refuses(len(reads)):
            return [Get.ERROR] * len(reads)
        limit_s = timeout_s if self._timeout_s < math.inf else math.inf
        try:
            outcomes = self._call(lambda: self.tier.get(reads), limit_s)
        except TimeoutError as error:
            self._fail("get", error, blame=limit_s >= _PATIENCE_S)
            return [Get.TIMEOUT] * len(reads)
        except OSError as error:
            self._fail("get", error)
            return [Get.ERROR] * len(reads)
        self._judge(Get.ERROR in outcomes)
        return outcomes

    def remove(self, keys: Sequence[BlockKey], *, wipe: bool = False) -> bool:
        """False where the removal, or the wiping, could not be made sure of."""
        if not keys:
            return True
        try:
            self._call(lambda: self.tier.remove(keys, wipe=wipe), self._timeout_s, self._end_late(keys))
        except OSError as error:
            self._fail("remove", error)
            return False
        with self._lock:
            return not any(key in self._late for key in keys)

    def view(self, key: BlockKey) -> memoryview | None:
        return self.tier.view(key) if isinstance(self.tier, Viewable) else None

    def sync(self) -> bool:
        """False where a durable tier could not make its blocks durable."""
        if not isinstance(self.tier, Durable):
            return True
        try:
            self._call(self.tier.sync, self._timeout_s)
        except OSError as error:
            self._fail("sync", error)
            return False
        return True

    def trim(self) -> None:
        if isinstance(self.tier, Trimmable):
            self.tier.trim()

    def close(self, timeout_s: float) -> None:
        """Close the tier once its calls have ended. One that hangs is left open: it may still be writing."""
        with self._quiet:
            was_closed, self._closed = self._closed, True
            quiet = self._quiet.wait_for(lambda: not self._under_way and not self._late, timeout_s)
        if not quiet:
            log.warning("the %s tier hangs and is left open until the process ends", self.name)
        elif not was_closed:
            done = self._lanes.submit(self.tier.close)
            try:
                error = done.exception(timeout_s)
            except TimeoutError as too_late:
                error = too_late
            if error is not None:
                log.warning("close failed in the %s tier: %r", self.name, error)
        self._lanes.close()

    def _call(self, call: Callable[[], T], timeout_s: float, late: "Callable[[Future[T]], None] | None" = None) -> T:
        """What a call of the tier returns. Raises OSError for all that goes wrong, but for a caller's mistake.

        A call that takes too long is a TimeoutError. It is cancelled if it had not begun, or handed to `late`.
        """
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, f"the {self.name} tier is closed")
            self._under_way += 1
        if timeout_s == math.inf:
            try:
                return call()
            finally:
                self._end()
        future = self._lanes.submit(call)
        future.add_done_callback(self._end)
        try:
            error = future.exception(timeout_s)
        except TimeoutError:
            if late is not None:
                late(future)
            else:
                future.cancel()
            raise TimeoutError(errno.ETIMEDOUT, f"no answer in {timeout_s:g} s") from None
        if error is None:
            return future.result()
        if isinstance(error, OSError | KvlakeError):
            raise error
        log.error("unexpected error in the %s tier", self.name, exc_info=error)
        raise OSError(errno.EIO, f"unexpected error: {error!r}") from error

    def _end(self, _: object = None) -> None:
        with self._quiet:
            self._under_way -= 1
            self._quiet.notify_all()

    def _end_late(
        self, keys: Sequence[BlockKey], undo: Callable[[Any], None] | None = None
    ) -> "Callable[[Future[Any]], None]":
        """What is to be done with a late call that concerns `keys`: nobody puts them until it has ended.

        One that can be undone is, or is cancelled if it had not begun; a removal is carried out however late.
        """

        def ended(future: "Future[Any]") -> None:
            try:
                if undo is not None and future.exception() is None:
                    undo(future.result())
            except OSError as error:
                self._fail("removal of late blocks", error)
            finally:
                with self._quiet:
                    self._late -= Counter(keys)
                    self._quiet.notify_all()

        def late(future: "Future[Any]") -> None:
            if undo is not None and future.cancel():
                return
            with self._lock:
                self._late += Counter(keys)
            future.add_done_callback(ended)

        return late

    def _refuses(self, blocks: int, keys: Sequence[BlockKey] = ()) -> bool:
        """Whether the tier is not to be asked now: the breaker is open, or an earlier call for a key has not ended."""
        with self._lock:
            late = bool(self._late) and any(key in self._late for key in keys)
        if late or not self.breaker.admits():
            self._count("refused_while_broken", blocks)
            return True
        return False

    def _judge(self, failed: bool) -> None:
        if failed:
            self._count("errors")
            self.breaker.fail()
        else:
            self.breaker.succeed()

    def _fail(self, what: str, error: OSError, *, blame: bool = True) -> None:
        log.warning("%s failed in the %s tier: %s", what, self.name, error)
        self._count("timeouts" if isinstance(error, TimeoutError) else "errors")
        if blame:
            self.breaker.fail()

    def _count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self._counts[what] += times
