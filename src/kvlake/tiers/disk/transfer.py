"""Blocks <-> jobs: a run of blocks becomes one vectored write, neighbouring blocks become one vectored read."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvlake.tiers.disk.job import Job
from kvlake.tiers.disk.record import RUN_BLOCKS_MAX, Location, checksum_of, pack_descriptor, pack_record
from kvlake.tiers.disk.segments import Segments
from kvlake.tiers.disk.staging import Staging, hold, hold_aligned
from kvlake.tiers.tier import PAGE_BYTES, Block, pages_of

RUN_BYTES = 1 << 20
"""Payload that is laid down, or read, as one job; a larger block is a job of its own."""

_GAP_PAGES_MAX = 1
"""Pages that a read goes across to merge two blocks: a run's descriptor."""

_READ_PAGES = RUN_BYTES // PAGE_BYTES + _GAP_PAGES_MAX


class Run(NamedTuple):
    """What one write lays down: blocks, their packed records, the extent, and the scratch buffer lent for it."""

    members: list[tuple[int, Block]]
    """(position in the caller's batch, block)"""
    records: list[bytes]
    page: int
    pages: int
    scratch: memoryview


class Wanted(NamedTuple):
    """A block to be read: where it lies and where it goes."""

    key: bytes
    location: Location
    pages: int
    position: int
    into: memoryview


class Landed(NamedTuple):
    """A block read: its bytes lie in `data` (the caller's buffer, or scratch where that could not be used)."""

    wanted: Wanted
    data: memoryview

    @property
    def whole(self) -> bool:
        """Whether these are the bytes that were put."""
        return checksum_of(self.wanted.key, self.data) == self.wanted.location.checksum


class Landing(list[Landed]):
    """The blocks of one read, and which of them are whole, once that has been asked."""

    verdicts: list[bool] | None = None

    def judge(self) -> list[bool]:
        """For each block, whether it is whole; found out once."""
        if self.verdicts is None:
            self.verdicts = [landed.whole for landed in self]
        return self.verdicts


def split_runs(members: list[tuple[int, Block]]) -> Iterator[list[tuple[int, Block]]]:
    """Consecutive blocks, as many as make one job."""
    run: list[tuple[int, Block]] = []
    nbytes = 0
    for member in members:
        size = memoryview(member[1].data).nbytes
        if run and (nbytes + size > RUN_BYTES or len(run) == RUN_BLOCKS_MAX):
            yield run
            run, nbytes = [], 0
        run.append(member)
        nbytes += size
    if run:
        yield run


def run_pages(members: list[tuple[int, Block]]) -> int:
    """Pages of a run: its descriptor and its payloads."""
    return 1 + sum(pages_of(memoryview(block.data).nbytes) for _, block in members)


class Writer:
    """Makes the write jobs of one put; hashing a run passes while earlier ones are in flight."""

    def __init__(self, segments: Segments, staging: Staging, created_s: float) -> None:
        self._segments, self._staging, self._created_s = segments, staging, created_s

    def job(self, members: list[tuple[int, Block]], page: int) -> Job:
        """The job that lays `members` down at `page`; its tag is the Run."""
        pages = run_pages(members)
        payloads = [memoryview(block.data).cast("B") for _, block in members]
        in_place = [hold_aligned(payload) for payload in payloads]
        staged_pages = sum(pages_of(data.nbytes) for data, held in zip(payloads, in_place, strict=True) if held is None)
        scratch = self._staging.take(1 + staged_pages)
        buffers, records = [scratch[:PAGE_BYTES]], []
        holds = [hold(buffers[0])]
        at, next_page = PAGE_BYTES, page + 1
        for (_, block), data, held in zip(members, payloads, in_place, strict=True):
            location = Location(checksum_of(block.key, data), next_page, data.nbytes, next_page - page)
            records.append(pack_record(block.record(self._created_s), location))
            if held is not None:
                buffers.append(data)
                holds.append(held)
            else:
                end = at + location.pages * PAGE_BYTES
                scratch[at : at + data.nbytes] = data
                scratch[at + data.nbytes : end] = bytes(end - at - data.nbytes)  # not another block's bytes
                buffers.append(scratch[at:end])
                holds.append(hold(buffers[-1]))
                at = end
            next_page += location.pages
        pack_descriptor(buffers[0], self._segments.uuid, page, records)
        file, offset = self._segments.place(page)
        run = Run(members, records, page, pages, scratch)
        return Job(file.fd, offset, buffers, pages * PAGE_BYTES, True, run, holds)


class Reader:
    """Makes the read jobs of one get."""

    def __init__(self, segments: Segments, staging: Staging) -> None:
        self._segments, self._staging = segments, staging
        self._gap = staging.take(_GAP_PAGES_MAX)
        self._gap_hold = hold(self._gap)
        self._lent: list[memoryview] = [self._gap]

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._lent:
            self._staging.give_back(buffer)

    def jobs(self, wanted: Sequence[Wanted]) -> Iterator[Job]:
        """Jobs for `wanted`, which must be in order of page; the tag of each is its Landing."""
        group: list[Wanted] = []
        start = end = 0
        for item in wanted:
            page = item.location.page
            gap, pages = page - end, page + item.pages - start
            # The header and the descriptor keep a segment's first block more than one page from the one before.
            if group and not (0 <= gap <= _GAP_PAGES_MAX and pages <= _READ_PAGES and len(group) < RUN_BLOCKS_MAX):
                yield self.job(group)
                group = []
            if not group:
                start = page
            group.append(item)
            end = page + item.pages
        if group:
            yield self.job(group)

    def job(self, group: list[Wanted]) -> Job:
        """One job that reads a group of neighbours."""
        buffers, holds, landing = [], [], Landing()
        start = end = group[0].location.page
        for item in group:
            _, location, pages, _, into = item
            if location.page > end:
                buffers.append(self._gap)
                holds.append(self._gap_hold)
            held = hold_aligned(into)
            data = into
            if held is None:
                data = self._scratch(pages)
                held = hold(data)
            buffers.append(data)
            holds.append(held)
            landing.append(Landed(item, data if data is into else data[: location.nbytes]))
            end = location.page + pages
        file, offset = self._segments.place(start)
        return Job(file.fd, offset, buffers, (end - start) * PAGE_BYTES, False, landing, holds, landing.judge)

    def _scratch(self, pages: int) -> memoryview:
        buffer = self._staging.take(pages)
        self._lent.append(buffer)
        return buffer[: pages * PAGE_BYTES]
