"""A disk whose power can be cut: what was synced is there afterwards, of the rest any part may be.

    device = PowerLossDevice(path)
    tier = DiskTier.open(path, options, device=device)
    ...
    device.lose_power(random.Random(seed), other_path)     # now; or beforehand:
    device.lose_power_at(17, random.Random(seed), other_path)

The state after the cut is made in another directory, by these rules, which are the least that POSIX grants:
    - the bytes and the size of a file are as at its last `sync`, plus any subset of the later changes: each is kept,
      dropped or torn at sectors of 512 bytes, so that they reach the disk in any order;
    - names are as at the last `sync_names`, plus any subset of the later creations, removals and renamings.
The device itself goes on as if nothing had happened; look at `lost` to know whether an operation ended before the cut.
"""

import os
import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvlake.tiers.disk.device import Device, File
from kvlake.tiers.disk.job import Job

SECTOR_BYTES = 512
_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class _Change:
    """One change of a file that is not yet durable."""

    offset: int
    old: bytes
    new: bytes
    """Bytes from `offset`, before and after; the shorter one ends at the end of the file."""
    old_size: int
    new_size: int


@dataclass(slots=True)
class _Inode:
    """A file, whatever its names are."""

    fd: int
    """Our own, so that the bytes stay when the last name has gone."""
    changes: list[_Change] = field(default_factory=list)
    """Since the last sync."""


@dataclass(slots=True)
class _Rename:
    """A change of the directory: `inode` gets `name` (None: the name goes), and loses the name `was`."""

    name: str
    inode: _Inode | None
    was: str = ""


class PowerLossDevice(Device):
    """A buffered device that remembers what is not yet durable. Jobs are run one by one, in order."""

    def __init__(self, root: Path) -> None:
        self._guard = threading.RLock()
        self._inodes: dict[int, _Inode] = {}  # of open files, by descriptor; guarded by _guard, as is all below
        self._held: list[int] = []  # descriptors of all inodes
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._renames: list[_Rename] = []
        self._cut: tuple[int, random.Random, Path] | None = None
        self.operations = 0
        """Changes and syncs so far."""
        self.lost = False
        """Whether the power has been cut."""
        super().__init__(root, direct=False)
        for name in super().names():
            self._names[name] = self._inode(name)
        self._durable_names = dict(self._names)

    def lose_power_at(self, operation: int, rng: random.Random, into: Path) -> None:
        """Lose it right before the change or sync of that number, counted from now, becomes durable."""
        with self._guard:
            self._cut = (self.operations + operation, rng, into)

    def lose_power(self, rng: random.Random, into: Path) -> None:
        """Make the directory `into`: what this one could look like if the power went now."""
        with self._guard:
            names = dict(self._durable_names)
            for rename in self._renames:
                if rng.random() < 0.5:
                    _rename(names, rename)
            into.mkdir(parents=True)
            for name, inode in names.items():
                _materialise(inode, into / name, rng)
            self._cut, self.lost = None, True

    def step(self) -> None:
        """An operation is about to become durable, or not. Needs _guard."""
        self.operations += 1
        if self._cut is not None and self.operations > self._cut[0]:
            self.lose_power(*self._cut[1:])

    def changed(self, fd: int, change: _Change) -> None:
        """Note a change that was just made through `fd`. Needs _guard."""
        self._inodes[fd].changes.append(change)
        self.step()

    def synced(self, fd: int) -> None:
        """All changes through any descriptor of this file are durable. Needs _guard."""
        self.step()
        self._inodes[fd].changes.clear()

    def open(self, name: str, *, direct: bool = False) -> File:
        with self._guard:
            file = PowerLossFile(name, super().open(name).fd, self)
            inode = self._names.get(name)
            if inode is None:
                inode = self._inode(name)
                self._note(_Rename(name, inode))
            self._inodes[file.fd] = inode
            return file

    def remove(self, name: str) -> None:
        with self._guard:
            super().remove(name)
            if name in self._names:
                self._note(_Rename(name, None))

    def replace(self, name: str, new_name: str) -> None:
        with self._guard:
            os.replace(self.root / name, self.root / new_name)
            self._note(_Rename(new_name, self._names[name], was=name))
            self.sync_names()

    def sync_names(self) -> None:
        with self._guard:
            self.step()
            self._durable_names = dict(self._names)
            self._renames.clear()

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, int]]:
        for job in jobs:
            with self._guard:
                if job.write:
                    moved = self.write(job.fd, job.offset, b"".join(job.buffers))
                else:
                    moved = os.preadv(job.fd, job.buffers, job.offset)
            yield job, moved

    def write(self, fd: int, offset: int, data: bytes) -> int:
        """Write and note it. Needs _guard."""
        size = os.fstat(fd).st_size
        old = os.pread(fd, len(data), offset)
        os.pwrite(fd, data, offset)
        self.changed(fd, _Change(offset, old, data, size, max(size, offset + len(data))))
        return len(data)

    def close(self) -> None:
        super().close()
        with self._guard:
            while self._held:
                os.close(self._held.pop())

    def _inode(self, name: str) -> _Inode:
        fd = os.open(self.root / name, os.O_RDONLY | os.O_CLOEXEC)
        self._held.append(fd)
        return _Inode(fd)

    def _note(self, rename: _Rename) -> None:
        self._renames.append(rename)
        _rename(self._names, rename)
        self.step()


class PowerLossFile(File):
    """A file of a `PowerLossDevice`."""

    def __init__(self, name: str, fd: int, device: PowerLossDevice) -> None:
        super().__init__(name, fd)
        self._device = device

    def preallocate(self, nbytes: int) -> None:
        with self._device._guard:
            size = self.size()
            super().preallocate(nbytes)
            self._device.changed(self.fd, _Change(size, b"", b"", size, max(size, nbytes)))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        with self._device._guard:
            self._device.write(self.fd, offset, bytes(data))

    def truncate(self, nbytes: int) -> None:
        with self._device._guard:
            size = self.size()
            old = os.pread(self.fd, max(0, size - nbytes), nbytes)
            super().truncate(nbytes)
            self._device.changed(self.fd, _Change(min(size, nbytes), old, b"", size, nbytes))

    def zero(self, offset: int, nbytes: int) -> None:
        self.write(offset, bytes(nbytes))

    def sync(self) -> None:
        """Durable from now on; the real disk is not asked, its power stays on."""
        with self._device._guard:
            self._device.synced(self.fd)


def _rename(names: dict[str, _Inode], rename: _Rename) -> None:
    names.pop(rename.was, None)
    if rename.inode is None:
        names.pop(rename.name, None)
    else:
        names[rename.name] = rename.inode


def _materialise(inode: _Inode, path: Path, rng: random.Random) -> None:
    """Write the file as it may be found: as it is now, all changes since the sync undone, some of them then redone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size, at = os.fstat(inode.fd).st_size, 0
        while at < size:
            at += os.copy_file_range(inode.fd, fd, min(size - at, _COPY_BYTES), at, at)
        for change in reversed(inode.changes):
            os.ftruncate(fd, change.old_size)
            os.pwrite(fd, change.old, change.offset)
        for change in inode.changes:
            _redo(fd, change, rng)
    finally:
        os.close(fd)


def _redo(fd: int, change: _Change, rng: random.Random) -> None:
    """Do a change again, or leave it, or do some of its sectors; size and bytes may come apart."""
    fate = rng.choice(("kept", "dropped", "torn"))
    if fate == "dropped":
        return
    if change.new_size != change.old_size and (fate == "kept" or rng.random() < 0.5):
        os.ftruncate(fd, change.new_size)
    room = max(0, os.fstat(fd).st_size - change.offset)
    found, new = bytearray(os.pread(fd, len(change.new), change.offset)), change.new[:room]
    for start, stop in _sectors(change.offset, len(new)):
        if fate == "kept" or rng.random() < 0.5:
            found[start:stop] = new[start:stop]
    os.pwrite(fd, found, change.offset)


def _sectors(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """(start, stop), counted from `offset`, of each sector in a range of a file."""
    start = 0
    while start < nbytes:
        stop = min(nbytes, start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        yield start, stop
        start = stop
