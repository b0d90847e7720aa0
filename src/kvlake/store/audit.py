"""Do the index and the tiers agree? Beside traffic, too: what is only on its way is no disagreement."""

from kvlake.keys.block import BlockKey
from kvlake.store.core import Core
from kvlake.store.moves import Moves
from kvlake.tiers.tier import CheckReport, Problem


def audit(core: Core, moves: Moves, *, fix: bool) -> list[CheckReport]:
    """A report for each tier that holds other blocks than the index says; with `fix`, the index is right afterwards."""
    reports = []
    for position, guard in enumerate(core.tiers):
        missing, stray = _disagreement(core, position)
        if missing or stray:
            # A block that came and went while the tier was asked looks like one; it does not a second time.
            still_missing, still_stray = _disagreement(core, position)
            missing, stray = missing & still_missing, stray & still_stray
        problems = [Problem(key, f"indexed, but not in the {guard.name} tier") for key in missing]
        problems += [Problem(key, f"in the {guard.name} tier, but not indexed") for key in stray]
        if not problems:
            continue
        if fix:
            moves.lose(position, missing)
            guard.remove(list(stray))
        blocks, fixed = guard.usage().blocks, len(problems) if fix else 0
        reports.append(CheckReport(tier="index", blocks=blocks, nbytes=0, problems=tuple(problems), fixed=fixed))
    return reports


def _disagreement(core: Core, position: int) -> tuple[set[BlockKey], set[BlockKey]]:
    """Keys that the index has in a tier and the tier has not, and the other way round."""
    before, moving = _snapshot(core, position)
    held = {record.key for record in core.tiers[position].tier.records()}
    after, moving_now = _snapshot(core, position)
    moving |= moving_now
    return (before & after) - held - moving, held - before - after - moving


def _snapshot(core: Core, position: int) -> tuple[set[BlockKey], set[BlockKey]]:
    """Keys that the index has in a tier, and keys on their way into or out of some tier."""
    with core.lock:
        indexed = {entry.key for entry in core.index if entry.held >> position & 1}
        busy = {entry.key for entry in core.index if entry.busy}
        return indexed, busy | core.entering | core.leaving
