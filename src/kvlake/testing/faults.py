"""Disks and tiers that fail as they are told to: errors, short transfers, delays and hangs.

    device = FaultyDevice(path)
    tier = DiskTier.open(path, options, device=device)
    device.faults.add(Fault("write", errno=errno.ENOSPC, name=".seg", skip=2, times=1))

What fails: of a device "read", "write", "sync", "preallocate", "truncate", "zero" and "names" (the directory's own
sync); of a tier the names of its methods.
"""

import errno
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from kvlake.keys.block import BlockKey
from kvlake.tiers.disk.device import Device, File
from kvlake.tiers.disk.job import Job
from kvlake.tiers.tier import Block, CheckReport, Durable, Get, Put, Read, Record, Tier, Trimmable, Usage, Viewable

FOREVER = math.inf
"""As `times`: until `Faults.clear`. As `delay_s`: hang until then."""


@dataclass
class Fault:
    """One thing that goes wrong."""

    on: str
    """The kind of operation."""
    _: KW_ONLY
    errno: int = 0
    """Fail with this; 0 for no failure."""
    moved_bytes: int | None = None
    """Of a device's transfer: report (and carry out) only this much of it."""
    outcome: Put | Get | None = None
    """Of a tier's put or get: the outcome of every block concerned, none of which reaches the tier."""
    delay_s: float = 0.0
    """Take this much longer."""
    name: str = ""
    """Only files whose name has this in it."""
    key: bytes = b""
    """Only calls that concern this block (of a tier)."""
    skip: int = 0
    """Let so many pass first."""
    times: float = 1
    """Then act so often."""


class Faults:
    """What is to go wrong, and how often something did. Thread-safe."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._lock = threading.Lock()
        self._faults = list(faults)  # guarded by _lock
        self._let_go = threading.Event()
        self.struck: Counter[str] = Counter()  # guarded by _lock
        """How often each kind of operation was made to fail or to wait."""

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._faults += faults

    def clear(self) -> None:
        """Nothing goes wrong from now on, and what hangs goes on."""
        with self._lock:
            self._faults.clear()
            self._let_go.set()
            self._let_go = threading.Event()

    def strike(self, on: str, name: str = "", keys: Sequence[bytes] = ()) -> Fault | None:
        """The fault that this operation meets, its delay already over; None for none."""
        with self._lock:
            fault = next((fault for fault in self._faults if _concerns(fault, on, name, keys)), None)
            if fault is None:
                return None
            self.struck[on] += 1
            let_go = self._let_go
        if fault.delay_s == FOREVER:
            let_go.wait()
        else:
            time.sleep(fault.delay_s)
        return fault

    def raise_for(self, on: str, name: str = "", keys: Sequence[bytes] = ()) -> Fault | None:
        """The same, but a fault with an errno is raised as OSError."""
        fault = self.strike(on, name, keys)
        if fault is not None and fault.errno:
            raise OSError(fault.errno, f"{os.strerror(fault.errno)} (injected into {on})")
        return fault


def _concerns(fault: Fault, on: str, name: str, keys: Sequence[bytes]) -> bool:
    """Whether `fault` acts here; counts it down."""
    if fault.on != on or fault.name not in name or (fault.key and fault.key not in keys) or fault.times <= 0:
        return False
    if fault.skip > 0:
        fault.skip -= 1
        return False
    fault.times -= 1
    return True


class FaultyDevice(Device):
    """A disk that fails as `faults` say."""

    def __init__(self, root: Path, *, direct: bool = True, faults: Iterable[Fault] = ()) -> None:
        self.faults = Faults(faults)
        self._names: dict[int, str] = {}
        super().__init__(root, direct=direct)

    def open(self, name: str, *, direct: bool = False) -> File:
        file = FaultyFile(name, super().open(name, direct=direct).fd, self.faults)
        self._names[file.fd] = name
        return file

    def sync_names(self) -> None:
        self.faults.raise_for("names")
        super().sync_names()

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, int]]:
        failed: list[tuple[Job, int]] = []
        for done in super().run(self._sound(jobs, failed)):
            yield done
            while failed:
                yield failed.pop()
        yield from failed

    def _sound(self, jobs: Iterable[Job], failed: list[tuple[Job, int]]) -> Iterator[Job]:
        """The jobs that nothing befalls; the others are put into `failed` with their outcomes."""
        for job in jobs:
            fault = self.faults.strike("write" if job.write else "read", self._names.get(job.fd, ""))
            if fault is not None and fault.errno:
                failed.append((job, -fault.errno))
            elif fault is not None and fault.moved_bytes is not None:
                failed.append((job, _move_some(job, fault.moved_bytes)))
            else:
                yield job


class FaultyFile(File):
    """A file of a `FaultyDevice`."""

    def __init__(self, name: str, fd: int, faults: Faults) -> None:
        super().__init__(name, fd)
        self._faults = faults

    def preallocate(self, nbytes: int) -> None:
        self._faults.raise_for("preallocate", self.name)
        super().preallocate(nbytes)

    def read(self, offset: int, nbytes: int) -> memoryview:
        fault = self._faults.raise_for("read", self.name)
        some = nbytes if fault is None or fault.moved_bytes is None else fault.moved_bytes
        return super().read(offset, min(nbytes, some))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """An error strikes after `moved_bytes` of the data, as it does on a full disk."""
        fault = self._faults.strike("write", self.name)
        if fault is not None and (fault.errno or fault.moved_bytes is not None):
            super().write(offset, memoryview(data)[: fault.moved_bytes or 0])
            raise OSError(fault.errno or errno.EIO, "injected into write")
        super().write(offset, data)

    def truncate(self, nbytes: int) -> None:
        self._faults.raise_for("truncate", self.name)
        super().truncate(nbytes)

    def sync(self) -> None:
        self._faults.raise_for("sync", self.name)
        super().sync()

    def zero(self, offset: int, nbytes: int) -> None:
        self._faults.raise_for("zero", self.name)
        super().zero(offset, nbytes)


class FaultyTier:
    """A tier that fails as `faults` say. A durable one is wrapped in `FaultyDurableTier`."""

    def __init__(self, tier: Tier, faults: Iterable[Fault] = ()) -> None:
        self.tier = tier
        self.faults = Faults(faults)

    def __repr__(self) -> str:
        return f"<FaultyTier {self.tier!r}>"

    @property
    def name(self) -> str:
        return self.tier.name

    @property
    def counters(self) -> Any:
        return getattr(self.tier, "counters", {})

    def usage(self) -> Usage:
        return self.tier.usage()

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        fault = self.faults.raise_for("put", keys=[block.key for block in blocks])
        if fault is None or not isinstance(fault.outcome, Put):
            return self.tier.put(blocks)
        struck = [not fault.key or block.key == fault.key for block in blocks]
        sound = iter(self.tier.put([block for block, hit in zip(blocks, struck, strict=True) if not hit]))
        return [fault.outcome if hit else next(sound) for hit in struck]

    def get(self, reads: Sequence[Read]) -> list[Get]:
        fault = self.faults.raise_for("get", keys=[read.key for read in reads])
        if fault is None or not isinstance(fault.outcome, Get):
            return self.tier.get(reads)
        struck = [not fault.key or read.key == fault.key for read in reads]
        sound = iter(self.tier.get([read for read, hit in zip(reads, struck, strict=True) if not hit]))
        return [fault.outcome if hit else next(sound) for hit in struck]

    def remove(self, keys: Sequence[BlockKey], *, wipe: bool = False) -> int:
        self.faults.raise_for("remove", keys=keys)
        return self.tier.remove(keys, wipe=wipe)

    def records(self) -> Iterator[Record]:
        self.faults.raise_for("records")
        return self.tier.records()

    def check(self, *, fix: bool = False) -> CheckReport:
        self.faults.raise_for("check")
        return self.tier.check(fix=fix)

    def trim(self) -> None:
        self.faults.raise_for("trim")
        if isinstance(self.tier, Trimmable):
            self.tier.trim()

    def view(self, key: BlockKey) -> memoryview | None:
        self.faults.raise_for("view", keys=[key])
        return self.tier.view(key) if isinstance(self.tier, Viewable) else None

    def close(self) -> None:
        self.faults.raise_for("close")
        self.tier.close()


class FaultyDurableTier(FaultyTier):
    """The same around a durable tier."""

    def sync(self) -> None:
        self.faults.raise_for("sync")
        if isinstance(self.tier, Durable):
            self.tier.sync()


def _move_some(job: Job, nbytes: int) -> int:
    """Carry out the first `nbytes` of a job, whole buffers only; returns `nbytes`."""
    at, buffers = 0, []
    for buffer in job.buffers:
        at += buffer.nbytes
        if at > nbytes:
            break
        buffers.append(buffer)
    if buffers:
        (os.pwritev if job.write else os.preadv)(job.fd, buffers, job.offset)
    return nbytes
