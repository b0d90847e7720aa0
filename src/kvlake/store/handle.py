"""A session as its user holds it: turn, idle, resume, pin, fork, delete, describe, hint."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from kvlake.keys.block import BlockKey
from kvlake.store.background import Background
from kvlake.store.core import Core
from kvlake.store.moves import Moves
from kvlake.store.reads import Reads
from kvlake.store.session import Deleted, SessionInfo, SessionState, State


@dataclass(frozen=True, slots=True)
class Parts:
    """What a session's operations are made of."""

    core: Core
    moves: Moves
    reads: Reads
    background: Background
    commit: Callable[[], bool]
    tell_idle: Callable[[str], None]


class Session:
    """One conversation. Every method may be called from any thread; a deleted session raises SessionNotFoundError."""

    def __init__(self, parts: Parts, session_id: str) -> None:
        self._parts, self.id = parts, session_id

    def __repr__(self) -> str:
        info = self.describe()
        return f"<Session {self.id!r} {info.state}, {info.tokens} tokens in {info.present_blocks}/{info.blocks} blocks>"

    def turn(self, keys: Sequence[BlockKey], tokens: int) -> None:
        """The conversation now is the chain `keys`, first to last, of `tokens` tokens; the session is active.

        A chain that leaves the old one part way (an edited or regenerated turn) lets go of the old one's rest.
        """
        core = self._parts.core
        with core.lock:
            state, now_s = self._state(), core.clock.wall()
            core.sessions.set_state(state, State.ACTIVE)
            core.sessions.set_keys(state, keys)
            state.tokens, state.last_use_s = tokens, now_s
            state.turns += 1
            state.pending_tool_call, state.idle_ttl_s = False, core.options.idle_ttl_s
            for key in keys:
                entry = core.index.get(key)
                if entry is not None:
                    entry.last_use_s = now_s
        self._parts.background.demote_soon([])

    def idle(self, ttl_s: float | None = None) -> None:
        """Go idle: the disk keeps the blocks, memory is freed. With `ttl_s`, in that many seconds unless a turn comes.

        Returns when the blocks are durable and what no other active session needs is out of memory.
        """
        core = self._parts.core
        with core.lock:
            state = self._state()
            if ttl_s is not None:
                state.idle_ttl_s = ttl_s + max(0.0, core.clock.wall() - state.last_use_s)
                state.pending_tool_call = False  # a time that was said outweighs the patience for tools
                core.sessions.note(state, len(state.keys))
                return
            if state.state is State.ACTIVE:
                core.sessions.set_state(state, State.IDLE)
            keys = list(state.keys)
        self._parts.tell_idle(self.id)
        self._parts.moves.demote(keys)
        self._parts.commit()
        with core.lock:
            unneeded = [key for key in reversed(keys) if not core.sessions.active.get(key)]
        for position, tier in enumerate(core.tiers[:-1]):
            self._parts.moves.drop_copies(position, unneeded)
            tier.trim()

    def resume(self) -> "Future[int]":
        """Say that a turn is about to come: the blocks are brought into memory ahead of it.

        The result is the number of leading blocks in memory then.
        """
        core = self._parts.core
        with core.lock:
            state = self._state()
            if state.state is State.IDLE:
                core.sessions.set_state(state, State.ACTIVE)
            state.last_use_s, state.idle_ttl_s = core.clock.wall(), core.options.idle_ttl_s
            keys = list(state.keys)
        return self._parts.reads.prefetch(keys)

    def pin(self, ttl_s: float) -> None:
        """Hold the blocks against eviction for `ttl_s` seconds of wall-clock time; 0 lets go."""
        core = self._parts.core
        with core.lock:
            state = self._state()
            state.pinned_until_s = core.clock.wall() + ttl_s if ttl_s > 0 else 0.0
            core.sessions.note(state, len(state.keys))
        self._parts.background.demote_soon([])

    def fork(self, new_id: str) -> "Session":
        """A new session with the same blocks, held once. Raises ValueError when `new_id` is taken."""
        core = self._parts.core
        with core.lock:
            state = self._state()
            if new_id in core.sessions.by_id:
                raise ValueError(f"session {new_id!r} is there already; delete it first, or fork to another name")
            now_s = core.clock.wall()
            twin = replace(state, id=new_id, keys=list(state.keys), created_s=now_s, last_use_s=now_s)
            twin.branches = list(state.branches)
            twin.state, twin.pinned_until_s = State.IDLE, 0.0
            core.sessions.add(twin)
        self._parts.background.demote_soon([])
        return Session(self._parts, new_id)

    def delete(self) -> Deleted:
        """Remove the session and all its blocks that no other session holds, on every tier, their bytes overwritten.

        What its edited turns have let go of goes with them, and so do blocks of no session that continue such a block.
        When this returns the deletion is durable, unless `wiped` is False. Raises StoreBusyError where the store is
        open for reading only.
        """
        core = self._parts.core
        core.expect_writable()
        with core.lock:
            state = self._state()
            doomed = core.sessions.only_holder(state)
            core.sessions.remove(state)
            unsure = core.counts["unsure_removals"]
        self._parts.tell_idle(self.id)
        self._parts.background.drain(core.options.io_timeout_s)
        with core.lock:
            entries = core.index.subtree(doomed)
            # What continues these blocks without a session of its own goes with them; another session's stays.
            entries = [entry for entry in entries if not core.sessions.holders.get(entry.key)]
        freed = self._parts.moves.evict([entry.key for entry in entries], wipe=True)
        with core.lock:
            left = [entry for entry in entries if entry.key in core.index]
            wiped = core.counts["unsure_removals"] == unsure and not left
        return Deleted(blocks=len(entries) - len(left), nbytes=freed, wiped=self._parts.commit() and wiped)

    def hint(
        self, *, end: bool = False, stop_reason: str | None = None, pending_tool_call: bool = False,
        ttl_s: float | None = None,
    ) -> None:  # fmt: skip
        """What the application knows: the session has ended; why generation stopped; that a tool call is under way;
        that nothing of it is wanted after `ttl_s` seconds of wall-clock time."""
        core = self._parts.core
        with core.lock:
            state = self._state()
            state.stop_reason = stop_reason if stop_reason is not None else state.stop_reason
            state.pending_tool_call = pending_tool_call
            if ttl_s is not None:
                state.expires_s = core.clock.wall() + ttl_s
            core.sessions.set_state(state, State.ENDED if end else state.state)
        self._parts.background.demote_soon([])

    def describe(self) -> SessionInfo:
        """The session as it is now."""
        core = self._parts.core
        with core.lock:
            state, sessions = self._state(), core.sessions
            entries = [entry for key in state.keys if (entry := core.index.get(key)) is not None]
            by_tier = {
                tier.name: sum(entry.nbytes for entry in entries if entry.held >> position & 1)
                for position, tier in enumerate(core.tiers)
            }
            shared = sum(entry.nbytes for entry in entries if sessions.holders[entry.key] > 1)
            return SessionInfo(
                id=state.id, tenant=state.tenant, state=state.state.value, turns=state.turns, tokens=state.tokens,
                blocks=len(state.keys), present_blocks=core.index.match(state.keys, core.clock.wall()),
                bytes_by_tier=by_tier, shared_bytes=shared, created_s=state.created_s, last_use_s=state.last_use_s,
                pinned_until_s=state.pinned_until_s, expires_s=state.expires_s, stop_reason=state.stop_reason,
                pending_tool_call=state.pending_tool_call,
            )  # fmt: skip

    def _state(self) -> SessionState:
        return self._parts.core.sessions.find(self.id)
