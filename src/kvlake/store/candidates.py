"""What a policy may choose from: the store's blocks -> candidates. All of it needs the store's lock."""

from kvlake.keys.block import NO_PARENT, BlockKey
from kvlake.policy.rank import Candidate
from kvlake.store.core import Core
from kvlake.store.index import Entry


def droppable(core: Core, position: int) -> list[Candidate]:
    """Blocks whose copy in one tier may go, since a slower tier holds them as well."""
    below, kept = core.below(position), _kept(core)
    return [
        _candidate(core, entry)
        for entry in core.index
        if entry.held >> position & 1 and entry.held & below and entry.key not in kept
    ]


def evictable(core: Core, *, position: int | None = None, tenant: bytes | None = None) -> list[Candidate]:
    """Blocks that may leave the store: all, those that one tier holds, or those that one tenant put."""
    kept = _kept(core)
    for entry in core.index:
        foreign = tenant is not None and entry.tenant != tenant
        if foreign or (position is not None and not entry.held >> position & 1):
            # Its ancestors stay with it, although they may themselves be of the kind that is looked for.
            _keep_line(core, entry, kept)
    return [_candidate(core, entry) for entry in core.index if entry.key not in kept]


def _kept(core: Core) -> set[BlockKey]:
    """Blocks that must stay now: pinned, in a move, or an ancestor of such."""
    kept: set[BlockKey] = set()
    pinned = core.sessions.pinned(core.clock.wall())
    for entry in core.index:
        if entry.pins or entry.busy or entry.key in pinned:
            _keep_line(core, entry, kept)
    return kept


def _keep_line(core: Core, entry: Entry | None, kept: set[BlockKey]) -> None:
    while entry is not None and entry.key not in kept:
        kept.add(entry.key)
        entry = core.index.get(entry.parent)


def _candidate(core: Core, entry: Entry) -> Candidate:
    parent = entry.parent if entry.depth else NO_PARENT
    sessions = core.sessions
    return Candidate(
        entry.key,
        parent,
        entry.depth,
        entry.nbytes,
        entry.last_use_s,
        sessions.holders.get(entry.key, 0),
        sessions.is_over(entry.key),
    )
