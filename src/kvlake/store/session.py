"""Sessions: one conversation each, as an ordered chain of blocks that several may share.

    new --turn--> active --idle / TTL--> idle --turn / resume--> active
                    any --hint(end)--> ended            any --delete--> gone

The table counts, for each block, the sessions that hold it, and which of them are active or over. The store asks those
counts before it frees, deletes or ranks a block; so a shared prefix stays while any session needs it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvlake.base.errors import SessionNotFoundError
from kvlake.keys.block import BlockKey


class State(StrEnum):
    """Where a session is in its life."""

    ACTIVE = "active"
    IDLE = "idle"
    ENDED = "ended"


@dataclass(slots=True)
class SessionState:
    """What the store keeps of a session. Guarded by the store's lock."""

    id: str
    tenant: str
    namespace: bytes
    created_s: float
    last_use_s: float
    state: State = State.IDLE
    keys: list[BlockKey] = field(default_factory=list)
    branches: list[BlockKey] = field(default_factory=list)
    """First blocks of what edited turns have let go of, so that a deletion finds that as well."""
    tokens: int = 0
    turns: int = 0
    idle_ttl_s: float | None = None
    pinned_until_s: float = 0.0
    expires_s: float = 0.0
    stop_reason: str | None = None
    pending_tool_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session as it is now: exact counts of its present blocks, by tier."""

    id: str
    tenant: str
    state: str
    turns: int
    tokens: int
    blocks: int
    present_blocks: int
    bytes_by_tier: dict[str, int]
    """Payload bytes of its blocks in each tier; a block in two tiers counts in both."""
    shared_bytes: int
    """Payload bytes of its blocks that another session holds too, each once."""
    created_s: float
    last_use_s: float
    pinned_until_s: float
    expires_s: float
    stop_reason: str | None
    pending_tool_call: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What a deletion removed: blocks and payload bytes that no other session holds, on every tier."""

    blocks: int
    nbytes: int
    wiped: bool
    """Every copy is overwritten and the removal is durable; False where a tier failed while doing so."""


class SessionTable:
    """All sessions by id, and who holds which block. Guarded by the store's lock."""

    def __init__(self) -> None:
        self.by_id: dict[str, SessionState] = {}
        self.holders: Counter[BlockKey] = Counter()
        """Sessions that hold a block."""
        self.active: Counter[BlockKey] = Counter()
        """Active sessions that hold a block."""
        self.ended: Counter[BlockKey] = Counter()
        """Ended sessions that hold a block."""
        self.changed: dict[str, int] = {}
        """Sessions to be written to the log, with how many of their keys the log has right already."""

    def find(self, session_id: str) -> SessionState:
        """Raises SessionNotFoundError for an unknown id."""
        state = self.by_id.get(session_id)
        if state is None:
            raise SessionNotFoundError(f"no session {session_id!r}; `kvlake ls` lists the sessions of a store")
        return state

    def add(self, state: SessionState) -> None:
        self.by_id[state.id] = state
        self._count(state, state.keys, +1)
        self.changed[state.id] = 0

    def remove(self, state: SessionState) -> None:
        del self.by_id[state.id]
        self._count(state, state.keys, -1)
        self.changed[state.id] = 0

    def set_keys(self, state: SessionState, keys: Sequence[BlockKey]) -> None:
        """Give the session a new chain; what it shares with the old one is kept as it was counted."""
        kept = 0
        for old, new in zip(state.keys, keys, strict=False):
            if old != new:
                break
            kept += 1
        if kept < len(state.keys) and state.keys[kept] not in state.branches:
            state.branches.append(state.keys[kept])
        self._count(state, state.keys[kept:], -1)
        self._count(state, keys[kept:], +1)
        state.keys[kept:] = keys[kept:]
        self.note(state, kept)

    def set_state(self, state: SessionState, new: State) -> None:
        if state.state is not new:
            self._count(state, state.keys, -1)
            state.state = new
            self._count(state, state.keys, +1)
        self.note(state, len(state.keys))

    def note(self, state: SessionState, kept_keys: int) -> None:
        """The session has changed, but for its first `kept_keys` keys."""
        self.changed[state.id] = min(kept_keys, self.changed.get(state.id, kept_keys))

    def only_holder(self, state: SessionState) -> list[BlockKey]:
        """Keys of the session that no other holds, and of what it let go that nobody holds."""
        mine = [key for key in state.keys if self.holders[key] <= 1]
        return mine + [key for key in state.branches if not self.holders.get(key)]

    def is_over(self, key: BlockKey) -> bool:
        """Every session that holds the block has ended (and there is one)."""
        held = self.holders.get(key, 0)
        return held > 0 and self.ended.get(key, 0) == held

    def pinned(self, now_s: float) -> set[BlockKey]:
        """Keys of the sessions whose pin still holds."""
        return {key for state in self.by_id.values() if state.pinned_until_s > now_s for key in state.keys}

    def _count(self, state: SessionState, keys: Iterable[BlockKey], by: int) -> None:
        counters = [self.holders]
        if state.state is State.ACTIVE:
            counters.append(self.active)
        elif state.state is State.ENDED:
            counters.append(self.ended)
        for key in keys:
            for counter in counters:
                counter[key] += by
                if not counter[key]:
                    del counter[key]
