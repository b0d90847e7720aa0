"""Sessions on disk: a journal of JSON lines, each the new state of one session.

Keys are written once: a line says how many of the keys that the log already has still stand, and which follow. The log
keeps to its share of the store's capacity: when live sessions outgrow it, those longest unused are forgotten.
"""

import base64
import json
import logging
import os
from typing import Any, NamedTuple

from kvlake.keys.block import KEY_BYTES, BlockKey
from kvlake.store.session import SessionState, SessionTable, State
from kvlake.tiers.disk.device import Device
from kvlake.tiers.disk.journal import Frame, Journal, Origin

log = logging.getLogger(__name__)

NAME = "sessions.log"
_PURPOSE = b"kvsess\0\0"
_LINES = 1
_SLACK_BYTES = 256 << 10
_PLAIN = (
    "id", "tenant", "created_s", "last_use_s", "tokens", "turns", "idle_ttl_s", "pinned_until_s", "expires_s",
    "stop_reason", "pending_tool_call",
)  # fmt: skip


class SessionLog:
    """The log in one directory. Used by one thread at a time (`store.commit`), but for `draft`'s table."""

    def __init__(self, device: Device, budget_bytes: int, *, read_only: bool = False) -> None:
        self._device, self._budget_bytes, self._read_only = device, budget_bytes, read_only
        loaded = Journal.load(device, NAME, _PURPOSE)
        self._frames = loaded[1] if loaded else []
        self._journal: Journal | None = loaded[0] if loaded else None
        if self._journal is not None and not read_only:
            self._journal.cut_tail()
        self._rewritten_bytes = self._journal.nbytes if self._journal is not None else 0
        self._torn = False
        """A rewriting has failed, and which of the two logs has the name now is not known: only another mends it."""

    def replay(self) -> SessionTable:
        """The sessions that the log tells of; what was active when the process ended is idle now."""
        table = SessionTable()
        states: dict[str, SessionState] = {}
        for frame in self._frames:
            for line in frame.body.splitlines():
                _apply(json.loads(line), states)
        for state in states.values():
            table.add(state)
        table.changed.clear()
        self._frames = []
        return table

    def draft(self, table: SessionTable) -> "Draft | None":
        """What is to be written now; None for nothing. Quick: for use under the lock that guards the table."""
        if self._read_only or not table.changed:
            return None
        changed, table.changed = table.changed, {}
        lines = [_line(table.by_id.get(name), name, kept) for name, kept in changed.items()]
        grown = sum(map(len, lines)) + (self._journal.nbytes if self._journal is not None else 0)
        limit = min(self._budget_bytes // 2, _SLACK_BYTES + 4 * self._rewritten_bytes)
        if self._journal is None or self._torn or grown > limit:
            return Draft(b"\n".join(self._all_lines(table)), True, changed)
        return Draft(b"\n".join(lines), False, changed)

    def write(self, draft: "Draft") -> None:
        """Write a draft, durably. Raises OSError; its changes are then still to be written (`restore`)."""
        frames = [Frame(_LINES, draft.body)]
        if self._journal is not None and not draft.whole:
            self._journal.append(frames)
            return
        old, self._torn = self._journal, True
        self._journal = Journal.create(self._device, NAME, Origin(_PURPOSE, os.urandom(16), 0), frames)
        self._rewritten_bytes, self._torn = self._journal.nbytes, False
        if old is not None:
            old.close()

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _all_lines(self, table: SessionTable) -> list[bytes]:
        """The live sessions, newest first, as many as fit in a quarter of the budget; the rest is forgotten."""
        lines: list[bytes] = []
        room = self._budget_bytes // 4
        newest = sorted(table.by_id.values(), key=lambda state: -state.last_use_s)
        for position, state in enumerate(newest):
            line = _line(state, state.id, 0)
            room -= len(line) + 1
            if room < 0:
                log.warning("the session log is full: %d sessions longest unused are forgotten", len(newest) - position)
                for gone in newest[position:]:
                    table.remove(gone)
                table.changed.clear()
                break
            lines.append(line)
        return lines


class Draft(NamedTuple):
    """Lines to be written: the changed sessions, or the whole log anew."""

    body: bytes
    whole: bool
    changed: dict[str, int]

    def restore(self, table: SessionTable) -> None:
        """The draft could not be written: its sessions count as changed again."""
        for name, kept in self.changed.items():
            table.changed[name] = min(kept, table.changed.get(name, kept))


def _line(state: SessionState | None, name: str, kept: int) -> bytes:
    if state is None:
        return json.dumps({"id": name, "gone": True}).encode()
    fields: dict[str, Any] = {field: getattr(state, field) for field in _PLAIN}
    fields |= {"namespace": state.namespace.hex(), "state": state.state.value, "kept": kept}
    fields["more"] = base64.b64encode(b"".join(state.keys[kept:])).decode()
    fields["branches"] = base64.b64encode(b"".join(state.branches)).decode()
    return json.dumps(fields).encode()


def _apply(fields: dict[str, Any], states: dict[str, SessionState]) -> None:
    if fields.get("gone"):
        states.pop(fields["id"], None)
        return
    old = states.get(fields["id"])
    state = SessionState(**{field: fields[field] for field in _PLAIN}, namespace=bytes.fromhex(fields["namespace"]))
    state.state = State.ENDED if fields["state"] == State.ENDED else State.IDLE
    state.keys = (old.keys if old else [])[: fields["kept"]] + _split(fields["more"])
    state.branches = _split(fields["branches"])
    states[state.id] = state


def _split(text: str) -> list[BlockKey]:
    raw = base64.b64decode(text)
    return [BlockKey(raw[at : at + KEY_BYTES]) for at in range(0, len(raw), KEY_BYTES)]
