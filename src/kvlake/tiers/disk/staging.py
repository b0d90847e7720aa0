"""Aligned scratch buffers, kept and used again: nothing is mapped or faulted in on the path of a block."""

import ctypes
import threading

from kvlake.tiers.tier import PAGE_BYTES, aligned_buffer

_KEPT_BYTES_MAX = 16 << 20


class Staging:
    """A stock of page-aligned buffers by power-of-two size. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stock: dict[int, list[memoryview]] = {}  # guarded by _lock
        self._kept_bytes = 0  # guarded by _lock

    def take(self, pages: int) -> memoryview:
        """A buffer of at least `pages`; its contents are whatever they were."""
        size = PAGE_BYTES << max(pages - 1, 0).bit_length()
        with self._lock:
            stock = self._stock.get(size)
            if stock:
                self._kept_bytes -= size
                return stock.pop()
        return aligned_buffer(size)

    def give_back(self, buffer: memoryview) -> None:
        with self._lock:
            if self._kept_bytes + buffer.nbytes <= _KEPT_BYTES_MAX:
                self._kept_bytes += buffer.nbytes
                self._stock.setdefault(buffer.nbytes, []).append(buffer)


def hold(buffer: memoryview) -> ctypes.c_char:
    """The export of a writable buffer: while it is referred to, the memory stays where it is."""
    return ctypes.c_char.from_buffer(buffer)


def hold_aligned(buffer: memoryview) -> ctypes.c_char | None:
    """The export of a buffer that O_DIRECT can move in place: whole pages, from the start of a page, writable.

    Writable also where it is only read from: its address cannot be had otherwise. None for any other buffer.
    """
    if buffer.readonly or buffer.nbytes % PAGE_BYTES:
        return None
    held = ctypes.c_char.from_buffer(buffer)
    return None if ctypes.addressof(held) % PAGE_BYTES else held
