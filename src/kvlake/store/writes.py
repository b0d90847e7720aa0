"""Putting blocks in: what may enter, into which tier, and when it counts as present.

A block is present once a tier holds it and its parent is present. Between the two it is `entering`: invisible to
`match`, and not to be put by anybody else.
"""

from collections import Counter
from collections.abc import Sequence

from kvlake.keys.block import BlockKey
from kvlake.policy import quota
from kvlake.policy.admission import admit_put
from kvlake.store.background import Background
from kvlake.store.core import Core
from kvlake.store.index import Entry
from kvlake.store.moves import Moves
from kvlake.tiers.tier import Block, Put

Numbered = tuple[int, Block]
"""(position in the caller's batch, block)"""


class Writes:
    """The writing side of one store."""

    def __init__(self, core: Core, moves: Moves, background: Background) -> None:
        self._core, self._moves, self._background = core, moves, background

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        """See `Store.put`."""
        core = self._core
        outcomes = [Put.REFUSED] * len(blocks)
        entered, parent = self._enter(blocks, outcomes)
        try:
            fresh = self._within_quotas(entered) if core.options.quotas else entered
            held, results = self._moves.place([block for _, block in fresh])
            self._settle(fresh, held, results, outcomes)
        finally:
            with core.settled:
                core.entering.difference_update(block.key for _, block in entered)
                if parent is not None:
                    parent.busy -= 1
                core.settled.notify_all()
        with core.lock:
            for outcome in outcomes:
                core.counts[f"put_{outcome.value}"] += 1
        self._background.demote_soon([block.key for _, block in fresh] if len(core.tiers) > 1 else [])
        return outcomes

    def _enter(self, blocks: Sequence[Block], outcomes: list[Put]) -> tuple[list[Numbered], Entry | None]:
        """Which blocks are to be stored; they are marked as entering, and their chain's parent as busy."""
        core = self._core
        fresh: list[Numbered] = []
        with core.lock:
            now_s = core.clock.wall()
            for position, block in enumerate(blocks):
                entry = core.index.get(block.key)
                if entry is not None:
                    entry.last_use_s = now_s
                    outcomes[position] = Put.PRESENT
                elif block.key in core.entering:
                    outcomes[position] = Put.PRESENT
                elif self._may_enter(block, now_s):
                    core.entering.add(block.key)
                    fresh.append((position, block))
            # Busy, the parent cannot be evicted to make room for its own children.
            parent = core.index.get(fresh[0][1].parent) if fresh else None
            if parent is not None:
                parent.busy += 1
        return fresh, parent

    def _may_enter(self, block: Block, now_s: float) -> bool:
        core = self._core
        if block.key in core.leaving:
            return False
        over = core.sessions.is_over(block.key)
        if not admit_put(expires_s=block.expires_s, now_s=now_s, session_ended=over):
            return False
        return not block.depth or block.parent in core.index or block.parent in core.entering

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
                if tiers and core.index.add(block.record(now_s), tiers) is not None:
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
