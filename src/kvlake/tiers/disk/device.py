"""The disk as the tier sees it: files in one directory, vectored jobs on them, and the one place where O_DIRECT is
decided.

Everything the disk tier does to a disk goes through a `Device`, so that a test can hold one that fails, fills up or
loses power (`kvlake.testing.faults`).
"""

import ctypes
import errno
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from kvlake.tiers.disk.aio import AioQueue
from kvlake.tiers.disk.job import Job, Queue
from kvlake.tiers.tier import PAGE_BYTES, aligned_buffer

log = logging.getLogger(__name__)

PROBE = ".probe"
"""File that a device makes to find out what works, and removes; a killed process may leave it."""

_RAM_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}  # linux/magic.h
_ZERO_RANGE, _PUNCH_HOLE, _KEEP_SIZE = 0x10, 0x02, 0x01  # linux/falloc.h
_DIRECT_DEPTH, _THREADS = 32, 8
_RAM_THREADS = 2
_libc = ctypes.CDLL(None, use_errno=True)


class Device:
    """A directory on a disk. Thread-safe but for its files' own rules."""

    def __init__(self, root: Path, *, direct: bool = True) -> None:
        self.root = root
        self.io_mode, self.why_not_direct = self._probe(direct)
        self._lock = threading.Lock()
        self._idle_queues: list[Queue] = []  # guarded by _lock
        self._threads = _RAM_THREADS if "RAM file system" in self.why_not_direct else _THREADS
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="kvlake-disk")

    @property
    def direct(self) -> bool:
        """Whether segments are opened with O_DIRECT, past the page cache."""
        return self.io_mode != "buffered-threads"

    def open(self, name: str, *, direct: bool = False) -> "File":
        """Open or create a file, private to the user."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        if direct and self.direct:
            flags |= os.O_DIRECT
        return File(name, os.open(self.root / name, flags, 0o600))

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_file())

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def replace(self, name: str, new_name: str) -> None:
        """Rename over `new_name`, durably."""
        os.replace(self.root / name, self.root / new_name)
        self.sync_names()

    def sync_names(self) -> None:
        """Make the creation and removal of files durable."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        """Bytes that this user may still write to the file system."""
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, int]]:
        """Run jobs on a queue of our own; see `Queue.run`."""
        with self._lock:
            queue = self._idle_queues.pop() if self._idle_queues else None
        queue = queue or self._new_queue()
        try:
            yield from queue.run(jobs)
        finally:
            with self._lock:
                self._idle_queues.append(queue)

    def close(self) -> None:
        with self._lock:
            queues, self._idle_queues = self._idle_queues, []
        for queue in queues:
            queue.close()
        self._pool.shutdown()

    def _new_queue(self) -> Queue:
        if self.io_mode == "direct-aio":
            try:
                return AioQueue(_DIRECT_DEPTH)
            except OSError as error:
                log.warning("kernel aio is not to be had (%s): using threads", error)
                self.io_mode = "direct-threads"
        return ThreadQueue(self._pool, 2 * self._threads)

    def _probe(self, direct: bool) -> tuple[str, str]:
        """The best way of I/O that works here, and why it is not the first choice."""
        if not direct:
            return "buffered-threads", "switched off"
        file_system = _file_system(self.root)
        if file_system in _RAM_FILE_SYSTEMS:
            return "buffered-threads", f"{_RAM_FILE_SYSTEMS[file_system]} is a RAM file system"
        name = PROBE
        try:
            fd = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
            try:
                os.pwritev(fd, [aligned_buffer(PAGE_BYTES)], 0)
                AioQueue(1).close()
            finally:
                os.close(fd)
        except OSError as error:
            log.warning("O_DIRECT with kernel aio is not to be had on %s (%s)", self.root, error)
            mode = "direct-threads" if error.errno in (errno.ENOSYS, errno.EAGAIN) else "buffered-threads"
            return mode, str(error)
        finally:
            self.remove(name)
        return "direct-aio", ""


class File:
    """One open file of a device."""

    def __init__(self, name: str, fd: int) -> None:
        self.name, self.fd = name, fd

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def disk_bytes(self) -> int:
        """Bytes that the file takes up on the disk."""
        return os.fstat(self.fd).st_blocks * 512

    def preallocate(self, nbytes: int) -> None:
        """Take `nbytes` from the disk now. Raises OSError (ENOSPC) rather than later on a write."""
        os.posix_fallocate(self.fd, 0, nbytes)

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Up to `nbytes` from `offset`, by way of an aligned buffer; shorter only at the end of the file."""
        buffer = aligned_buffer(-(-nbytes // PAGE_BYTES) * PAGE_BYTES)
        at = 0
        # A bad spot ends one call early and fails the next; only a part of a page, or nothing, is the end of the file.
        while at < buffer.nbytes and (moved := os.preadv(self.fd, [buffer[at:]], offset + at)):
            at += moved
            if moved % PAGE_BYTES:
                break
        return buffer[: min(at, nbytes)]

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data`. Raises OSError; what is then in the file is undefined."""
        view = memoryview(data)
        while view.nbytes:
            written = os.pwrite(self.fd, view, offset)
            offset += written
            view = view[written:]

    def truncate(self, nbytes: int) -> None:
        os.ftruncate(self.fd, nbytes)

    def sync(self) -> None:
        """Make what was written durable."""
        os.fdatasync(self.fd)

    def zero(self, offset: int, nbytes: int) -> None:
        """Make whole pages read as zeros, by the file system's own means where it has them."""
        for mode in (_ZERO_RANGE | _KEEP_SIZE, _PUNCH_HOLE | _KEEP_SIZE):
            if _libc.fallocate(self.fd, mode, ctypes.c_int64(offset), ctypes.c_int64(nbytes)) == 0:
                return
        zeros = aligned_buffer(min(nbytes, 1 << 20))
        for start in range(0, nbytes, zeros.nbytes):
            self.write(offset + start, zeros[: min(zeros.nbytes, nbytes - start)])

    def close(self) -> None:
        """Let go of the file; again does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class ThreadQueue:
    """Jobs on a pool of threads; completions come in the order of the jobs."""

    def __init__(self, pool: ThreadPoolExecutor, depth: int) -> None:
        """Up to `depth` jobs are handed out at a time."""
        self._pool, self._depth = pool, depth

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, int]]:
        flying: deque[tuple[Job, Future[int]]] = deque()
        waiting = iter(jobs)
        try:
            while True:
                while len(flying) < self._depth and (job := next(waiting, None)) is not None:
                    flying.append((job, self._pool.submit(_move, job)))
                if not flying:
                    return
                job, moved = flying.popleft()
                yield job, moved.result()
        finally:
            for _, moved in flying:
                moved.result()

    def close(self) -> None:
        """Nothing of its own to give back: the pool is the device's."""


def _move(job: Job) -> int:
    try:
        moved = (os.pwritev if job.write else os.preadv)(job.fd, job.buffers, job.offset)
    except OSError as error:
        return -(error.errno or errno.EIO)
    if job.judge is not None and moved == job.nbytes:
        job.judge()
    return moved


def _file_system(path: Path) -> int:
    """`f_type` of statfs(2): the first word of the structure on Linux."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        return 0
    return int(struct.unpack_from("@l", buffer)[0]) & 0xFFFF_FFFF
