"""What time does to sessions and blocks: idle after a while without a turn, gone when they have expired."""

from enum import Enum

from kvlake.base.errors import SessionNotFoundError
from kvlake.policy.idle import idle_at_s
from kvlake.store.handle import Parts, Session
from kvlake.store.session import SessionState, State


class Fate(Enum):
    """What is due for a session."""

    NOTHING = "nothing"
    IDLE = "idle"
    DELETE = "delete"


def sweep(parts: Parts) -> None:
    """Idle what has not been used for its TTL; let go of what has expired."""
    core = parts.core
    with core.lock:
        now_s = core.clock.wall()
        names = [state.id for state in core.sessions.by_id.values() if fate(state, now_s) is not Fate.NOTHING]
        expiring = core.index if core.index.expiring else ()
        expired = [entry.key for entry in expiring if entry.expires_s and entry.expires_s <= now_s]
        old = [entry.key for entry in core.index.subtree(expired)]
    for name in names:
        _carry_out(parts, name)
    if old:
        parts.moves.evict(old)
        with core.lock:
            core.counts["expired_blocks"] += sum(key not in core.index for key in old)


def fate(state: SessionState, now_s: float) -> Fate:
    """What the passing of time asks for."""
    if state.expires_s and state.expires_s <= now_s:
        return Fate.DELETE
    due_s = idle_at_s(state.last_use_s, state.idle_ttl_s, pending_tool_call=state.pending_tool_call)
    if state.state is State.ACTIVE and due_s is not None and due_s <= now_s:
        return Fate.IDLE
    return Fate.NOTHING


def _carry_out(parts: Parts, name: str) -> None:
    core = parts.core
    try:
        with core.lock:
            # The sessions before this one took their time: it may have had a turn since, or be gone.
            due = fate(core.sessions.find(name), core.clock.wall())
        if due is Fate.DELETE:
            Session(parts, name).delete()
        elif due is Fate.IDLE:
            Session(parts, name).idle()
    except SessionNotFoundError:
        core.count("sessions_gone_before_their_time")
