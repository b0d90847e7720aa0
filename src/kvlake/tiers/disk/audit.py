"""Is what the disk tier says true? Every block read and verified; the space counted once more."""

import os
from collections.abc import Iterator

from kvlake.keys.block import BlockKey
from kvlake.tiers.disk.device import Device
from kvlake.tiers.disk.record import Location, location_of
from kvlake.tiers.disk.recover import Opened
from kvlake.tiers.disk.transfer import Reader, Wanted
from kvlake.tiers.extents import Extents
from kvlake.tiers.tier import PAGE_BYTES, CheckReport, Problem, aligned_buffer

_BATCH_BYTES = 8 << 20


def damaged(index: dict[bytes, bytes], device: Device, reader: Reader) -> dict[bytes, str]:
    """Keys whose payload cannot be read or fails its checksum, with what is wrong."""
    bad: dict[bytes, str] = {}
    keys = sorted(index, key=lambda key: location_of(index[key]).page)
    with reader:
        for batch in _batches([(key, location_of(index[key])) for key in keys]):
            buffer, at, wanted = aligned_buffer(sum(loc.pages for _, loc in batch) * PAGE_BYTES), 0, []
            for position, (key, location) in enumerate(batch):
                wanted.append(Wanted(key, location, location.pages, position, buffer[at : at + location.nbytes]))
                at += location.pages * PAGE_BYTES
            for job, moved in device.run(reader.job([item]) for item in wanted):
                key = job.tag[0].wanted.key
                if moved != job.nbytes:
                    bad[key] = f"cannot be read: {os.strerror(-moved) if moved < 0 else f'only {moved} bytes came'}"
                elif not all(job.tag.judge()):
                    bad[key] = "fails its checksum"
    return bad


def miscounts(state: Opened) -> list[str]:
    """Where the running account differs from a recount of the index. Needs the tier's locks."""
    counted = Opened(state.options, state.journal, state.segments, state.index, state.lock)
    used = counted.count()
    free, refused = Extents.around(state.segments.spans(), used)
    wrong = [f"page {page} is used twice or lies outside the segments" for page in refused]
    if counted.used_pages != state.used_pages:
        wrong.append(f"{state.used_pages} pages are said to be in use, {counted.used_pages} are")
    if counted.runs != state.runs:
        wrong.append("the counts of live blocks by run are off")
    if not refused and free.extents() != state.segments.free_extents():
        wrong.append("the free pages are not those that the blocks leave")
    return wrong


def report(index: dict[bytes, bytes], bad: dict[bytes, str], counted: list[str], *, fix: bool) -> CheckReport:
    """The findings as the Tier Protocol has them."""
    problems = [Problem(BlockKey(key), what) for key, what in bad.items()]
    problems += [Problem(None, what) for what in counted]
    return CheckReport(
        tier="disk",
        blocks=len(index),
        nbytes=sum(location_of(packed).nbytes for packed in index.values()),
        problems=tuple(problems),
        fixed=len(problems) if fix else 0,
    )


def _batches(found: list[tuple[bytes, Location]]) -> Iterator[list[tuple[bytes, Location]]]:
    batch: list[tuple[bytes, Location]] = []
    nbytes = 0
    for item in found:
        batch.append(item)
        nbytes += item[1].pages * PAGE_BYTES
        if nbytes >= _BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
