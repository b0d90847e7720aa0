"""Commits of a disk tier: the data is made durable first, then the journal that names it, then removed pages are
free.
"""

import threading
from itertools import groupby

from kvlake.tiers.disk.device import Device
from kvlake.tiers.disk.journal import Frame, Journal
from kvlake.tiers.disk.record import RECORD
from kvlake.tiers.disk.recover import ADDED, JOURNAL
from kvlake.tiers.disk.segments import Segments

_SLACK_BYTES = 64 << 10
"""A journal this small is never worth compacting."""

_RECORDS_PER_BLOCK = 2
"""A journal with more than this per live block is written anew."""


class Commits:
    """What has happened since the last commit, and the commit itself. Thread-safe."""

    def __init__(self, device: Device, segments: Segments, journal: Journal) -> None:
        self._device, self._segments, self._journal = device, segments, journal
        self.lock = threading.Lock()
        """Held across a commit's I/O; taken before the tier's own lock."""
        self._pending: list[Frame] = []  # guarded by the tier's lock
        self._astray = False  # whether the journal may have lost its name; guarded by lock

    @property
    def journal_bytes(self) -> int:
        return self._journal.nbytes

    def note(self, kind: int, body: bytes) -> None:
        """An entry for the next commit. Needs the tier's lock: entries are in the order of what happened."""
        if body:
            self._pending.append(Frame(kind, body))

    def commit(self, tier_lock: threading.Lock, index: dict[bytes, bytes]) -> bool:
        """Make durable all that was noted before; `index` has the records of all blocks, for a compaction.

        Returns whether it compacted. Raises OSError; what was noted is then noted still.
        """
        with self.lock:
            with tier_lock:
                pending, self._pending = self._pending, []
                released = self._segments.released()
                grown = self._journal.nbytes + sum(len(body) for _, body in pending)
                limit = _SLACK_BYTES + _RECORDS_PER_BLOCK * RECORD.size * len(index)
                compact = grown > limit or self._astray
                records = list(index.values()) if compact else []
            try:
                self._segments.sync()
                if compact:
                    self._rewrite(records)
                elif pending:
                    self._journal.append(_merged(pending))
            except OSError:
                with tier_lock:
                    self._pending[:0] = pending
                self._segments.release(released)
                raise
            self._segments.give_back(released)
            return compact

    def close(self) -> None:
        self._journal.close()

    def _rewrite(self, records: list[bytes]) -> None:
        old = self._journal
        # A rename may fail after all but its durability: an entry in the old log would then be in no log at all.
        self._astray = True
        self._journal = Journal.create(self._device, JOURNAL, old.origin, [Frame(ADDED, b"".join(records))])
        self._astray = False
        old.close()


def _merged(pending: list[Frame]) -> list[Frame]:
    """Neighbouring frames of one kind as one."""
    runs = groupby(pending, key=lambda frame: frame.kind)
    return [Frame(kind, b"".join(frame.body for frame in run)) for kind, run in runs]
