"""What a policy may choose from: the store's blocks -> candidates. All of it needs the store's lock."""

from kvlake.keys.block import NO_PARENT
from kvlake.policy.rank import Candidate
from kvlake.store.core import Core
from kvlake.store.index import Entry
from kvlake.tiers.tier import PAGE_BYTES, Put, pages_of


def copies(core: Core, position: int) -> list[Candidate]:
    """Blocks whose copy in one tier may go, since a slower tier holds them as well; sized as tiers allocate them."""
    below, kept = core.below(position), _kept(core)
    return [
        _candidate(core, entry, pages_of(entry.nbytes) * PAGE_BYTES)
        for entry in core.index
        if entry.held >> position & 1 and entry.held & below and entry.key not in kept
    ]


def removable(core: Core, position: int) -> list[Candidate]:
    """Blocks that may go from one tier to make room for others: copies, and what no slower tier will take.

    That is everything, if this is the slowest or those below are broken; else what was refused, not what failed.
    """
    found = {block.key: block for block in copies(core, position)}
    alone = all(tier.breaker.is_open for tier in core.tiers[position + 1 :])
    refused = {key for key, answer in core.stuck.items() if answer is not Put.ERROR}
    if alone or refused:
        kept = _kept(core)
        for entry in core.index:
            if not (entry.held >> position & 1 and (alone or entry.key in refused)):
                _keep_line(core, entry, kept)
        for entry in core.index:
            if entry.key not in kept:
                found[entry.key] = _candidate(core, entry, pages_of(entry.nbytes) * PAGE_BYTES)
    return list(found.values())


def evictable(core: Core, tenant: bytes) -> list[Candidate]:
    """Blocks of one tenant that may leave the store, sized as its quota counts them."""
    kept = _kept(core)
    for entry in core.index:
        if entry.tenant != tenant:
            # Its ancestors stay with it, although they may themselves be the tenant's.
            _keep_line(core, entry, kept)
    return [_candidate(core, entry, entry.nbytes) for entry in core.index if entry.key not in kept]


def _kept(core: Core) -> set[bytes]:
    """Keys of blocks that must stay now: pinned, in a move, or an ancestor of such."""
    kept: set[bytes] = set()
    pinned = core.sessions.pinned(core.clock.wall())
    for entry in core.index:
        if entry.pins or entry.busy or entry.key in pinned:
            _keep_line(core, entry, kept)
    return kept


def _keep_line(core: Core, entry: Entry | None, kept: set[bytes]) -> None:
    while entry is not None and entry.key not in kept:
        kept.add(entry.key)
        entry = core.index.get(entry.parent)


def _candidate(core: Core, entry: Entry, nbytes: int) -> Candidate:
    parent = entry.parent if entry.depth else NO_PARENT
    sessions = core.sessions
    return Candidate(
        entry.key,
        parent,
        entry.depth,
        nbytes,
        entry.last_use_s,
        sessions.holders.get(entry.key, 0),
        sessions.is_over(entry.key),
    )
