"""Putting blocks in: what may enter, into which tier, and when it counts as present.

A block is present once a tier holds it and its parent is present. Between the two it is `entering`: invisible to
`match`, and not to be put by anybody else.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvlake.keys.block import KEY_BYTES, BlockKey
from kvlake.policy import quota
from kvlake.policy.admission import admit_put
from kvlake.store.background import Background
from kvlake.store.core import Core
from kvlake.store.index import Entry
from kvlake.store.moves import Moves
from kvlake.tiers.tier import Block, Put

Numbered = tuple[int, Block]
"""(position in the caller's batch, block)"""


@dataclass(slots=True)
class _Entering:
    """What one put is about to do."""

    fresh: list[Numbered] = field(default_factory=list)
    """To be stored; their keys are `entering`."""
    parents: list[Entry] = field(default_factory=list)
    """Those of `fresh` that are present; busy, so that they are not evicted to make room for their own children."""
    cut_off: list[Block] = field(default_factory=list)
    """Present, but only where nobody can read now."""


class Writes:
    """The writing side of one store."""

    def __init__(self, core: Core, moves: Moves, background: Background) -> None:
        self._core, self._moves, self._background = core, moves, background

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        """See `Store.put`."""
        core = self._core
        _expect_sound(blocks)
        outcomes = [Put.REFUSED] * len(blocks)
        if core.options.read_only:
            return outcomes
        entering = self._enter(blocks, outcomes)
        fresh = entering.fresh
        try:
            if core.options.quotas:
                fresh = self._within_quotas(fresh)
            held, results = self._place([block for _, block in fresh])
            self._settle(fresh, held, results, outcomes)
        finally:
            with core.lock:
                core.entering.difference_update(block.key for _, block in entering.fresh)
            self._moves.release(entering.parents)
        self._moves.promote([(block.key, memoryview(block.data)) for block in entering.cut_off], asked=True)
        with core.lock:
            for outcome in outcomes:
                core.counts[f"put_{outcome.value}"] += 1
        self._background.demote_soon([block.key for _, block in fresh] if len(core.tiers) > 1 else [])
        return outcomes

    def _enter(self, blocks: Sequence[Block], outcomes: list[Put]) -> _Entering:
        """Decide which blocks are to be stored, and mark them and their parents."""
        core = self._core
        found = _Entering()
        with core.lock:
            now_s = core.clock.wall()
            broken = sum(1 << position for position, tier in enumerate(core.tiers) if tier.breaker.is_open)
            for position, block in enumerate(blocks):
                entry = core.index.get(block.key)
                if entry is not None:
                    entry.last_use_s = now_s
                    outcomes[position] = Put.PRESENT
                    if not entry.held & ~broken and memoryview(block.data).nbytes == entry.nbytes:
                        found.cut_off.append(block)
                elif block.key in core.entering:
                    outcomes[position] = Put.PRESENT
                elif self._may_enter(block, now_s):
                    core.entering.add(block.key)
                    found.fresh.append((position, block))
            for key in {block.parent for _, block in found.fresh if block.depth}:
                parent = core.index.get(key)
                if parent is not None:
                    parent.busy += 1
                    found.parents.append(parent)
        return found

    def _may_enter(self, block: Block, now_s: float) -> bool:
        core = self._core
        if block.key in core.leaving:
            return False
        over = core.sessions.is_over(block.key)
        if not admit_put(expires_s=block.expires_s, now_s=now_s, session_ended=over):
            return False
        return not block.depth or block.parent in core.index or block.parent in core.entering

    def _place(self, blocks: Sequence[Block]) -> tuple[dict[BlockKey, int], dict[BlockKey, Put]]:
        """Put blocks into the fastest tier that takes each. Returns the tiers that now hold them, and the outcomes."""
        held: dict[BlockKey, int] = {}
        outcomes: dict[BlockKey, Put] = {}
        remaining = list(blocks)
        for position in range(len(self._core.tiers)):
            if not remaining:
                break
            results = self._moves.put_with_room(position, remaining)
            outcomes.update((block.key, result) for block, result in zip(remaining, results, strict=True))
            taken = {
                block.key: 1 << position
                for block, result in zip(remaining, results, strict=True)
                if result in (Put.STORED, Put.PRESENT)
            }
            held |= taken
            remaining = [block for block in remaining if block.key not in taken]
        return held, outcomes

    def _settle(
        self, fresh: list[Numbered], held: dict[BlockKey, int], results: dict[BlockKey, Put], outcomes: list[Put]
    ) -> None:
        """Enter in the index what tiers have taken; what turns out to have no parent there is taken out again."""
        core = self._core
        unfit: list[tuple[BlockKey, int]] = []
        with core.lock:
            now_s = core.clock.wall()
            for position, block in fresh:
                tiers = held.get(block.key, 0)
                entry = core.index.add(block.record(now_s), tiers) if tiers else None
                if entry is not None:
                    entry.last_use_s = now_s  # a record's time is in whole seconds
                    outcomes[position] = Put.STORED
                elif tiers:
                    unfit.append((block.key, tiers))
                else:
                    outcomes[position] = results.get(block.key, Put.REFUSED)
        for position, guard in enumerate(core.tiers):
            guard.remove([key for key, tiers in unfit if tiers >> position & 1])

    def _within_quotas(self, fresh: list[Numbered]) -> list[Numbered]:
        """What of `fresh` its tenants' quotas let in, once their oldest blocks have made room."""
        core = self._core
        incoming: Counter[bytes] = Counter()
        for _, block in fresh:
            incoming[block.tenant] += memoryview(block.data).nbytes
        for tenant, nbytes in incoming.items():
            limit = quota.quota_of(core.tenants.get(tenant, ""), core.options.quotas)
            excess = quota.excess_bytes(core.index.tenant_bytes[tenant], nbytes, limit)
            if excess and quota.fits(nbytes, limit):
                excess -= self._moves.relieve_tenant(tenant, excess)
            if excess > 0:
                core.count("refused_by_quota", sum(block.tenant == tenant for _, block in fresh))
                fresh = [item for item in fresh if item[1].tenant != tenant]
        return fresh


def _expect_sound(blocks: Sequence[Block]) -> None:
    """Raise ValueError for what no tier could take, before anything has entered."""
    for block in blocks:
        if len(block.key) != KEY_BYTES or not memoryview(block.data).c_contiguous:
            raise ValueError(
                f"block {bytes(block.key).hex()!r} needs a key of {KEY_BYTES} bytes and C-contiguous data; "
                "keys come from kvlake.chain_keys, and bytes or memoryview(...).cast('B') are contiguous"
            )
