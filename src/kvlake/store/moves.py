"""Decisions become moves: blocks are put where there is room, demoted, promoted and evicted. Any thread may call.

Each step decides under the store's lock, moves bytes outside it, and settles the outcome under it again. An entry
that a move reads or copies is `busy` until its release, a key on its way in is `entering`, one whose bytes are being
removed is `leaving`: so no two threads move the same block, and nothing is evicted under a move. What is lost
meanwhile is out of the index at once, and its bytes are removed when the move ends.
"""

from collections.abc import Iterable, Iterator, Sequence

from kvlake.keys.block import BlockKey
from kvlake.policy.admission import admit_promotion
from kvlake.policy.rank import Candidate, victims
from kvlake.store.candidates import copies, evictable, removable
from kvlake.store.core import Core
from kvlake.store.index import Entry
from kvlake.tiers.tier import PAGE_BYTES, Block, Get, Put, Read, aligned_buffer, pages_of

_BATCH_BYTES = 16 << 20
"""Payload copied at a time: long enough for large runs, short enough to hold nobody up."""

_CALL_BYTES = 64 << 20
"""Most payload in one call of a tier, so that a call's deadline does not depend on what a caller hands over at once."""

_ROOM_TRIES = 3


class Moves:
    """The moves of one store."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def put_with_room(self, position: int, blocks: Sequence[Block]) -> list[Put]:
        """Put blocks into one tier; where it is full, make room and try those again, while that helps."""
        outcomes: list[Put] = []
        for batch in _batches(blocks):
            outcomes += self._put_batch(position, batch)
        return outcomes

    def relieve(self, position: int) -> None:
        """Bring a tier that is above its high watermark down to the low one, as far as nothing is lost by it.

        Of the slowest tier there are no copies below: there it evicts.
        """
        core = self._core
        usage = core.tiers[position].usage()
        excess = core.options.watermarks.excess_bytes(usage.used_bytes, usage.capacity_bytes)
        if not excess:
            return
        if position == len(core.tiers) - 1:
            self.make_room(position, excess)
            return
        with core.lock:
            found = copies(core, position)
        self.drop_copies(position, self._choose(found, excess))

    def make_room(self, position: int, need_bytes: int) -> int:
        """Free at least `need_bytes` in a tier, if that can be; returns the payload bytes freed.

        Copies that a slower tier holds too are given up. What no slower tier will take is evicted, as all is in the
        slowest tier and above a broken one.
        """
        core = self._core
        with core.lock:
            found = removable(core, position)
        chosen = self._choose(found, need_bytes)
        with core.lock:
            doubled = {key for key in chosen if (entry := core.index.get(key)) and entry.held & core.below(position)}
        freed = self.drop_copies(position, doubled)
        return freed + self.evict(key for key in chosen if key not in doubled)

    def relieve_tenant(self, tenant: bytes, need_bytes: int) -> int:
        """Evict blocks that `tenant` put, until `need_bytes` are free; returns the bytes freed."""
        with self._core.lock:
            found = evictable(self._core, tenant)
        return self.evict(self._choose(found, need_bytes))

    def evict(self, keys: Iterable[BlockKey], *, wipe: bool = False) -> int:
        """Remove blocks from the store, in order; those in use or with a child are left. Returns payload bytes freed.

        With `wipe`, an owner's deletion, a pin does not hold, and moves under way are waited for.
        """
        core = self._core
        wanted = list(keys)
        gone: list[Entry] = []
        with core.settled:
            if wipe:
                core.settled.wait_for(lambda: not self._any_busy(wanted), core.options.io_timeout_s)
            for key in wanted:
                entry = core.index.get(key)
                if entry is not None and not ((entry.pins and not wipe) or entry.busy or entry.children):
                    self._take_out(entry)
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
            core.leaving.update(entry.key for entry in gone)
        core.tiers[position].remove([entry.key for entry in gone])
        self.release(gone)
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
            return all(entry.held & slowest for key in wanted if (entry := core.index.get(key)) is not None)

    def promote(self, landed: Sequence[tuple[BlockKey, memoryview]], *, asked: bool) -> int:
        """Copy blocks whose bytes are at hand into the fastest tier, those that it admits; returns how many it took."""
        core = self._core
        claimed: list[Entry] = []
        blocks: list[Block] = []
        with core.lock:
            for key, data in landed:
                entry = core.index.get(key)
                if entry is None or entry.held & 1 or key in core.leaving:
                    continue
                if admit_promotion(entry.reads, asked=asked):
                    entry.busy += 1
                    claimed.append(entry)
                    blocks.append(entry.block(data))
        try:
            return self._note_copies(0, claimed, self.put_with_room(0, blocks)) if blocks else 0
        finally:
            self.release(claimed)

    def lose(self, position: int, keys: Iterable[BlockKey]) -> None:
        """A tier turned out not to hold these: forget that, and what hangs on blocks that no tier holds any more."""
        core = self._core
        bit = 1 << position
        with core.lock:
            found = [entry for key in keys if (entry := core.index.get(key)) and entry.held & bit and not entry.busy]
            for entry in found:
                entry.held &= ~bit
                entry.busy += 1
                if entry.held and entry.held < bit:
                    core.stuck[entry.key] = Put.ERROR  # to be copied down once more
            core.leaving.update(entry.key for entry in found)
            gone = core.index.subtree(entry.key for entry in found if not entry.held)
            for entry in gone:
                self._take_out(entry)
            core.counts["lost_blocks"] += len(gone)
            unused = [entry for entry in gone if not entry.busy]
        # Should it hold them after all, since somebody else has just put them, they are gone now as the index says.
        core.tiers[position].remove([entry.key for entry in found])
        self.release(found)
        self._remove_bytes(unused)

    def release(self, entries: Sequence[Entry]) -> None:
        """A move of these entries has ended; those that have left the index meanwhile are removed from the tiers."""
        core = self._core
        with core.settled:
            for entry in entries:
                entry.busy -= 1
            ended = [entry for entry in entries if not entry.busy]
            gone = [entry for entry in ended if core.index.get(entry.key) is not entry]
            core.leaving.difference_update(entry.key for entry in ended if core.index.get(entry.key) is entry)
            core.settled.notify_all()
        self._remove_bytes(gone)

    def _put_batch(self, position: int, blocks: Sequence[Block]) -> list[Put]:
        tier = self._core.tiers[position]
        outcomes = tier.put(blocks)
        for _ in range(_ROOM_TRIES):
            full = [at for at, outcome in enumerate(outcomes) if outcome is Put.FULL]
            need = (1 + sum(pages_of(memoryview(blocks[at].data).nbytes) for at in full)) * PAGE_BYTES
            need = self._core.options.watermarks.room_bytes(need, tier.usage().capacity_bytes)
            if not full or not self.make_room(position, need):
                break
            # Others may have taken what was freed: hence more than one try.
            for at, outcome in zip(full, tier.put([blocks[at] for at in full]), strict=True):
                outcomes[at] = outcome
        return outcomes

    def _choose(self, found: list[Candidate], need_bytes: int) -> list[BlockKey]:
        return [block.key for block in victims(found, need_bytes, self._core.options.rank)]

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
                        if entry.busy and self._wait_for(entry):
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
        blocks: list[Block] = []
        copied: list[Entry] = []
        lost: list[BlockKey] = []
        try:
            for entry in batch:
                outcome, data = self._bytes_of(position, entry)
                if outcome is Get.HIT:
                    copied.append(entry)
                    blocks.append(entry.block(data))
                elif outcome in (Get.MISS, Get.CORRUPT):
                    lost.append(entry.key)
            answers = self.put_with_room(position + 1, blocks)
            self._note_copies(position + 1, copied, answers)
            with core.lock:
                for entry, answer in zip(copied, answers, strict=True):
                    core.stuck.pop(entry.key, None)
                    if answer not in (Put.STORED, Put.PRESENT) and core.index.get(entry.key) is entry:
                        core.stuck[entry.key] = answer
        finally:
            self.release(batch)
        if lost:
            self.lose(position, lost)

    def _note_copies(self, position: int, entries: Sequence[Entry], outcomes: Sequence[Put]) -> int:
        """Note what a tier has taken in beside another; returns how many. The entries are busy, and may have left."""
        core = self._core
        with core.lock:
            taken = [
                entry for entry, outcome in zip(entries, outcomes, strict=True) if outcome in (Put.STORED, Put.PRESENT)
            ]
            for entry in taken:
                entry.held |= 1 << position
            core.counts[f"copied_to_{core.tiers[position].name}_blocks"] += len(taken)
        return len(taken)

    def _bytes_of(self, position: int, entry: Entry) -> tuple[Get, memoryview]:
        tier = self._core.tiers[position]
        seen = tier.view(entry.key)
        if seen is not None:
            return Get.HIT, seen
        data = aligned_buffer(entry.nbytes)
        return tier.get([Read(entry.key, data)], self._core.options.get_timeout_s)[0], data

    def _take_out(self, entry: Entry) -> None:
        """Out of the index, its bytes still to be removed. Needs the lock."""
        self._core.index.drop(entry)
        self._core.leaving.add(entry.key)
        self._core.stuck.pop(entry.key, None)

    def _remove_bytes(self, gone: Sequence[Entry], *, wipe: bool = False) -> None:
        """Remove from the tiers what has been taken out of the index."""
        core = self._core
        if not gone:
            return
        for position, tier in enumerate(core.tiers):
            # A deletion asks every tier, for what the index may not know of.
            keys = [entry.key for entry in gone if wipe or entry.held >> position & 1]
            if not tier.remove(keys, wipe=wipe):
                core.count("unsure_removals")
        with core.settled:
            core.leaving.difference_update(entry.key for entry in gone)
            core.settled.notify_all()

    def _any_busy(self, keys: Sequence[BlockKey]) -> bool:
        return any(entry.busy for key in keys if (entry := self._core.index.get(key)) is not None)

    def _wait_for(self, entry: Entry) -> bool:
        """Wait until no move uses the entry, but not for ever. Needs the lock, and gives it up meanwhile."""
        return self._core.settled.wait_for(lambda: not entry.busy, self._core.options.io_timeout_s)


def _batches(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    batch: list[Block] = []
    nbytes = 0
    for block in blocks:
        batch.append(block)
        nbytes += memoryview(block.data).nbytes
        if nbytes >= _CALL_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
