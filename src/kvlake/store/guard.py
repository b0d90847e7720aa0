"""A tier behind a breaker: whatever goes wrong in it comes out as an outcome, is counted, and stops being asked for a
while.
"""

import errno
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kvlake.base.clock import Clock
from kvlake.keys.block import BlockKey
from kvlake.store.lanes import Lanes
from kvlake.tiers.tier import Block, Durable, Get, Put, Read, Tier, Trimmable, Usage, Viewable

log = logging.getLogger(__name__)

_FAILURES_TO_OPEN = 5
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 1.0, 60.0
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
        self._closed_again_at = 0.0  # monotonic; guarded by _lock

    @property
    def is_open(self) -> bool:
        """Whether calls are to be refused now."""
        with self._lock:
            return self._backoff_s > 0 and self._clock.monotonic() < self._closed_again_at

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
                self._closed_again_at = self._clock.monotonic() + self._backoff_s


class Guard:
    """One tier as the store sees it: it never raises for a fault of the medium, and never takes longer than it may.

    A call with a deadline runs on a daemon thread. One that misses it is an error to the caller; should it end after
    all, what it wrote is judged by its checksum like everything else.
    """

    def __init__(self, tier: Tier, clock: Clock, timeout_s: float) -> None:
        self.tier = tier
        self.breaker = Breaker(clock)
        self._timeout_s = timeout_s
        self._lanes = Lanes(_LANES, f"kvlake-{tier.name}")
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # guarded by _lock

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
        if not blocks or self._refuses(len(blocks)):
            return failed
        outcomes = self._call("put", lambda: self.tier.put(blocks), failed, self._timeout_s)
        self._judge(Put.ERROR in outcomes)
        return outcomes

    def get(self, reads: Sequence[Read], timeout_s: float) -> list[Get]:
        failed = [Get.ERROR] * len(reads)
        if not reads or self._refuses(len(reads)):
            return failed
        try:
            outcomes = self._call("get", lambda: self.tier.get(reads), failed, min(timeout_s, self._timeout_s))
        except TimeoutError:
            outcomes = [Get.TIMEOUT] * len(reads)
        self._judge(Get.ERROR in outcomes or Get.TIMEOUT in outcomes)
        return outcomes

    def remove(self, keys: Sequence[BlockKey], *, wipe: bool = False) -> bool:
        """False where the removal, or the wiping, could not be made sure of."""
        if not keys:
            return True
        freed = self._call("remove", lambda: self.tier.remove(keys, wipe=wipe), -1, self._timeout_s)
        return freed >= 0

    def view(self, key: BlockKey) -> memoryview | None:
        return self.tier.view(key) if isinstance(self.tier, Viewable) else None

    def sync(self) -> bool:
        """False where a durable tier could not make its blocks durable."""
        tier = self.tier
        if not isinstance(tier, Durable):
            return True

        def sync() -> bool:
            tier.sync()
            return True

        return self._call("sync", sync, False, self._timeout_s)

    def trim(self) -> None:
        if isinstance(self.tier, Trimmable):
            self.tier.trim()

    def close(self) -> None:
        """Close the tier, unless it hangs."""
        self._call("close", self.tier.close, None, self._timeout_s)
        self._lanes.close()

    def _call(self, what: str, call: Callable[[], T], failed: T, timeout_s: float) -> T:
        """Run a call of the tier; `failed` where it fails or takes too long (a get then raises TimeoutError)."""
        try:
            return call() if timeout_s == math.inf else self._lanes.submit(call).result(timeout_s)
        except OSError as error:  # TimeoutError is one
            if isinstance(error, TimeoutError) and error.errno is None:
                self._count("timeouts")
                error = TimeoutError(errno.ETIMEDOUT, f"no answer in {timeout_s:g} s")
            log.warning("%s failed in the %s tier: %s", what, self.name, error)
            self.breaker.fail()
            if what == "get" and isinstance(error, TimeoutError):
                raise error from None
            return failed

    def _refuses(self, blocks: int) -> bool:
        """Whether the breaker is open; then `blocks` are counted as not asked for."""
        refuses = self.breaker.is_open
        if refuses:
            self._count("refused_while_broken", blocks)
        return refuses

    def _judge(self, failed: bool) -> None:
        if failed:
            self._count("errors")
            self.breaker.fail()
        else:
            self.breaker.succeed()

    def _count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self._counts[what] += times
