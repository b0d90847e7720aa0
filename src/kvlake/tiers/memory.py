"""The memory tier: one arena of host memory, taken at the start, in which blocks lie in extents of pages."""

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvlake.base.clock import Clock, SystemClock
from kvlake.base.errors import CapacityError
from kvlake.base.units import format_bytes
from kvlake.keys.block import BlockKey
from kvlake.tiers.extents import Extents
from kvlake.tiers.tier import (
    PAGE_BYTES,
    Block,
    CheckReport,
    Get,
    Problem,
    Put,
    Read,
    Record,
    Usage,
    expect_size,
    pages_of,
)


class MemoryTier:
    """Blocks in one preallocated arena.

    `prefault` touches every page at start, so that no put ever waits for the kernel to find a page, and keeps them for
    the process's life. Without it pages are taken at first use and `trim` gives the free ones back, so that the process
    shrinks when its sessions go idle. `shared` is the path of a file to map (on a RAM file system such as /dev/shm) so
    that other processes can map the same arena; it is created private to the user and removed at close.
    """

    name = "memory"

    def __init__(
        self,
        capacity_bytes: int,
        *,
        prefault: bool = False,
        shared: str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        if capacity_bytes < PAGE_BYTES:
            raise CapacityError(f"a memory tier needs at least {PAGE_BYTES} bytes, not {capacity_bytes}")
        self._pages = capacity_bytes // PAGE_BYTES
        self._prefault = prefault
        self._shared = Path(shared) if shared is not None else None
        self._arena = _map_arena(self._pages * PAGE_BYTES, self._shared)
        self._bytes = memoryview(self._arena)
        if prefault:
            for page in range(self._pages):
                self._bytes[page * PAGE_BYTES] = 0
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._free = Extents(self._pages)  # guarded by _lock
        self._held: dict[BlockKey, tuple[int, Record]] = {}  # first page and record; guarded by _lock

    def __repr__(self) -> str:
        use = self.usage()
        return f"<MemoryTier {use.blocks} blocks, {format_bytes(use.used_bytes)} of {format_bytes(use.capacity_bytes)}>"

    def usage(self) -> Usage:
        used = (self._pages - self._free.free_pages) * PAGE_BYTES
        return Usage(capacity_bytes=self._pages * PAGE_BYTES, used_bytes=used, blocks=len(self._held))

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        created_s = self._clock.wall()
        with self._lock:
            return [self._put(block, created_s) for block in blocks]

    def get(self, reads: Sequence[Read]) -> list[Get]:
        outcomes = []
        for read in reads:
            # One lock hold per block: a copy of a block is as long as anybody waits.
            with self._lock:
                held = self._held.get(read.key)
                if held is None:
                    outcomes.append(Get.MISS)
                    continue
                page, record = held
                expect_size(read, record.nbytes)
                start = page * PAGE_BYTES
                read.into.cast("B")[:] = self._bytes[start : start + record.nbytes]
                outcomes.append(Get.HIT)
        return outcomes

    def view(self, key: BlockKey) -> memoryview | None:
        held = self._held.get(key)
        if held is None:
            return None
        start = held[0] * PAGE_BYTES
        return self._bytes[start : start + held[1].nbytes]

    def remove(self, keys: Sequence[BlockKey], *, wipe: bool = False) -> int:
        freed = 0
        with self._lock:
            for key in keys:
                held = self._held.pop(key, None)
                if held is None:
                    continue
                page, record = held
                pages = pages_of(record.nbytes)
                if wipe:
                    self._bytes[page * PAGE_BYTES : (page + pages) * PAGE_BYTES] = bytes(pages * PAGE_BYTES)
                self._free.free(page, pages)
                freed += pages * PAGE_BYTES
        return freed

    def trim(self) -> None:
        """Give free pages back to the operating system; nothing to do for a prefaulted arena, which keeps them."""
        if self._prefault:
            return
        # A shared mapping keeps its pages in the file: only REMOVE punches them out.
        advice = mmap.MADV_DONTNEED if self._shared is None else mmap.MADV_REMOVE
        with self._lock:
            for page, pages in self._free.extents():
                self._arena.madvise(advice, page * PAGE_BYTES, pages * PAGE_BYTES)

    def records(self) -> Iterator[Record]:
        with self._lock:
            return iter([record for _, record in self._held.values()])

    def check(self, *, fix: bool = False) -> CheckReport:
        """Audit the accounting: extents held and free must cover the arena exactly once."""
        with self._lock:
            used = [(page, pages_of(record.nbytes)) for page, record in self._held.values()]
            free, refused = Extents.around([(0, self._pages)], used)
            problems = [Problem(None, f"two blocks overlap at page {page}") for page in refused]
            if free.extents() != self._free.extents():
                problems.append(Problem(None, f"{self._free!r} but the blocks leave {free!r}"))
            fixed = 0
            if fix and problems:
                self._held = {key: held for key, held in self._held.items() if held[0] not in refused}
                kept = [(page, pages_of(record.nbytes)) for page, record in self._held.values()]
                self._free, _ = Extents.around([(0, self._pages)], kept)
                fixed = len(problems)
            total = sum(record.nbytes for _, record in self._held.values())
            return CheckReport(
                tier=self.name, blocks=len(self._held), nbytes=total, problems=tuple(problems), fixed=fixed
            )

    def close(self) -> None:
        with self._lock:
            self._held.clear()
            self._free = Extents()
            self._bytes.release()
            if self._shared is not None:
                self._shared.unlink(missing_ok=True)
        try:
            self._arena.close()
        except BufferError:
            # Somebody still looks at a block in place; the mapping goes with the last of their views.
            return

    def _put(self, block: Block, created_s: float) -> Put:
        if block.key in self._held:
            return Put.PRESENT
        data = memoryview(block.data).cast("B")
        pages = pages_of(data.nbytes)
        if pages > self._pages or not pages:
            return Put.REFUSED
        page = self._free.allocate(pages)
        if page is None:
            return Put.FULL
        start = page * PAGE_BYTES
        self._bytes[start : start + data.nbytes] = data
        self._held[block.key] = (page, block.record(created_s))
        return Put.STORED


def _map_arena(nbytes: int, shared: Path | None) -> mmap.mmap:
    if shared is None:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with open(shared, "xb", opener=_private) as file:
        file.truncate(nbytes)
    with shared.open("r+b") as file:
        return mmap.mmap(file.fileno(), nbytes)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
