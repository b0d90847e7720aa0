"""Getting blocks back: from the fastest tier that holds each, within a deadline, and each only once at a time.

A block that two callers want from a slow tier is read for the first; it then enters the fast tier (it has been asked
for twice), where the second finds it.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from kvlake.keys.block import BlockKey
from kvlake.store.core import Core
from kvlake.store.index import Entry
from kvlake.store.lanes import Lanes
from kvlake.store.moves import Moves
from kvlake.tiers.tier import PAGE_BYTES, Get, Read, aligned_buffer, pages_of

_PREFETCH_LANES = 4
_PREFETCH_BYTES = 16 << 20


@dataclass(slots=True)
class _Plan:
    """Where one get will look."""

    by_tier: dict[int, list[int]]
    """Positions in the caller's list, by tier."""
    awaited: dict[threading.Event, list[int]]
    """Positions of blocks that somebody else is reading from a slow tier right now."""


class Reads:
    """The reading side of one store."""

    def __init__(self, core: Core, moves: Moves) -> None:
        self._core, self._moves = core, moves
        self._lanes = Lanes(_PREFETCH_LANES, "kvlake-prefetch")
        self._reading: dict[BlockKey, threading.Event] = {}  # guarded by the core's lock

    def get(self, keys: Sequence[BlockKey], into: Sequence[memoryview], timeout_s: float) -> list[Get]:
        """See `Store.get`."""
        outcomes = self._fetch(keys, into, timeout_s)
        self._note(keys, outcomes)
        return outcomes

    def prefetch(self, keys: Sequence[BlockKey]) -> Future[int]:
        """Bring blocks into the fastest tier; the result is how many leading blocks of `keys` it holds then."""
        return self._lanes.submit(lambda: self._prefetch(list(keys)))

    def close(self) -> None:
        self._lanes.close()

    def _fetch(self, keys: Sequence[BlockKey], into: Sequence[memoryview], timeout_s: float) -> list[Get]:
        core = self._core
        deadline = core.clock.monotonic() + timeout_s
        outcomes = [Get.MISS] * len(keys)
        mine = threading.Event()
        plan = self._plan(keys, range(len(keys)), mine)
        try:
            self._run(plan, keys, into, outcomes, deadline)
        finally:
            self._done(mine)
        for event, positions in plan.awaited.items():
            event.wait(min(max(0.0, deadline - core.clock.monotonic()), threading.TIMEOUT_MAX))
            # What the other reader brought is in the fast tier now; what it could not bring is tried once more.
            self._run(self._plan(keys, positions, None), keys, into, outcomes, deadline)
        return outcomes

    def _plan(self, keys: Sequence[BlockKey], positions: Sequence[int], mine: threading.Event | None) -> _Plan:
        """Decide where to look. With `mine`, reads from slow tiers are announced, and others' announcements awaited."""
        core, plan = self._core, _Plan({}, {})
        now_s = core.clock.wall()
        share = mine is not None and len(core.tiers) > 1
        with core.lock:
            for position in positions:
                key = keys[position]
                entry = core.index.get(key)
                if entry is None or (entry.expires_s and entry.expires_s <= now_s):
                    continue
                fastest = _fastest(entry.held)
                if share and fastest > 0:
                    entry.reads += 1
                    other = self._reading.setdefault(key, mine) if mine is not None else mine
                    if other is not None and other is not mine:
                        plan.awaited.setdefault(other, []).append(position)
                        continue
                plan.by_tier.setdefault(fastest, []).append(position)
        return plan

    def _run(
        self, plan: _Plan, keys: Sequence[BlockKey], into: Sequence[memoryview], outcomes: list[Get], deadline: float
    ) -> None:
        for tier in range(len(self._core.tiers)):
            positions = plan.by_tier.get(tier)
            if not positions:
                continue
            left_s = max(0.0, deadline - self._core.clock.monotonic())
            results = self._core.tiers[tier].get([Read(keys[at], into[at]) for at in positions], left_s)
            lost = []
            for at, result in zip(positions, results, strict=True):
                outcomes[at] = result
                if result in (Get.MISS, Get.CORRUPT):
                    lost.append(keys[at])
            if lost:
                self._moves.lose(tier, lost)
            if tier > 0:
                self._moves.promote([(keys[at], into[at]) for at in positions if outcomes[at] is Get.HIT], asked=False)
            self._fall_back(plan, tier, [at for at in positions if outcomes[at] not in (Get.HIT, Get.TIMEOUT)], keys)

    def _fall_back(self, plan: _Plan, tier: int, failed: list[int], keys: Sequence[BlockKey]) -> None:
        """What one tier could not give (it may just have been dropped there) is asked of the next that holds it."""
        if not failed:
            return
        core = self._core
        with core.lock:
            for at in failed:
                entry = core.index.get(keys[at])
                slower = entry.held & core.below(tier) if entry is not None else 0
                if slower:
                    plan.by_tier.setdefault(_fastest(slower), []).append(at)

    def _done(self, mine: threading.Event) -> None:
        with self._core.lock:
            for key in [key for key, event in self._reading.items() if event is mine]:
                del self._reading[key]
        mine.set()

    def _note(self, keys: Sequence[BlockKey], outcomes: Sequence[Get]) -> None:
        """Touch what was hit, all at one time, and count the outcomes."""
        core = self._core
        now_s = core.clock.wall()
        with core.lock:
            for key, outcome in zip(keys, outcomes, strict=True):
                core.counts[f"get_{outcome.value}"] += 1
                entry = core.index.get(key) if outcome is Get.HIT else None
                if entry is not None:
                    entry.last_use_s = now_s

    def _prefetch(self, keys: list[BlockKey]) -> int:
        core = self._core
        with core.lock:
            now_s = core.clock.wall()
            entries = [entry for key in keys if (entry := core.index.get(key)) is not None]
            for entry in entries:
                entry.last_use_s = now_s
                entry.pins += 1  # room for the last of them must not be made from the first
        try:
            for group in _groups([entry for entry in entries if not entry.held & 1]):
                if not self._bring(group):
                    break
        finally:
            with core.lock:
                for entry in entries:
                    entry.pins -= 1
        with core.lock:
            held = [(entry := core.index.get(key)) is not None and bool(entry.held & 1) for key in keys]
        return held.index(False) if False in held else len(held)

    def _bring(self, group: list[Entry]) -> bool:
        """Read a group into scratch and put it into the fastest tier; False when that has no more room."""
        buffer = aligned_buffer(sum(pages_of(entry.nbytes) for entry in group) * PAGE_BYTES)
        views, at = [], 0
        for entry in group:
            views.append(buffer[at : at + entry.nbytes])
            at += pages_of(entry.nbytes) * PAGE_BYTES
        keys = [entry.key for entry in group]
        outcomes = self._fetch(keys, views, self._core.options.get_timeout_s)
        landed = [(key, view) for key, view, outcome in zip(keys, views, outcomes, strict=True) if outcome is Get.HIT]
        self._moves.promote(landed, asked=True)
        return all(entry.held & 1 for entry, outcome in zip(group, outcomes, strict=True) if outcome is Get.HIT)


def _fastest(held: int) -> int:
    """Position of the fastest of the tiers that `held` has a bit for."""
    return (held & -held).bit_length() - 1


def _groups(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Consecutive entries, as many as are brought at a time."""
    group: list[Entry] = []
    nbytes = 0
    for entry in entries:
        group.append(entry)
        nbytes += entry.nbytes
        if nbytes >= _PREFETCH_BYTES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group
