"""The null tier: everything of a tier but the bytes.

For the replay, for sizing and for measuring the software alone.
"""

import threading
from collections.abc import Iterator, Sequence

from kvlake.base.clock import Clock, SystemClock
from kvlake.keys.block import BlockKey
from kvlake.tiers.tier import Block, CheckReport, Get, Put, Read, Record, Usage, expect_size


class NullTier:
    """Counts blocks and bytes against a capacity and keeps no payload: every block must be all zeros, and is so read
    back.

    A payload that is not zeros is refused, since a tier must never answer HIT with other bytes than were put.
    """

    name = "null"

    def __init__(self, capacity_bytes: int, *, clock: Clock | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._used_bytes = 0  # guarded by _lock
        self._held: dict[BlockKey, Record] = {}  # guarded by _lock

    def __repr__(self) -> str:
        return f"<NullTier {len(self._held)} blocks, {self._used_bytes} of {self._capacity_bytes} bytes>"

    def usage(self) -> Usage:
        return Usage(capacity_bytes=self._capacity_bytes, used_bytes=self._used_bytes, blocks=len(self._held))

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        created_s = self._clock.wall()
        with self._lock:
            return [self._put(block, created_s) for block in blocks]

    def get(self, reads: Sequence[Read]) -> list[Get]:
        outcomes = []
        for read in reads:
            record = self._held.get(read.key)
            if record is None:
                outcomes.append(Get.MISS)
                continue
            expect_size(read, record.nbytes)
            read.into.cast("B")[:] = bytes(record.nbytes)
            outcomes.append(Get.HIT)
        return outcomes

    def remove(self, keys: Sequence[BlockKey], *, wipe: bool = False) -> int:
        with self._lock:
            gone = [record for key in keys if (record := self._held.pop(key, None)) is not None]
            freed = sum(record.nbytes for record in gone)
            self._used_bytes -= freed
        return freed

    def records(self) -> Iterator[Record]:
        with self._lock:
            return iter(list(self._held.values()))

    def check(self, *, fix: bool = False) -> CheckReport:
        with self._lock:
            total = sum(record.nbytes for record in self._held.values())
            return CheckReport(tier=self.name, blocks=len(self._held), nbytes=total)

    def close(self) -> None:
        with self._lock:
            self._held.clear()
            self._used_bytes = 0

    def _put(self, block: Block, created_s: float) -> Put:
        if block.key in self._held:
            return Put.PRESENT
        data = memoryview(block.data).cast("B")
        if not data.nbytes or data.nbytes > self._capacity_bytes or bytes(data) != bytes(data.nbytes):
            return Put.REFUSED
        if self._used_bytes + data.nbytes > self._capacity_bytes:
            return Put.FULL
        self._used_bytes += data.nbytes
        self._held[block.key] = block.record(created_s)
        return Put.STORED
