"""The disk tier: bounded, packed, checksummed, crash-proof, and the same after a restart as before it.

A put lays its blocks down in runs (one job each), then notes their records; `sync` makes the data durable, then the
journal. A get merges neighbours into one job and verifies every block before it says HIT. An error of the disk is an
outcome of the blocks concerned and is counted, never raised: only `sync` tells its caller.
"""

import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvlake.base.clock import Clock, SystemClock
from kvlake.base.units import format_bytes
from kvlake.keys.block import BlockKey
from kvlake.tiers.disk.audit import damaged, miscounts, report
from kvlake.tiers.disk.commits import Commits
from kvlake.tiers.disk.device import Device
from kvlake.tiers.disk.job import Job
from kvlake.tiers.disk.record import location_of, unpack_record
from kvlake.tiers.disk.recover import ADDED, REMOVED, DiskOptions, Opened, open_state
from kvlake.tiers.disk.segments import Segments
from kvlake.tiers.disk.staging import Staging
from kvlake.tiers.disk.transfer import Landing, Reader, Run, Wanted, Writer, run_pages, split_runs
from kvlake.tiers.tier import (
    PAGE_BYTES,
    Block,
    CheckReport,
    Get,
    Put,
    Read,
    Record,
    Usage,
    expect_size,
    pages_of,
)

log = logging.getLogger(__name__)


class DiskTier:
    """Blocks in packed segments of one directory, owned by one process at a time."""

    name = "disk"

    def __init__(self, state: Opened, device: Device, clock: Clock) -> None:
        self._state, self._device, self._clock = state, device, clock
        self._segments: Segments = state.segments
        self._commits = Commits(device, state.segments, state.journal)
        self._staging = Staging()
        self._lock = threading.Lock()
        self._index = state.index  # key -> packed record; guarded by _lock, as are runs and used_pages of _state
        self._writing: set[bytes] = set()  # guarded by _lock
        self._closed = False
        self._wiping = 0  # removals whose pages are being zeroed; guarded by _lock
        self.counters: Counter[str] = Counter(state.counters)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], options: DiskOptions | int, *, device: Device | None = None,
        clock: Clock | None = None,
    ) -> "DiskTier":  # fmt: skip
        """Open or create the store in the directory `path`; an int for `options` is the capacity in bytes.

        Raises StoreBusyError when another process has it, StoreFormatError when the directory holds something else,
        CapacityError when there is no room for the smallest store, OSError when the disk cannot be used at all.
        """
        if isinstance(options, int):
            options = DiskOptions(capacity_bytes=options)
        root = Path(path)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        device = device or Device(root)
        return cls(open_state(device, options), device, clock or SystemClock())

    def __repr__(self) -> str:
        use = self.usage()
        return f"<DiskTier {use.blocks} blocks, {format_bytes(use.used_bytes)} of {format_bytes(use.capacity_bytes)}>"

    @property
    def _read_only(self) -> bool:
        return self._state.lock is None

    @property
    def io_mode(self) -> str:
        """`direct-aio`, or the fallback in force: `direct-threads`, `buffered-threads`."""
        return self._device.io_mode

    @property
    def why_not_direct(self) -> str:
        """Why O_DIRECT with kernel aio is not in use; empty when it is."""
        return self._device.why_not_direct

    def usage(self) -> Usage:
        return Usage(
            capacity_bytes=self._segments.capacity_pages * PAGE_BYTES,
            used_bytes=self._state.used_pages * PAGE_BYTES,
            blocks=len(self._index),
        )

    def disk_bytes(self) -> int:
        """Bytes that segments and journal take up on the disk now."""
        return self._segments.disk_bytes() + self._commits.journal_bytes

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        outcomes = [Put.ERROR] * len(blocks)
        fresh = self._enter(blocks, outcomes)
        try:
            for job, moved in self._device.run(self._write_jobs(fresh, outcomes)):
                self._written(job, moved, outcomes)
        finally:
            with self._lock:
                self._writing.difference_update(block.key for _, block in fresh)
        return outcomes

    def get(self, reads: Sequence[Read]) -> list[Get]:
        outcomes = [Get.MISS] * len(reads)
        wanted = []
        for position, read in enumerate(reads):
            packed = self._index.get(read.key)
            if packed is not None:
                location = location_of(packed)
                expect_size(read, location.nbytes)
                wanted.append(Wanted(read.key, location, location.pages, position, read.into.cast("B")))
        wanted.sort(key=lambda item: item.location.page)
        with Reader(self._segments, self._staging) as reader:
            failed: list[Wanted] = []
            for job, moved in self._device.run(reader.jobs(wanted)):
                if moved == job.nbytes:
                    self._landed(job.tag, outcomes)
                else:
                    failed += [landed.wanted for landed in job.tag]
            # A bad spot fails the whole of a merged job: ask for each of its blocks alone.
            for job, moved in self._device.run(reader.job([item]) for item in failed):
                if moved == job.nbytes:
                    self._landed(job.tag, outcomes)
                else:
                    self._failed("read_errors", moved)
                    outcomes[job.tag[0].wanted.position] = Get.ERROR
        return outcomes

    def remove(self, keys: Sequence[BlockKey], *, wipe: bool = False) -> int:
        if wipe and self._state.lock is None:
            raise OSError(errno.EROFS, f"{self._device.root} is open read-only: its bytes cannot be erased")
        with self._lock:
            gone = [(key, packed) for key in keys if (packed := self._index.pop(key, None)) is not None]
            self._commits.note(REMOVED, b"".join(key for key, _ in gone))
            extents = [extent for _, packed in gone for extent in self._state.vacate(packed)]
            freed = sum(pages for _, pages in extents)
            self._state.used_pages -= freed
            if not wipe:
                self._segments.release(extents)
                return freed * PAGE_BYTES
            self._wiping += 1
        try:
            self._segments.zero(extents)
        finally:
            with self._lock:
                self._wiping -= 1
                self._segments.release(extents)
        self.sync()
        return freed * PAGE_BYTES

    def sync(self) -> None:
        """Make every completed put and removal durable: the data first, then the journal. Raises OSError."""
        if self._read_only:
            return
        try:
            compacted = self._commits.commit(self._lock, self._index)
        except OSError:
            self.counters["sync_errors"] += 1
            raise
        self.counters["syncs"] += 1
        self.counters["compactions"] += compacted

    def records(self) -> Iterator[Record]:
        with self._lock:
            packed = list(self._index.values())
        return (unpack_record(record) for record in packed)

    def check(self, *, fix: bool = False) -> CheckReport:
        """Read and verify every block, and recount the space; with `fix`, drop what is bad and correct the count."""
        with self._lock:
            before = dict(self._index)
        bad = damaged(before, self._device, Reader(self._segments, self._staging))
        with self._commits.lock, self._lock:
            bad = {key: what for key, what in bad.items() if self._index.get(key) is before[key]}
            counted = miscounts(self._state) if not self._writing and not self._wiping else []
            if fix and counted:
                self._segments.occupy(self._state.count())
        if fix:
            self.remove([BlockKey(key) for key in bad])
        return report(before, bad, counted, fix=fix)

    def close(self) -> None:
        """Sync as far as the disk allows, then let go of the directory; again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.sync()
        except OSError as error:
            log.warning("the last commit of %s failed, its blocks may be missing later: %s", self._device.root, error)
        self._segments.close()
        self._commits.close()
        if self._state.lock is not None:
            self._state.lock.close()
        self._device.close()

    def _enter(self, blocks: Sequence[Block], outcomes: list[Put]) -> list[tuple[int, Block]]:
        """Settle what needs no writing; the rest is marked as being written and returned with its positions."""
        fresh: list[tuple[int, Block]] = []
        sizes = [memoryview(block.data).cast("B").nbytes for block in blocks]
        with self._lock:
            room = self._state.options.max_blocks - len(self._index) - len(self._writing)
            for position, (block, nbytes) in enumerate(zip(blocks, sizes, strict=True)):
                if block.key in self._index or block.key in self._writing:
                    outcomes[position] = Put.PRESENT
                elif self._read_only or not nbytes or pages_of(nbytes) + 2 > self._segments.segment_pages:
                    outcomes[position] = Put.REFUSED
                elif len(fresh) >= room:
                    outcomes[position] = Put.FULL
                else:
                    self._writing.add(block.key)
                    fresh.append((position, block))
        return fresh

    def _write_jobs(self, fresh: list[tuple[int, Block]], outcomes: list[Put]) -> Iterator[Job]:
        writer = Writer(self._segments, self._staging, self._clock.wall())
        goal = self._end_of(fresh[0][1].parent) if fresh else None
        waiting = list(split_runs(fresh))[::-1]
        while waiting:
            members = waiting.pop()
            pages = run_pages(members)
            page = self._segments.allocate(pages, goal)
            if page is None and self._settle():
                page = self._segments.allocate(pages, goal)
            if page is not None:
                goal = page + pages
                yield writer.job(members, page)
            elif len(members) > 1:
                waiting += [members[len(members) // 2 :], members[: len(members) // 2]]
            else:
                outcomes[members[0][0]] = Put.FULL

    def _settle(self) -> bool:
        """Commit, where that frees pages; False where it does not."""
        if not self._segments.awaits_settling:
            return False
        try:
            self.sync()
        except OSError as error:
            self._failed("write_errors", -(error.errno or 0))
            return False
        return True

    def _end_of(self, key: BlockKey) -> int | None:
        packed = self._index.get(key)
        if packed is None:
            return None
        location = location_of(packed)
        return location.page + location.pages

    def _written(self, job: Job, moved: int, outcomes: list[Put]) -> None:
        run: Run = job.tag
        self._staging.give_back(run.scratch)
        if moved != job.nbytes:
            self._failed("write_errors", moved)
            self._segments.give_back([(run.page, run.pages)])
            return
        self._segments.mark_dirty(run.page)
        with self._lock:
            for (position, block), packed in zip(run.members, run.records, strict=True):
                self._index[block.key] = packed
                outcomes[position] = Put.STORED
            self._state.runs[run.page] = len(run.members)
            self._state.used_pages += run.pages
            self._commits.note(ADDED, b"".join(run.records))
        self.counters["written_bytes"] += job.nbytes

    def _landed(self, landing: Landing, outcomes: list[Get]) -> None:
        for (wanted, data), whole in zip(landing, landing.judge(), strict=True):
            key = BlockKey(wanted.key)
            if whole:
                if data is not wanted.into:
                    wanted.into[:] = data
                outcomes[wanted.position] = Get.HIT
            elif (packed := self._index.get(key)) is None or location_of(packed) != wanted.location:
                continue  # removed while it was read: a plain miss
            else:
                log.warning("block %s failed its checksum and was dropped", key.hex())
                self.counters["corrupt_blocks"] += 1
                self.remove([key])
                outcomes[wanted.position] = Get.CORRUPT
        self.counters["read_bytes"] += sum(wanted.location.nbytes for wanted, _ in landing)

    def _failed(self, counter: str, code: int) -> None:
        reason = os.strerror(-code) if code < 0 else f"short transfer of {code} bytes"
        if not self.counters[counter]:
            log.warning("disk tier %s: %s; further ones are only counted", counter.replace("_", " "), reason)
        self.counters[counter] += 1
