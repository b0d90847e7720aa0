"""The store: blocks by key over several tiers, and the sessions that they belong to.

    engine --put--> memory --written through--> disk        (background thread)
    engine <--get-- memory <--promoted-- disk               (within a deadline; any fault is a miss, counted)

The parts: `index` knows the blocks, `moves` moves them, `writes` takes them in, `reads` gets them back, `handle` is a
session, `background` does what nobody asks for, `guard` stands before each tier. Decisions are `kvlake.policy`'s.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import TIMEOUT_MAX
from types import TracebackType

from kvlake.base.clock import Clock
from kvlake.base.errors import BufferSizeError, StoreClosedError
from kvlake.keys.block import BlockKey
from kvlake.store.audit import audit
from kvlake.store.background import Background
from kvlake.store.commit import Commit
from kvlake.store.core import Core, StoreOptions
from kvlake.store.handle import Parts, Session
from kvlake.store.moves import Moves
from kvlake.store.reads import Reads
from kvlake.store.recover import rebuild_index
from kvlake.store.session import Deleted, SessionInfo, SessionState
from kvlake.store.sessionlog import SessionLog
from kvlake.store.sweep import sweep
from kvlake.store.writes import Writes
from kvlake.tiers.tier import Block, Buffer, CheckReport, Get, Put, Tier, Usage

__all__ = ["Deleted", "Session", "SessionInfo", "Store", "StoreOptions"]

_LAST_PATIENCE_S = 2.0
"""What a tier that has already failed to commit is given to end its calls before it is left open."""


class Store:
    """Blocks over tiers, fastest first. Thread-safe. `open_store` makes one from settings.

    Nothing that goes wrong in a tier is raised by `match`, `get`, `put` or `prefetch`: it ends as a miss.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        options: StoreOptions | None = None,
        *,
        session_log: SessionLog | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not tiers:
            raise ValueError("a store needs at least one tier")
        self._core = core = Core(tiers, options or StoreOptions(), clock)
        if session_log is not None:
            core.sessions = session_log.replay()
        rebuild_index(core)
        self._moves = Moves(core)
        self._reads = Reads(core, self._moves)
        self._commit = Commit(core, session_log)
        self._idle_callbacks: list[Callable[[str], None]] = []
        self._closed = False  # guarded by the core's lock
        self._background = Background(core, self._moves, self._commit, lambda: sweep(self._parts))
        self._writes = Writes(core, self._moves, self._background)
        self._parts = Parts(core, self._moves, self._reads, self._background, self._commit, self._tell_idle)
        if not core.options.read_only:
            self._background.start()

    def __repr__(self) -> str:
        tiers = ", ".join(repr(guard.tier) for guard in self._core.tiers)
        return f"<Store {len(self._core.index)} blocks, {len(self._core.sessions.by_id)} sessions: {tiers}>"

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def match(self, keys: Sequence[BlockKey]) -> int:
        """How many leading blocks of the chain `keys` are present, in whatever tier."""
        return self._core.index.match(keys, self._core.clock.wall())

    def match_scan(self, keys: Sequence[BlockKey]) -> int:
        """The same, looking up one key after the other: the reference for `match`."""
        return self._core.index.scan(keys, self._core.clock.wall())

    def block_nbytes(self, key: BlockKey) -> int | None:
        """Payload bytes of a block; None when it is not present."""
        entry = self._core.index.get(key)
        return entry.nbytes if entry is not None else None

    def get(self, keys: Sequence[BlockKey], into: Sequence[Buffer], *, timeout_s: float | None = None) -> list[Get]:
        """Copy blocks into the caller's writable buffers, one outcome each; page-aligned ones are read into directly.

        `timeout_s` (default: the store's `get_timeout_s`) bounds the wait for slower tiers; math.inf waits on the
        caller's own thread. After TIMEOUT a late read may still write the buffer: it must not be used again. Raises
        BufferSizeError for a buffer that is not as long as its block.
        """
        self._check_open()
        views = [memoryview(buffer).cast("B") for buffer in into]
        if len(views) != len(keys):
            raise BufferSizeError(f"{len(keys)} keys and {len(views)} buffers; give each key a buffer of its own")
        timeout_s = self._core.options.get_timeout_s if timeout_s is None else timeout_s
        return self._reads.get(keys, views, timeout_s)

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        """Take in blocks, parents before children; copies are made before this returns.

        A block whose parent is not present is REFUSED: it could never be matched.
        """
        self._check_open()
        return self._writes.put(blocks)

    @contextmanager
    def pin(self, keys: Iterable[BlockKey]) -> Iterator[int]:
        """Hold blocks against eviction while the `with` block lasts; gives the number that were present."""
        core = self._core
        with core.lock:
            entries = [entry for key in keys if (entry := core.index.get(key)) is not None]
            for entry in entries:
                entry.pins += 1
        try:
            yield len(entries)
        finally:
            with core.lock:
                for entry in entries:
                    entry.pins -= 1

    def evict(self, keys: Sequence[BlockKey]) -> int:
        """Remove blocks now, deepest first; pinned ones, and parents of what stays, are left. Returns bytes freed.

        Raises StoreBusyError where the store is open for reading only.
        """
        self._check_open()
        core = self._core
        core.expect_writable()
        with core.lock:
            pinned = core.sessions.pinned(core.clock.wall())
            found = [entry for key in keys if (entry := core.index.get(key)) is not None and key not in pinned]
        return self._moves.evict(entry.key for entry in sorted(found, key=lambda entry: -entry.depth))

    def prefetch(self, keys: Sequence[BlockKey]) -> "Future[int]":
        """Bring blocks into the fastest tier; the result is how many leading ones it holds then."""
        self._check_open()
        return self._reads.prefetch(keys)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was put is in the slowest tier and durable; False when that failed or took too long."""
        self._check_open()
        return self._background.catch_up(timeout_s) and self._commit()

    def check(self, *, fix: bool = False) -> list[CheckReport]:
        """Audit every tier, and whether the index agrees with them; with `fix`, drop what is bad."""
        self._check_open()
        core = self._core
        self._background.drain(None)
        reports = [guard.tier.check(fix=fix) for guard in core.tiers]
        return reports + audit(core, self._moves, fix=fix)

    def counters(self) -> dict[str, int]:
        """What has happened since the store was opened, by name."""
        core = self._core
        with core.lock:
            counts = dict(core.counts)
        for guard in core.tiers:
            counts |= guard.counters()
        return {name: count for name, count in sorted(counts.items()) if count}

    def usage(self) -> dict[str, Usage]:
        """Room and use of each tier, by name, fastest first."""
        return {guard.name: guard.usage() for guard in self._core.tiers}

    def tiers(self) -> list[Tier]:
        """The tiers themselves, fastest first."""
        return [guard.tier for guard in self._core.tiers]

    def session(self, session_id: str, *, tenant: str = "default", namespace: bytes = b"") -> Session:
        """The session of that name, made if it is not there. Raises ValueError when it is another tenant's."""
        self._check_open()
        core = self._core
        with core.lock:
            state = core.sessions.by_id.get(session_id)
            if state is None:
                now_s = core.clock.wall()
                core.sessions.add(SessionState(session_id, tenant, namespace, now_s, now_s))
            elif state.tenant != tenant:
                raise ValueError(f"session {session_id!r} is another tenant's; give its tenant, or another name")
        return Session(self._parts, session_id)

    def find_session(self, session_id: str) -> Session:
        """The session of that name. Raises SessionNotFoundError."""
        with self._core.lock:
            self._core.sessions.find(session_id)
        return Session(self._parts, session_id)

    def sessions(self, tenant: str | None = None) -> list[SessionInfo]:
        """All sessions, or one tenant's, most recently used first."""
        with self._core.lock:
            states = [state for state in self._core.sessions.by_id.values() if tenant in (None, state.tenant)]
            names = [state.id for state in sorted(states, key=lambda state: -state.last_use_s)]
            return [Session(self._parts, name).describe() for name in names]

    def on_idle(self, callback: Callable[[str], None]) -> None:
        """Have `callback(session_id)` called when a session goes idle or is deleted, for an engine to free its part."""
        self._idle_callbacks.append(callback)

    def tenant_digest(self, tenant: str) -> bytes:
        """The 8 bytes that stand for a tenant in a `Block`."""
        return self._core.tenant_digest(tenant)

    def close(self) -> None:
        """Write through what is left, make it durable and let go of the tiers.

        A tier that hangs is waited for no longer than a call or two may take (`io_timeout_s`), and is left open.
        """
        patience_s = min(self._core.options.io_timeout_s, TIMEOUT_MAX)
        with self._core.lock:
            was_closed, self._closed = self._closed, True
        if was_closed:
            return
        if not (self._background.stop(patience_s) and self._commit()):
            patience_s = min(patience_s, _LAST_PATIENCE_S)
        self._reads.close()
        self._commit.close(patience_s)
        for guard in self._core.tiers:
            guard.close(patience_s)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("this store is closed; open it again with kvlake.open_store(path)")

    def _tell_idle(self, session_id: str) -> None:
        for callback in self._idle_callbacks:
            self._background.tell(callback, session_id)
