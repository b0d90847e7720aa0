"""Kernel asynchronous I/O (Linux `io_submit`, man 2) through ctypes: many vectored reads and writes in flight from
one thread.

Why not threads: with O_DIRECT a thread sleeps once per request and must win the interpreter's lock to issue the next;
the kernel's queue takes a batch per call. Figures are in docs/decisions/002-disk-io.md. Why not io_uring: container
runtimes commonly forbid it (Docker's default seccomp profile does), and its shared rings cannot be driven safely from
Python.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Iterator

from kvlake.tiers.disk.job import Job

_SYSCALLS = {  # asm/unistd_64.h, asm-generic/unistd.h
    "x86_64": {"setup": 206, "destroy": 207, "getevents": 208, "submit": 209},
    "aarch64": {"setup": 0, "destroy": 1, "submit": 2, "getevents": 4},
}
_PREADV, _PWRITEV = 7, 8
_IOCB = struct.Struct("<QIIHhIQQqQII")  # linux/aio_abi.h: struct iocb, little-endian
_EVENT = struct.Struct("<QQqq")  # struct io_event
_IOVEC = struct.Struct("<QQ")
_IOVECS_MAX = 128
"""Buffers in one job; more are refused."""

_SUBMIT_JOBS, _SUBMIT_BYTES = 8, 512 * 1024
"""A submission waits for this much, unless the queue or the jobs run out."""


class AioQueue:
    """One kernel queue of `depth` requests. Used by one thread at a time."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        calls = _SYSCALLS.get(platform.machine()) if os.name == "posix" else None
        if calls is None:
            raise OSError(errno.ENOSYS, f"no kernel aio known for {platform.machine()}")
        self._calls = calls
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._context = ctypes.c_ulong(0)
        if self._libc.syscall(calls["setup"], depth, ctypes.byref(self._context)) < 0:
            raise OSError(ctypes.get_errno(), "io_setup failed")
        self._iocbs = ctypes.create_string_buffer(_IOCB.size * depth)
        self._iovecs = ctypes.create_string_buffer(_IOVEC.size * _IOVECS_MAX * depth)
        self._events = ctypes.create_string_buffer(_EVENT.size * depth)
        self._pointers = (ctypes.c_uint64 * depth)()
        self._free = list(range(depth))
        self._filled: dict[int, tuple[Job, list[ctypes.c_char]]] = {}  # not yet handed over
        self._flying: dict[int, tuple[Job, list[ctypes.c_char]]] = {}  # in the kernel's hands

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, int]]:
        """Yield each job with the bytes it moved, or with -errno, in the order of completion.

        `jobs` is drawn from only as the queue has room, so work done in making a job, and work done on a yielded one,
        passes while others are in flight. Leaving early waits for what is in flight.
        """
        waiting = iter(jobs)
        try:
            yield from self._submit(waiting)
            while self._flying:
                done = self._collect()
                failed = list(self._submit(waiting))
                yield from done
                yield from failed
        finally:
            self._free += self._filled
            self._filled.clear()
            while self._flying:
                self._collect()

    def close(self) -> None:
        self._libc.syscall(self._calls["destroy"], self._context)

    def _submit(self, waiting: Iterator[Job]) -> Iterator[tuple[Job, int]]:
        """Fill the queue from `waiting`; yields the jobs that the kernel refused outright."""
        while self._free:
            batch: list[int] = []
            nbytes = 0
            while self._free and len(batch) < _SUBMIT_JOBS and nbytes < _SUBMIT_BYTES:
                job = next(waiting, None)
                if job is None:
                    break
                if len(job.buffers) > _IOVECS_MAX:
                    yield job, -errno.EINVAL
                    continue
                batch.append(self._fill(self._free[-1], job))
                nbytes += job.nbytes
            if not batch:
                return
            yield from self._hand_over(batch)

    def _fill(self, slot: int, job: Job) -> int:
        vectors = ctypes.addressof(self._iovecs) + slot * _IOVECS_MAX * _IOVEC.size
        at = slot * _IOVECS_MAX * _IOVEC.size
        # Each c_char holds its buffer's export: the memory cannot go while the kernel may touch it.
        holds = job.holds or [ctypes.c_char.from_buffer(buffer) for buffer in job.buffers]
        for buffer, hold in zip(job.buffers, holds, strict=True):
            _IOVEC.pack_into(self._iovecs, at, ctypes.addressof(hold), buffer.nbytes)
            at += _IOVEC.size
        opcode = _PWRITEV if job.write else _PREADV
        _IOCB.pack_into(
            self._iocbs, slot * _IOCB.size,
            slot, 0, 0, opcode, 0, job.fd, vectors, len(job.buffers), job.offset, 0, 0, 0,
        )  # fmt: skip
        self._free.remove(slot)
        self._filled[slot] = (job, holds)
        return slot

    def _hand_over(self, batch: list[int]) -> Iterator[tuple[Job, int]]:
        base = ctypes.addressof(self._iocbs)
        while batch:
            for index, slot in enumerate(batch):
                self._pointers[index] = base + slot * _IOCB.size
            taken = self._libc.syscall(self._calls["submit"], self._context, len(batch), self._pointers)
            if taken > 0:
                self._flying.update((slot, self._filled.pop(slot)) for slot in batch[:taken])
                batch = batch[taken:]
                continue
            code = ctypes.get_errno()
            if code == errno.EAGAIN and self._flying:
                yield from self._collect()
            elif code != errno.EINTR:
                slot = batch.pop(0)
                job, _ = self._filled.pop(slot)
                self._free.append(slot)
                yield job, -code

    def _collect(self) -> list[tuple[Job, int]]:
        """Wait for at least one completion and take all that are there."""
        count = self._libc.syscall(
            self._calls["getevents"], self._context, ctypes.c_long(1), ctypes.c_long(self.depth), self._events, None
        )
        if count < 0 and ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), "io_getevents failed")
        done = []
        for index in range(max(count, 0)):
            slot, _, result, _ = _EVENT.unpack_from(self._events, index * _EVENT.size)
            job, _ = self._flying.pop(slot)
            self._free.append(slot)
            done.append((job, result))
        return done
