"""The index at open: what the tiers hold -> a forest in which every block has its parents."""

from kvlake.keys.block import BlockKey
from kvlake.store.core import Core
from kvlake.tiers.tier import Record


def rebuild_index(core: Core) -> None:
    """Enter every block that the tiers hold; those without their parents, and the expired, are removed from the tiers.

    A parent can be missing after a lost tail of the journal or a corrupt block: what hangs on it can never be matched.
    Last uses are those of the sessions, which are kept; a block of no session counts as used when it was made.
    """
    now_s = core.clock.wall()
    found: dict[BlockKey, tuple[Record, int]] = {}
    for position, tier in enumerate(core.tiers):
        for record in tier.tier.records():
            held = found[record.key][1] if record.key in found else 0
            found[record.key] = (record, held | 1 << position)
    unfit: list[tuple[BlockKey, int]] = []
    for record, held in sorted(found.values(), key=lambda item: item[0].depth):
        expired = record.expires_s and record.expires_s <= now_s
        if expired or core.index.add(record, held) is None:
            unfit.append((record.key, held))
    for position, tier in enumerate(core.tiers):
        keys = [key for key, held in unfit if held >> position & 1]
        if keys:
            tier.remove(keys)
    core.counts["orphans_dropped"] += len(unfit)
    for state in sorted(core.sessions.by_id.values(), key=lambda state: state.last_use_s):
        for key in state.keys:
            entry = core.index.get(key)
            if entry is not None:
                entry.last_use_s = state.last_use_s
