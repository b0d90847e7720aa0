"""The device tier of an engine: the caches of the sessions in use -> the one that a prompt goes on from."""

import ctypes
import gc
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from transformers import DynamicCache

from kvlake.adapters.transformers.blocks import cache_nbytes


@dataclass(frozen=True, slots=True)
class Live:
    """A session's cache and the tokens whose keys and values it holds."""

    tokens: tuple[int, ...]
    cache: DynamicCache


class LiveCaches:
    """At most `capacity` caches, the least recently used dropped first: their whole blocks are in the store already."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._held: OrderedDict[str, Live] = OrderedDict()  # guarded by _lock; last used last

    def __repr__(self) -> str:
        return f"<LiveCaches {len(self._held)}/{self._capacity} sessions, {self.nbytes()} B>"

    def take(self, session: str, prompt: Sequence[int]) -> Live | None:
        """Take out the session's cache; None, and nothing held any more, unless the prompt goes on from its tokens."""
        with self._lock:
            live = self._held.pop(session, None)
        # By content: a client may have edited the past, or its tokenizer may cut the answer elsewhere.
        if live is not None and len(live.tokens) < len(prompt) and live.tokens == tuple(prompt[: len(live.tokens)]):
            return live
        return None

    def hold(self, session: str, live: Live) -> None:
        """Keep a session's cache as the most recently used."""
        with self._lock:
            self._held[session] = live
            self._held.move_to_end(session)
            while len(self._held) > self._capacity:
                self._held.popitem(last=False)

    def drop(self, session: str) -> None:
        """Free the session's cache if it is held."""
        with self._lock:
            self._held.pop(session, None)

    def clear(self) -> None:
        """Free every cache."""
        with self._lock:
            self._held.clear()

    def nbytes(self) -> int:
        """Bytes that the caches hold on the device."""
        with self._lock:
            return sum(cache_nbytes(live.cache) for live in self._held.values())


def give_back_heap() -> None:
    """Have the C library return what tensors no longer use to the system; glibc alone keeps it (malloc_trim(3))."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
