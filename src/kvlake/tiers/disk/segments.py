"""The space of a disk tier: segments (preallocated files) and the free pages within them.

Segments are made one by one as they are needed, up to `max_segments`, and only while the file system keeps its
reserve; so the tier never holds more than its capacity, and a disk that others fill stops its growth instead of
failing its writes.

Pages of a removed block become free only when the removal is in the journal (`settle`): what the journal names is never
overwritten, whenever the power goes.
"""

import logging
import threading
from collections.abc import Iterable

from kvlake.tiers.disk.device import Device, File
from kvlake.tiers.disk.record import Header, pack_header, unpack_header
from kvlake.tiers.extents import Extents
from kvlake.tiers.tier import PAGE_BYTES

log = logging.getLogger(__name__)

_ROOM_PAGES = 1024
"""A new chain starts on a multiple of this (4 MiB), while there is one, so that the chain before it can grow."""

Extent = tuple[int, int]
"""(first page, pages)"""


class Segments:
    """Files and free space of one store. Thread-safe."""

    def __init__(self, device: Device, uuid: bytes, segment_pages: int, limits: tuple[int, int]) -> None:
        """`limits` is (max_segments, reserve_bytes)."""
        self.uuid, self.segment_pages = uuid, segment_pages
        self.max_segments, self._reserve_bytes = limits
        self._device = device
        self._room = max(1, min(_ROOM_PAGES, segment_pages // 64))
        self._lock = threading.Lock()
        self._grow_lock = threading.Lock()
        self._free = Extents(room=self._room)  # guarded by _lock
        self._released: list[Extent] = []  # free once the journal says so; guarded by _lock
        self._dirty: set[int] = set()  # segments with writes not yet synced; guarded by _lock
        self._unnamed = False  # segments made whose names are not yet durable; guarded by _lock
        self._files: dict[int, File] = {}  # guarded by _grow_lock for changes
        self.growth_error = ""
        """Why the last attempt to add a segment failed; empty when it did not."""

    @property
    def capacity_pages(self) -> int:
        """Pages for runs once every segment is there (each segment's header page is not counted)."""
        return self.max_segments * (self.segment_pages - 1)

    @property
    def count(self) -> int:
        return len(self._files)

    def disk_bytes(self) -> int:
        """Bytes that the segments take up on the disk now."""
        return sum(file.disk_bytes() for file in self._files.values())

    def open_found(self, *, read_only: bool) -> None:
        """Open the segments that are there; those past the capacity or torn in the making are deleted."""
        for name in self._device.names():
            if not name.endswith(".seg"):
                continue
            file = self._device.open(name, direct=True)
            header = unpack_header(file.read(0, PAGE_BYTES))
            ours = header is not None and header.uuid == self.uuid and header.segment_pages == self.segment_pages
            if header is not None and ours and header.number < self.max_segments and file.size() >= self.segment_bytes:
                self._files[header.number] = file
                continue
            file.close()
            if not read_only:
                self._device.remove(name)
                log.warning("segment %s is torn or beyond the capacity, and was removed", name)

    @property
    def segment_bytes(self) -> int:
        return self.segment_pages * PAGE_BYTES

    def occupy(self, used: Iterable[Extent]) -> set[int]:
        """At open, or to correct the count: take what the index says is used, and what awaits settling.

        Returns the first pages of what cannot be.
        """
        with self._lock:
            self._free, refused = Extents.around(self.spans(), [*used, *self._released], room=self._room)
        return set(refused)

    def spans(self) -> list[Extent]:
        """The pages of all segments but their headers."""
        return [(index * self.segment_pages + 1, self.segment_pages - 1) for index in sorted(self._files)]

    def allocate(self, pages: int, goal: int | None = None) -> int | None:
        """First page of `pages` that lie together in one segment; adds a segment where there is need and room."""
        with self._lock:
            page = self._free.allocate(pages, goal)
        while page is None and pages < self.segment_pages and self._grow():
            with self._lock:
                page = self._free.allocate(pages, goal)
        return page

    def give_back(self, extents: Iterable[Extent]) -> None:
        """Free pages that no journal entry names."""
        with self._lock:
            for page, pages in extents:
                self._free.free(page, pages)

    def release(self, extents: Iterable[Extent]) -> None:
        """Pages of removed blocks: free after the next `settle`."""
        with self._lock:
            self._released += extents

    @property
    def awaits_settling(self) -> bool:
        """Whether a commit would free pages."""
        return bool(self._released)

    def released(self) -> list[Extent]:
        """Take the list of pages that the commit now under way will free."""
        with self._lock:
            released, self._released = self._released, []
        return released

    def free_extents(self) -> list[Extent]:
        """All free pages, those still to be settled among them (for the audit)."""
        with self._lock:
            free = Extents()
            for page, pages in [*self._free.extents(), *self._released]:
                free.free(page, pages)
            return free.extents()

    def place(self, page: int) -> tuple[File, int]:
        """File and byte offset of a page. Raises KeyError for a page of no segment."""
        index, within = divmod(page, self.segment_pages)
        return self._files[index], within * PAGE_BYTES

    def mark_dirty(self, page: int) -> None:
        with self._lock:
            self._dirty.add(page // self.segment_pages)

    def zero(self, extents: Iterable[Extent]) -> None:
        """Erase pages. Raises OSError: an owner must know when bytes could not be erased."""
        for page, pages in extents:
            file, offset = self.place(page)
            file.zero(offset, pages * PAGE_BYTES)
            self.mark_dirty(page)

    def sync(self) -> None:
        """Make all completed writes durable."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            unnamed, self._unnamed = self._unnamed, False
        try:
            for index in dirty:
                self._files[index].sync()
            if unnamed:
                self._device.sync_names()
        except OSError:
            with self._lock:
                self._dirty |= dirty
                self._unnamed |= unnamed
            raise

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _grow(self) -> bool:
        """Add a segment; False at the capacity or when the disk will not have it."""
        with self._grow_lock:
            index = next((index for index in range(self.max_segments) if index not in self._files), None)
            if index is None:
                return False
            try:
                self._files[index] = self._make(index)
            except OSError as error:
                if not self.growth_error:
                    log.warning("the store stays at %d segments: %s", len(self._files), error)
                self.growth_error = str(error)
                return False
            self.growth_error = ""
        # Nothing in the journal speaks of the segment before the commit that makes it durable, so it need not be now.
        with self._lock:
            self._dirty.add(index)
            self._unnamed = True
        self.give_back([(index * self.segment_pages + 1, self.segment_pages - 1)])
        return True

    def _make(self, index: int) -> File:
        free = self._device.free_bytes()
        if free < self.segment_bytes + self._reserve_bytes:
            raise OSError(f"{free} bytes are free, of which {self._reserve_bytes} are kept in reserve")
        name = f"{index:05d}.seg"
        self._device.remove(name)
        plain = self._device.open(name)
        try:
            plain.preallocate(self.segment_bytes)
            plain.write(0, pack_header(Header(self.uuid, self.segment_pages, index)))
            return self._device.open(name, direct=True)
        except OSError:
            self._device.remove(name)
            raise
        finally:
            plain.close()
