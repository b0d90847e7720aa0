"""What happens at open and in an audit: a directory -> the state that a disk tier starts from, and whether it is true.

The journal is read to its last whole frame. Where it is lost but segments are there, the index is made again from the
runs' descriptors, each payload verified. Space is then recounted from the index: nothing is taken over from before.
"""

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvlake.base.errors import CapacityError, StoreBusyError, StoreFormatError
from kvlake.base.units import GIB, KIB, MIB, format_bytes
from kvlake.tiers.disk.device import PROBE, Device, File
from kvlake.tiers.disk.journal import Frame, Journal, Origin
from kvlake.tiers.disk.record import (
    RECORD,
    checksum_of,
    location_of,
    split_records,
    unpack_descriptor,
    unpack_header,
)
from kvlake.tiers.disk.segments import Extent, Segments
from kvlake.tiers.tier import PAGE_BYTES, aligned_buffer

log = logging.getLogger(__name__)

ADDED, REMOVED = 1, 2
"""Kinds of journal frames: records of blocks laid down; keys of blocks removed."""

JOURNAL, LOCK = "blocks.log", "lock"
_OTHER_NAMES = {LOCK, PROBE, JOURNAL, JOURNAL + ".new", "sessions.log", "sessions.log.new"}
_PURPOSE = b"kvblocks"
_KEY_BYTES = 16

_CAPACITY_MIN = 16 * MIB
_SEGMENT_MIN, _SEGMENT_MAX = 4 * MIB, GIB
_RESERVE_MAX = 16 * GIB
_LOG_MAX = 4 * GIB
_JOURNAL_BYTES_PER_BLOCK = 3.5 * RECORD.size
"""The journal is compacted at 2 records a block, and while that goes on a third is written beside it."""

_SCAN_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    """How a disk tier is opened."""

    capacity_bytes: int
    """Bytes of disk that the directory may take up, its logs included."""
    reserve_bytes: int | None = None
    """Bytes of the file system left free for others; None: 5 % of it, at most 16 GiB."""
    read_only: bool = False
    """Look without the lock and without repair, beside the process that owns the store."""

    @property
    def log_bytes(self) -> int:
        """Part of the capacity that is kept for logs: half for the journal, half for the store's own."""
        return min(max(self.capacity_bytes // 32, 512 * KIB), _LOG_MAX)

    @property
    def max_blocks(self) -> int:
        """Blocks whose journal fits in its share."""
        return int((self.log_bytes // 2 - 128 * KIB) / _JOURNAL_BYTES_PER_BLOCK)

    @property
    def segment_pages(self) -> int:
        """Pages of a new store's segments: a thirty-second of the capacity, within limits."""
        return min(max(self.capacity_bytes // 32, _SEGMENT_MIN), _SEGMENT_MAX) // PAGE_BYTES


@dataclass(slots=True)
class Opened:
    """The state of a disk tier at open."""

    options: DiskOptions
    journal: Journal
    segments: Segments
    index: dict[bytes, bytes]
    lock: File | None
    runs: Counter[int] = field(default_factory=Counter)
    used_pages: int = 0
    counters: Counter[str] = field(default_factory=Counter)

    def count(self) -> list[Extent]:
        """Recount runs and used pages from the index; returns the extents in use."""
        locations = [location_of(packed) for packed in self.index.values()]
        self.runs = Counter(location.descriptor for location in locations)
        extents = [(location.page, location.pages) for location in locations]
        extents += [(descriptor, 1) for descriptor in self.runs]
        self.used_pages = sum(pages for _, pages in extents)
        return extents

    def vacate(self, packed: bytes) -> list[Extent]:
        """Extents that go with a block: its payload, and the descriptor after the last of its run."""
        location = location_of(packed)
        extents = [(location.page, location.pages)]
        self.runs[location.descriptor] -= 1
        if not self.runs[location.descriptor]:
            del self.runs[location.descriptor]
            extents.append((location.descriptor, 1))
        return extents


def open_state(device: Device, options: DiskOptions) -> Opened:
    """Take the directory, read or make its journal and segments, and recount. Raises as `DiskTier.open` says."""
    if options.capacity_bytes < _CAPACITY_MIN:
        raise CapacityError(
            f"a disk tier needs a capacity of at least {format_bytes(_CAPACITY_MIN)}, not "
            f"{format_bytes(options.capacity_bytes)}; raise disk_bytes"
        )
    lock = None if options.read_only else _take_lock(device)
    try:
        state = _load(device, options, lock)
        if not options.read_only:
            state.journal.cut_tail()
        _drop_unplaced(state)
        if not options.read_only:
            _fit_journal(device, state)
        return state
    except BaseException:
        if lock is not None:
            lock.close()
        raise


def replay(frames: list[Frame]) -> dict[bytes, bytes]:
    """The index that a journal tells of."""
    index: dict[bytes, bytes] = {}
    for kind, body in frames:
        if kind == ADDED:
            for packed in split_records(body):
                index[packed[:_KEY_BYTES]] = packed
        else:
            for at in range(0, len(body), _KEY_BYTES):
                index.pop(body[at : at + _KEY_BYTES], None)
    return index


def _load(device: Device, options: DiskOptions, lock: File | None) -> Opened:
    loaded = Journal.load(device, JOURNAL, _PURPOSE)
    if loaded is not None:
        journal, frames, torn_bytes = loaded
        segments = _segments(device, options, journal.origin)
        counters = Counter(torn_journal_bytes=torn_bytes) if torn_bytes else Counter[str]()
        return Opened(options, journal, segments, replay(frames), lock, counters=counters)
    origin = _origin_of_segments(device)
    if options.read_only:
        raise StoreFormatError(f"{device.root} holds no kvlake store that can be read; give its directory, or make one")
    if origin is None:
        _refuse_foreign(device)
        origin = Origin(_PURPOSE, os.urandom(16), options.segment_pages)
    else:
        log.warning("the journal of %s is lost: making the index again from the segments", device.root)
    segments = _segments(device, options, origin)
    # Two blocks of equal bytes may claim one place where one had been evicted: the bytes are right under either.
    placed = {location_of(packed).page: (key, packed) for key, packed in _scan(segments)}
    index = dict(placed.values())
    journal = Journal.create(device, JOURNAL, origin, [Frame(ADDED, b"".join(index.values()))])
    counters = Counter(rebuilt_blocks=len(index)) if segments.count else Counter[str]()
    return Opened(options, journal, segments, index, lock, counters=counters)


def _segments(device: Device, options: DiskOptions, origin: Origin) -> Segments:
    stat = os.statvfs(device.root)
    reserve = options.reserve_bytes
    if reserve is None:
        reserve = min(stat.f_blocks * stat.f_frsize // 20, _RESERVE_MAX)
    segment_bytes = origin.number * PAGE_BYTES
    wanted = (options.capacity_bytes - options.log_bytes) // segment_bytes
    if wanted < 1:
        raise CapacityError(
            f"the store at {device.root} is made of segments of {format_bytes(segment_bytes)}: a capacity of "
            f"{format_bytes(options.capacity_bytes)} has no room for one; raise disk_bytes, or delete the store"
        )
    stems = [name.removesuffix(".seg") for name in device.names() if name.endswith(".seg")]
    found = 1 + max((int(stem) for stem in stems if stem.isdecimal()), default=-1)
    possible = found + max(0, device.free_bytes() - reserve) // segment_bytes
    if possible < 1:
        raise CapacityError(
            f"{device.root} has {format_bytes(device.free_bytes())} free, of which {format_bytes(reserve)} are kept in "
            f"reserve: no room for a store; free some room, or lower reserve_bytes"
        )
    segments = Segments(device, origin.uuid, origin.number, (min(wanted, possible), reserve))
    segments.open_found(read_only=options.read_only)
    return segments


def _drop_unplaced(state: Opened) -> None:
    """Forget blocks whose place is gone or taken (their segment is missing or was given up), until the rest fits."""
    while refused := state.segments.occupy(state.count()):
        lost = [
            key
            for key, packed in state.index.items()
            if (location := location_of(packed)).page in refused or location.descriptor in refused
        ]
        log.warning("%d blocks have lost their place and are forgotten", len(lost))
        state.counters["unplaced_blocks"] += len(lost)
        for key in lost:
            del state.index[key]
        if not state.options.read_only:
            state.journal.append([Frame(REMOVED, b"".join(lost))])


def _fit_journal(device: Device, state: Opened) -> None:
    """Where the capacity was lowered: forget the oldest blocks past what the journal may hold, and write it anew."""
    options, old = state.options, state.journal
    excess = list(state.index)[: max(0, len(state.index) - options.max_blocks)]
    if not excess and old.nbytes <= options.log_bytes // 2:
        return
    for key in excess:
        del state.index[key]
    state.counters["unplaced_blocks"] += len(excess)
    state.segments.occupy(state.count())
    state.journal = Journal.create(device, JOURNAL, old.origin, [Frame(ADDED, b"".join(state.index.values()))])
    old.close()


def _take_lock(device: Device) -> File:
    file = device.open(LOCK)
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = bytes(file.read(0, 32)).decode(errors="replace").strip() or "unknown"
        file.close()
        raise StoreBusyError(
            f"{device.root} is in use by process {owner}; stop it, open read-only, or give each process a directory"
        ) from error
    file.truncate(0)
    file.write(0, f"{os.getpid()}\n".encode())
    return file


def _refuse_foreign(device: Device) -> None:
    foreign = [entry.name for entry in os.scandir(device.root) if entry.name not in _OTHER_NAMES]
    if foreign:
        raise StoreFormatError(
            f"{device.root} is not a kvlake store and not empty (it holds {foreign[0]!r}); give an empty directory"
        )


def _origin_of_segments(device: Device) -> Origin | None:
    for name in device.names():
        if name.endswith(".seg"):
            file = device.open(name)
            header = unpack_header(file.read(0, PAGE_BYTES))
            file.close()
            if header is not None:
                return Origin(_PURPOSE, header.uuid, header.segment_pages)
    return None


def _scan(segments: Segments) -> Iterator[tuple[bytes, bytes]]:
    """Every block whose descriptor and payload are both whole, by reading all segments through."""
    for first_page, pages in segments.spans():
        step = _SCAN_BYTES // PAGE_BYTES
        for page in range(first_page, first_page + pages, step):
            file, offset = segments.place(page)
            chunk = _readable(file, offset, min(step, first_page + pages - page) * PAGE_BYTES)
            for at in range(0, len(chunk), PAGE_BYTES):
                here = page + at // PAGE_BYTES
                for packed in unpack_descriptor(chunk[at : at + PAGE_BYTES], segments.uuid, here):
                    if _is_whole(segments, packed):
                        yield packed[:_KEY_BYTES], packed


def _is_whole(segments: Segments, packed: bytes) -> bool:
    location = location_of(packed)
    file, offset = segments.place(location.page)
    payload = _readable(file, offset, location.pages * PAGE_BYTES)[: location.nbytes]
    return checksum_of(packed[:_KEY_BYTES], payload) == location.checksum


def _readable(file: File, offset: int, nbytes: int) -> memoryview:
    """What can be read, with zeros for the pages that cannot."""
    try:
        return file.read(offset, nbytes)
    except OSError as error:
        if nbytes <= PAGE_BYTES:
            log.warning("%s cannot be read at byte %d: %s", file.name, offset, error)
            return aligned_buffer(nbytes)
    buffer = aligned_buffer(nbytes)
    for at in range(0, nbytes, PAGE_BYTES):
        piece = _readable(file, offset + at, PAGE_BYTES)
        buffer[at : at + piece.nbytes] = piece
    return buffer
