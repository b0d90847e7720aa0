"""Free space as extents of pages: (pages wanted, where they would best lie) -> first page.

Extents merge with their neighbours when freed (a table by first page and one by end page) and are found by size through
one set per power of two, so that every step is O(1) but for a short search. A chain's next blocks ask for the place
right after its last (`goal`); a new chain starts on a multiple of `room` while there is one free, which leaves the
chain before it room to grow. So a session's blocks stay together without reserving anything.
"""

from collections.abc import Iterable

_SEARCH_MAX = 32
"""Extents of one size class that are looked at before a larger class is taken."""


class Extents:
    """Free pages of an address space 0..pages. Not thread-safe: its owner's lock guards it."""

    def __init__(self, pages: int = 0, *, room: int = 1) -> None:
        self.free_pages = 0
        self._room = room
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self._by_class: list[dict[int, None]] = []
        if pages:
            self.free(0, pages)

    @classmethod
    def around(
        cls, spans: Iterable[tuple[int, int]], used: Iterable[tuple[int, int]], *, room: int = 1
    ) -> tuple["Extents", list[int]]:
        """The free space of `spans` around what is `used` (both (first page, pages)), as found at open.

        Also returns the first pages of those used that lie outside the spans or overlap an earlier one.
        """
        free, refused = cls(room=room), []
        pending = sorted(used, reverse=True)
        for first, pages in sorted(spans):
            cursor, end = first, first + pages
            while pending and pending[-1][0] < end:
                start, length = pending.pop()
                if start < cursor or start + length > end:
                    refused.append(start)
                    continue
                if start > cursor:
                    free.free(cursor, start - cursor)
                cursor = start + length
            if cursor < end:
                free.free(cursor, end - cursor)
        return free, refused + [start for start, _ in pending]

    def __repr__(self) -> str:
        return f"<Extents {self.free_pages} free pages in {len(self._size_at)} extents>"

    def allocate(self, pages: int, goal: int | None = None) -> int | None:
        """First page of `pages` free pages, now taken; None when no extent is that long."""
        if goal is not None and self._size_at.get(goal, 0) >= pages:
            return self._carve(goal, goal, pages)
        extent = self._find_roomy(pages) if self._room > 1 else None
        if extent is not None:
            return self._carve(extent, -(-extent // self._room) * self._room, pages)
        extent = self._find(pages)
        return None if extent is None else self._carve(extent, extent, pages)

    def free(self, start: int, pages: int) -> None:
        """Give back pages; they merge with free neighbours."""
        self.free_pages += pages
        end = start + pages
        if end in self._size_at:
            pages += self._remove(end)
        before = self._start_of_end.get(start)
        if before is not None:
            pages += self._remove(before)
            start = before
        self._add(start, pages)

    def extents(self) -> list[tuple[int, int]]:
        """All free extents as (first page, pages), in order."""
        return sorted(self._size_at.items())

    def _find(self, pages: int) -> int | None:
        """Start of an extent of at least `pages`, near the least that fits."""
        first = pages.bit_length() - 1
        for size_class, starts in enumerate(self._by_class[first:], first):
            for looked, start in enumerate(starts):
                if self._size_at[start] >= pages:
                    return start
                if looked >= _SEARCH_MAX and any(self._by_class[size_class + 1 :]):
                    break
        return None

    def _find_roomy(self, pages: int) -> int | None:
        """Start of an extent so long that `pages` fit at its first multiple of `room`."""
        for starts in self._by_class[(pages + self._room).bit_length() :]:
            for start in starts:
                return start
        return None

    def _carve(self, extent: int, start: int, pages: int) -> int:
        """Take `pages` from `start` out of the free extent that begins at `extent`."""
        size = self._remove(extent)
        self.free_pages -= pages
        if start > extent:
            self._add(extent, start - extent)
        if extent + size > start + pages:
            self._add(start + pages, extent + size - start - pages)
        return start

    def _add(self, start: int, pages: int) -> None:
        self._size_at[start] = pages
        self._start_of_end[start + pages] = start
        size_class = pages.bit_length() - 1
        while len(self._by_class) <= size_class:
            self._by_class.append({})
        self._by_class[size_class][start] = None

    def _remove(self, start: int) -> int:
        pages = self._size_at.pop(start)
        del self._start_of_end[start + pages]
        del self._by_class[pages.bit_length() - 1][start]
        return pages
