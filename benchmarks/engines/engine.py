"""What every engine of the store benchmark is: a thing that writes the same blocks and reads them back.

In: a `Workload` (keys, a source and a target buffer, an order). Out: a `Sample` (seconds, CPU, bytes).
"""

import ctypes
import hashlib
import mmap
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PAGE = 4096
PUT_BYTES, GET_BYTES = 16 << 20, 32 << 20
DEPTH = 32
WARM_BLOCKS = 4
_STALE = b"\xff" * 8
_TILE = 64 << 20


class UnavailableError(RuntimeError):
    """This engine cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed run of one operation."""

    seconds: float
    cpu_s: float
    nbytes: int

    @property
    def gbps(self) -> float:
        return self.nbytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / self.nbytes * 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The blocks of one session, the same for every engine.

    `keys[i]` names block i, whose parent is block i-1. `source` and `target` are page-aligned buffers of
    count * block_bytes; both are touched before anything is timed. A session is written `put_blocks` at a time and read
    `get_blocks` at a time, each call starting when the one before has returned.
    """

    block_bytes: int
    count: int
    put_blocks: int
    get_blocks: int
    depth: int
    keys: tuple[bytes, ...]
    shuffled: tuple[int, ...]
    source: tuple[memoryview, ...]
    target: tuple[memoryview, ...]
    digests: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        return self.count * self.block_bytes

    def order(self, operation: str) -> Sequence[int]:
        return self.shuffled if operation.startswith("random") else range(self.count)

    def puts(self) -> Iterator[range]:
        for start in range(0, self.count, self.put_blocks):
            yield range(start, min(start + self.put_blocks, self.count))

    def gets(self, operation: str) -> Iterator[Sequence[int]]:
        order = self.order(operation)
        for start in range(0, self.count, self.get_blocks):
            yield order[start : start + self.get_blocks]

    def spoil_target(self) -> None:
        """Overwrite both ends of each target block, so that a read that did nothing is seen."""
        for block in self.target:
            block[:8] = _STALE
            block[-8:] = _STALE

    def wrong_blocks(self) -> int:
        """How many target blocks do not hold the bytes that were written."""
        return sum(digest(block) != want for block, want in zip(self.target, self.digests, strict=True))


class Engine(Protocol):
    """One store under test. `write` starts from an empty place; `read` reads what the last `write` left."""

    name: str

    def write(self) -> Sample: ...

    def read(self, operation: str) -> Sample: ...

    def note(self) -> str:
        """How it did its I/O, and whether reads came from the page cache."""
        ...

    def close(self) -> None: ...


def digest(block: memoryview) -> bytes:
    """Checksum of a block, for the benchmark's own verification (never timed)."""
    import xxhash

    return xxhash.xxh3_64_digest(block)


def page_buffer(nbytes: int) -> memoryview:
    """A page-aligned buffer with every page touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    return memoryview(mmap.mmap(-1, nbytes, flags=flags))


def touch_free_memory(nbytes: int) -> None:
    """Take up to `nbytes` of what is free (at most half of it), touch it and give it back.

    A virtual machine's memory is slow at its very first use, when the host must find it; a RAM file system would pay
    that at random.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    page_buffer(max(min(nbytes, free // 2), PAGE)).release()


def fill(buffer: memoryview) -> None:
    """Random bytes, and a stamp on every page: nothing may profit from compressing or deduplicating."""
    tile = os.urandom(min(_TILE, len(buffer)))
    for start in range(0, len(buffer), _TILE):
        piece = buffer[start : start + _TILE]
        piece[:] = tile[: len(piece)]
    for start in range(0, len(buffer), PAGE):
        buffer[start : start + 8] = start.to_bytes(8, "little")


def split(buffer: memoryview, block_bytes: int, count: int) -> tuple[memoryview, ...]:
    return tuple(buffer[at : at + block_bytes] for at in range(0, count * block_bytes, block_bytes))


def chain(count: int, label: bytes = b"bench") -> tuple[bytes, ...]:
    """Keys of one chain: each is a digest of its parent, 16 bytes."""
    keys, parent = [], hashlib.blake2b(label, digest_size=16).digest()
    for index in range(count):
        parent = hashlib.blake2b(parent + index.to_bytes(4, "little"), digest_size=16).digest()
        keys.append(parent)
    return tuple(keys)


@dataclass(frozen=True, slots=True)
class Memory:
    """The session's bytes and room to read them back, shared by all block sizes."""

    source: memoryview
    target: memoryview

    @classmethod
    def of(cls, nbytes: int) -> "Memory":
        memory = cls(page_buffer(nbytes), page_buffer(nbytes))
        fill(memory.source)
        return memory


def make_workload(memory: Memory, block_bytes: int) -> Workload:
    count = max(len(memory.source) // block_bytes, 1)
    shuffled = list(range(count))
    random.Random(7).shuffle(shuffled)
    blocks = split(memory.source, block_bytes, count)
    get_blocks = max(GET_BYTES // block_bytes, 1)
    return Workload(
        block_bytes=block_bytes, count=count, put_blocks=max(PUT_BYTES // block_bytes, 1), get_blocks=get_blocks,
        depth=min(DEPTH, get_blocks),
        keys=chain(count), shuffled=tuple(shuffled), source=blocks,
        target=split(memory.target, block_bytes, count), digests=tuple(digest(block) for block in blocks),
    )  # fmt: skip


def timed(action: Callable[[], None], nbytes: int) -> Sample:
    """Wall time and this process's CPU time (user + system, all threads) of one call."""
    cpu, start = time.process_time(), time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    return Sample(seconds=seconds, cpu_s=time.process_time() - cpu, nbytes=nbytes)


def empty_dir(path: Path) -> Path:
    """A fresh, empty folder; what was there is gone from the disk too before this returns."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    sync_filesystem(path)
    return path


def sync_filesystem(path: Path) -> None:
    """syncfs(2): one call that makes everything written below `path` durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed", str(path))
    finally:
        os.close(fd)


def drop_cache(path: Path) -> None:
    """Ask the kernel to forget the cached pages of a file, or of all files below a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def fallocated(path: Path, nbytes: int) -> int:
    """Descriptor of a new file whose `nbytes` are allocated and never written."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.posix_fallocate(fd, 0, nbytes)
    os.fsync(fd)
    return fd
