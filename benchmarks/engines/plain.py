"""The plain control: kernel aio through ctypes (else pread threads) over one file, no checksum, no index.

Unlike fio it moves the bytes of the whole session, so a store differs from it by its software alone.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engines.engine import Sample, UnavailableError, Workload, drop_cache, empty_dir, fallocated, timed

# io_setup, io_getevents, io_submit; io_destroy. The numbers are of the machine's own system call table.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_IOCB = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")
_PREAD, _PWRITE = 0, 1
_THREADS = 8


class KernelAio:
    """A queue of `depth` requests over one descriptor; the least that a program in Python can do."""

    def __init__(self, depth: int) -> None:
        numbers = _CALLS.get(platform.machine())
        if numbers is None:
            raise UnavailableError(f"no kernel aio numbers for {platform.machine()}")
        self._setup, self._destroy, self._getevents, self._submit = numbers
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._context = ctypes.c_ulong(0)
        self._depth = depth
        self._events = ctypes.create_string_buffer(_EVENT.size * depth)
        self._call(self._setup, depth, ctypes.byref(self._context))

    def _call(self, number: int, *args: object) -> int:
        result = int(self._libc.syscall(number, *args))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def run(self, fd: int, opcode: int, blocks: Sequence[memoryview], offsets: Sequence[int]) -> None:
        """Move block i to or from offset i; returns when all are done."""
        count, nbytes = len(blocks), len(blocks[0])
        iocbs = ctypes.create_string_buffer(_IOCB.size * count)
        base = ctypes.addressof(iocbs)
        pointers = (ctypes.c_void_p * count)(*range(base, base + _IOCB.size * count, _IOCB.size))
        first, byte = ctypes.addressof(pointers), ctypes.c_char
        for index, block in enumerate(blocks):
            address = ctypes.addressof(byte.from_buffer(block))
            request = (index, 0, 0, opcode, 0, fd, address, nbytes, offsets[index], 0, 0, 0)
            _IOCB.pack_into(iocbs, _IOCB.size * index, *request)
        sent = done = 0
        while done < count:
            room = min(self._depth - (sent - done), count - sent)
            if room:
                sent += self._call(self._submit, self._context, room, ctypes.c_void_p(first + 8 * sent))
            got = self._call(self._getevents, self._context, 1, self._depth, self._events, None)
            for at in range(got):
                moved = _EVENT.unpack_from(self._events, _EVENT.size * at)[2]
                if moved != nbytes:
                    raise OSError(f"kernel aio moved {moved} of {nbytes} bytes")
            done += got

    def close(self) -> None:
        self._call(self._destroy, self._context)


class Threads:
    """The same with preadv and pwritev on a few threads, where kernel aio is not to be had."""

    def __init__(self, depth: int) -> None:
        self._threads = min(depth, _THREADS)
        self._pool = ThreadPoolExecutor(self._threads)

    def run(self, fd: int, opcode: int, blocks: Sequence[memoryview], offsets: Sequence[int]) -> None:
        move = os.pwritev if opcode == _PWRITE else os.preadv

        def part(start: int) -> None:
            for index in range(start, len(blocks), self._threads):
                moved = move(fd, [blocks[index]], offsets[index])
                if moved != len(blocks[index]):
                    raise OSError(f"moved {moved} of {len(blocks[index])} bytes")

        list(self._pool.map(part, range(self._threads)))

    def close(self) -> None:
        self._pool.shutdown()


class Plain:
    name = "plain"

    def __init__(self, workload: Workload, directory: Path) -> None:
        self._work = workload
        self._file = empty_dir(directory / "plain") / "data"
        self._how = ""
        self._queue: KernelAio | Threads
        try:
            self._queue, self._how = KernelAio(workload.depth), "kernel aio"
        except (UnavailableError, OSError):
            self._queue, self._how = Threads(workload.depth), "preadv threads"
        self._fd, self._direct = -1, False

    def _open(self) -> None:
        try:
            self._fd, self._direct = os.open(self._file, os.O_RDWR | os.O_DIRECT), True
        except OSError:
            self._fd, self._direct = os.open(self._file, os.O_RDWR), False

    def _reset(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        empty_dir(self._file.parent)
        os.close(fallocated(self._file, self._work.nbytes))
        self._open()

    def write(self) -> Sample:
        self._reset()
        offsets = range(0, self._work.nbytes, self._work.block_bytes)

        def action() -> None:
            self._queue.run(self._fd, _PWRITE, self._work.source, offsets)
            os.fsync(self._fd)

        return timed(action, self._work.nbytes)

    def read(self, operation: str) -> Sample:
        work = self._work
        order = work.order(operation)
        blocks = [work.target[index] for index in order]
        offsets = [index * work.block_bytes for index in order]
        drop_cache(self._file)
        return timed(lambda: self._queue.run(self._fd, _PREAD, blocks, offsets), work.nbytes)

    def note(self) -> str:
        return f"{self._how}, {'O_DIRECT' if self._direct else 'buffered'}"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._queue.close()
