"""An append-only log of checksummed frames: what survives is always a prefix of what was written.

    frame: magic 4s, kind u32, sequence u64, length u64, checksum u64, body

The checksum is XXH3-64 of the body seeded with the frame's kind and the checksum of the frame before, so that a frame
left over from a failed commit never follows a later one.

The first frame (kind HEADER) names the store and the format. Reading stops at the first frame that is torn, out of
sequence or of another store, and cuts the file there: a lost tail is a loss of the last commits, never a wrong entry.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from kvlake.base.errors import StoreFormatError
from kvlake.tiers.disk.device import Device, File
from kvlake.tiers.disk.record import FORMAT_VERSION

_FRAME = struct.Struct("<4sIQQQ")
_MAGIC = b"kvj1"
_HEADER_KIND = 0
_HEADER = struct.Struct("<8sI16sQ")  # what the log is for, version, store uuid, a number of the owner's


class Frame(NamedTuple):
    """One commit's worth of entries of one kind (1 and up: the owner's meaning)."""

    kind: int
    body: bytes


class Origin(NamedTuple):
    """What the first frame says."""

    purpose: bytes
    uuid: bytes
    number: int


class Journal:
    """A log in `device` under `name`. Not thread-safe: its owner's commit lock guards it."""

    def __init__(self, device: Device, name: str, file: File, origin: Origin) -> None:
        self._device, self._name, self._file = device, name, file
        self.origin = origin
        self.nbytes = 0
        self._sequence = 0
        self._chain = 0

    @classmethod
    def create(cls, device: Device, name: str, origin: Origin, frames: Iterable[Frame] = ()) -> "Journal":
        """A new log that holds `frames`, put in the place of an old one, if there is one, all at once and durably."""
        draft = name + ".new"
        device.remove(draft)
        journal = cls(device, name, device.open(draft), origin)
        body = _HEADER.pack(origin.purpose, FORMAT_VERSION, origin.uuid, origin.number)
        try:
            journal.append([Frame(_HEADER_KIND, body), *frames])
            device.replace(draft, name)
        except OSError:
            journal.close()
            raise
        return journal

    @classmethod
    def load(cls, device: Device, name: str, purpose: bytes) -> tuple["Journal", list[Frame], int] | None:
        """The log, its whole frames, and how many bytes of torn tail were cut; None where no log can be read.

        Raises StoreFormatError for a log of another version or purpose.
        """
        if name not in device.names():
            return None
        file = device.open(name)
        raw = bytes(file.read(0, file.size()))
        found_frames = list(_frames(raw))
        frames = [frame for frame, _ in found_frames]
        if not frames or frames[0].kind != _HEADER_KIND or len(frames[0].body) != _HEADER.size:
            file.close()
            return None
        found, version, uuid, number = _HEADER.unpack(frames[0].body)
        if found != purpose or version != FORMAT_VERSION:
            file.close()
            raise StoreFormatError(
                f"{device.root / name} is a {found!r} log of format {version}; this kvlake reads {purpose!r} of format "
                f"{FORMAT_VERSION}. Use the kvlake that wrote it, or give another directory"
            )
        journal = cls(device, name, file, Origin(found, uuid, number))
        journal._sequence, journal._chain = len(frames), found_frames[-1][1]
        journal.nbytes = sum(_FRAME.size + len(frame.body) for frame in frames)
        return journal, frames[1:], len(raw) - journal.nbytes

    def cut_tail(self) -> None:
        """Drop whatever lies behind the last whole frame, so that the next one follows it."""
        self._file.truncate(self.nbytes)
        self._file.sync()

    def append(self, frames: list[Frame]) -> None:
        """Write frames and return when they are durable. Raises OSError; the log then ends where it did before."""
        parts = []
        chain = self._chain
        for sequence, frame in enumerate(frames, self._sequence):
            chain = xxh3_64_intdigest(frame.body, chain ^ frame.kind)
            parts += [_FRAME.pack(_MAGIC, frame.kind, sequence, len(frame.body), chain), frame.body]
        data = b"".join(parts)
        self._file.write(self.nbytes, data)
        self._file.sync()
        self.nbytes += len(data)
        self._sequence += len(frames)
        self._chain = chain

    def close(self) -> None:
        self._file.close()


def _frames(raw: bytes) -> Iterator[tuple[Frame, int]]:
    """Whole frames from the start of `raw`, each with its checksum."""
    at, sequence, chain = 0, 0, 0
    while at + _FRAME.size <= len(raw):
        magic, kind, found, length, checksum = _FRAME.unpack_from(raw, at)
        body = raw[at + _FRAME.size : at + _FRAME.size + length]
        if magic != _MAGIC or found != sequence or len(body) != length:
            return
        chain = xxh3_64_intdigest(body, chain ^ kind)
        if chain != checksum:
            return
        yield Frame(kind, body), chain
        at += _FRAME.size + length
        sequence += 1
