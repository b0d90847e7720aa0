"""Decisions become moves: blocks are put where there is room, demoted, promoted and evicted. Any thread may call.

Each step decides under the store's lock, moves bytes outside it, and settles the outcome under it again. An entry
that a move reads is `busy` meanwhile, a key on its way in is `entering`, one on its way out is `leaving`: so no two
threads move the same block, and nothing is evicted under a reader.
"""

from collections.abc import Iterable, Iterator, Sequence

from kvlake.keys.block import BlockKey
from kvlake.policy.rank import victims
from kvlake.store.candidates import droppable, evictable
from kvlake.store.core import Core
from kvlake.store.index import Entry
from kvlake.tiers.tier import PAGE_BYTES, Block, Get, Put, Read, aligned_buffer, pages_of

_BATCH_BYTES = 16 << 20
"""Payload moved in one call of a tier: long enough for large runs, short enough to hold nobody up."""

_ROOM_TRIES = 3


class Moves:
    """The moves of one store."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def place(self, blocks: Sequence[Block]) -> tuple[dict[BlockKey, int], dict[BlockKey, Put]]:
        """Put blocks into the fastest tier that takes each. Returns the tiers that now hold them, and the outcomes."""
        held: dict[BlockKey, int] = {}
        outcomes: dict[BlockKey, Put] = {}
        remaining = list(blocks)
        for position in range(len(self._core.tiers)):
            if not remaining:
                break
            results = self.put_with_room(position, remaining)
            outcomes.update((block.key, result) for block, result in zip(remaining, results, strict=True))
            taken = {
                block.key: 1 << position
                for block, result in zip(remaining, results, strict=True)
                if result in (Put.STORED, Put.PRESENT)
            }
            held |= taken
            remaining = [block for block in remaining if block.key not in taken]
        return held, outcomes

    def put_with_room(self, position: int, blocks: Sequence[Block]) -> list[Put]:
        """Put blocks into one tier; where it is full, make room and try those again, while that helps."""
        tier = self._core.tiers[position]
        outcomes = tier.put(blocks)
        for _ in range(_ROOM_TRIES):
            full = [at for at, outcome in enumerate(outcomes) if outcome is Put.FULL]
            need = sum(pages_of(memoryview(blocks[at].data).nbytes) + 1 for at in full) * PAGE_BYTES
            need = self._core.options.watermarks.room_bytes(need, tier.usage().capacity_bytes)
            if not full or not self.make_room(position, need):
                break
            # Others may have taken what was freed: hence more than one try.
            for at, outcome in zip(full, tier.put([blocks[at] for at in full]), strict=True):
                outcomes[at] = outcome
        return outcomes

    def relieve(self, position: int) -> None:
        """Bring a tier that is above its high watermark down to the low one."""
        usage = self._core.tiers[position].usage()
        excess = self._core.options.watermarks.excess_bytes(usage.used_bytes, usage.capacity_bytes)
        if excess:
            self.make_room(position, excess)

    def make_room(self, position: int, need_bytes: int) -> int:
        """Free at least `need_bytes` of payload in a tier, if that can be; returns the bytes freed.

        A tier above others gives up copies that a slower one holds too. The slowest (or one whose slower tiers are all
        broken) evicts: its victims leave the store.
        """
        core = self._core
        last_resort = all(tier.breaker.is_open for tier in core.tiers[position + 1 :])
        with core.lock:
            found = evictable(core, position=position) if last_resort else droppable(core, position)
        chosen = [block.key for block in victims(found, need_bytes, core.options.rank)]
        return self.evict(chosen) if last_resort else self.drop_copies(position, chosen)

    def relieve_tenant(self, tenant: bytes, need_bytes: int) -> int:
        """Evict blocks that `tenant` put, until `need_bytes` are free; returns the bytes freed."""
        with self._core.lock:
            found = evictable(self._core, tenant=tenant)
        return self.evict([block.key for block in victims(found, need_bytes, self._core.options.rank)])

    def evict(self, keys: Iterable[BlockKey], *, wipe: bool = False) -> int:
        """Remove blocks from the store, in order; those in use or with a child are left. Returns payload bytes freed.

        With `wipe`, an owner's deletion, a pin does not hold, and moves under way are waited for.
        """
        core = self._core
        gone: list[Entry] = []
        with core.settled:
            for key in keys:
                entry = core.index.get(key)
                if wipe and entry is not None:
                    self._wait_for(entry)
                if entry is not None and not ((entry.pins and not wipe) or entry.busy or entry.children):
                    core.index.drop(entry)
                    core.leaving.add(key)
                    gone.append(entry)
            core.counts["evicted_blocks"] += len(gone)
        self._remove_bytes(gone, wipe=wipe)
        return sum(entry.nbytes for entry in gone)

    def drop_copies(self, position: int, keys: Iterable[BlockKey]) -> int:
        """Remove blocks from one tier where a slower one holds them too; returns the payload bytes freed."""
        core = self._core
        below, bit = core.below(position), 1 << position
        with core.lock:
            gone = [
                entry
                for key in keys
                if (entry := core.index.get(key)) is not None
                and not (entry.pins or entry.busy)
                and entry.held & bit
                and entry.held & below
            ]
            for entry in gone:
                entry.held &= ~bit
                entry.busy += 1
                entry.reads = 0
        core.tiers[position].remove([entry.key for entry in gone])
        core.release(gone)
        return sum(entry.nbytes for entry in gone)

    def demote(self, keys: Iterable[BlockKey]) -> bool:
        """Copy blocks down until the slowest tier holds each; True when it holds them all."""
        core = self._core
        wanted = list(keys)
        for position in range(len(core.tiers) - 1):
            for batch in self._claim(position, wanted):
                self._copy_down(position, batch)
        with core.lock:
            slowest = 1 << len(core.tiers) - 1
            entries = [entry for key in wanted if (entry := core.index.get(key)) is not None]
            return all(entry.held & slowest for entry in entries)

    def promote(self, blocks: Sequence[Block]) -> int:
        """Copy blocks, just read from a slower tier, into the fastest; returns how many it holds now."""
        return self._note_copies(0, blocks, self.put_with_room(0, blocks))

    def lose(self, position: int, keys: Iterable[BlockKey]) -> None:
        """A tier turned out not to hold these: forget that, and what hangs on blocks that no tier holds any more."""
        core = self._core
        with core.lock:
            dead = []
            for key in keys:
                entry = core.index.get(key)
                if entry is not None:
                    entry.held &= ~(1 << position)
                    if not entry.held:
                        dead.append(key)
            gone = core.index.subtree(dead)
            for entry in gone:
                core.index.drop(entry)
                core.leaving.add(entry.key)
            core.counts["lost_blocks"] += len(gone)
        self._remove_bytes(gone)

    def _claim(self, position: int, keys: Sequence[BlockKey]) -> Iterator[list[Entry]]:
        """Batches of blocks that the tier holds and the next lacks, busy until they are copied.

        Waits for those that another thread is moving right now.
        """
        core = self._core
        bit, next_bit = 1 << position, 2 << position
        at = 0
        while at < len(keys):
            batch: list[Entry] = []
            nbytes = 0
            with core.settled:
                while at < len(keys) and nbytes < _BATCH_BYTES:
                    entry = core.index.get(keys[at])
                    if entry is not None and entry.held & bit and not entry.held & next_bit:
                        if entry.busy and batch:
                            break
                        if entry.busy and core.settled.wait(core.options.io_timeout_s):
                            continue
                        if not entry.busy:
                            entry.busy += 1
                            batch.append(entry)
                            nbytes += entry.nbytes
                    at += 1
            if batch:
                yield batch

    def _copy_down(self, position: int, batch: list[Entry]) -> None:
        core = self._core
        blocks, lost = [], []
        try:
            for entry in batch:
                data = self._bytes_of(position, entry)
                if data is None:
                    lost.append(entry.key)
                else:
                    blocks.append(entry.block(data))
            outcomes = self.put_with_room(position + 1, blocks)
        finally:
            core.release(batch)
        self._note_copies(position + 1, blocks, outcomes)
        if lost:
            self.lose(position, lost)

    def _note_copies(self, position: int, blocks: Sequence[Block], outcomes: Sequence[Put]) -> int:
        """Enter in the index what a tier has taken in beside another; what has left the store meanwhile is removed."""
        core = self._core
        noted = 0
        strays: list[BlockKey] = []
        with core.lock:
            for block, outcome in zip(blocks, outcomes, strict=True):
                if outcome not in (Put.STORED, Put.PRESENT):
                    continue
                entry = core.index.get(block.key)
                if entry is None:
                    strays.append(block.key)
                else:
                    entry.held |= 1 << position
                    noted += 1
            core.counts[f"copied_to_{core.tiers[position].name}_blocks"] += noted
        if strays:
            core.tiers[position].remove(strays)
        return noted

    def _bytes_of(self, position: int, entry: Entry) -> memoryview | None:
        tier = self._core.tiers[position]
        data = tier.view(entry.key)
        if data is None:
            data = aligned_buffer(entry.nbytes)
            if tier.get([Read(entry.key, data)], self._core.options.get_timeout_s) != [Get.HIT]:
                return None
        return data

    def _remove_bytes(self, gone: Sequence[Entry], *, wipe: bool = False) -> None:
        core = self._core
        for position, tier in enumerate(core.tiers):
            keys = [entry.key for entry in gone if entry.held >> position & 1]
            if keys and not tier.remove(keys, wipe=wipe):
                core.count("unsure_removals")
        with core.settled:
            core.leaving.difference_update(entry.key for entry in gone)
            core.settled.notify_all()

    def _wait_for(self, entry: Entry) -> None:
        """Wait until no move uses the entry, but not for ever. Needs the lock, and gives it up meanwhile."""
        self._core.settled.wait_for(lambda: not entry.busy, self._core.options.io_timeout_s)
