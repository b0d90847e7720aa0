"""The seam of the tiers: what a block is to a tier, what a tier answers, and the Protocol that every tier meets.

A tier holds immutable blocks under 16-byte keys. It refuses what does not fit (`Put.FULL`) and leaves the choice of
what to give up to its caller. Whatever it returns as `Get.HIT` is byte for byte what was put: a fault ends as another
outcome, never as wrong bytes. `kvlake.testing.conformance` holds a tier to this.
"""

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from kvlake.base.errors import BufferSizeError
from kvlake.keys.block import BlockKey

PAGE_BYTES = 4096
"""Unit of allocation and of alignment: a multiple of every logical block size in use, and the OS page on x86-64."""

Buffer = bytes | bytearray | memoryview


class Block(NamedTuple):
    """A block on its way into a tier. `data` is C-contiguous bytes and is not kept: the tier copies or writes it."""

    key: BlockKey
    parent: BlockKey
    depth: int
    """Blocks before this one in its chain: 0 for the first."""
    data: Buffer
    namespace: bytes = bytes(8)
    """First 8 bytes of the namespace digest, for listing; the key itself already holds all of it."""
    tenant: bytes = bytes(8)
    """8-byte digest of the tenant that pays for the block."""
    expires_s: int = 0
    """Unix second after which the store no longer serves the block; 0 for never."""

    def record(self, created_s: float) -> "Record":
        """What a tier keeps of this block beside its bytes."""
        nbytes = memoryview(self.data).nbytes
        return Record(
            self.key, self.parent, self.depth, nbytes, self.namespace, self.tenant, self.expires_s, int(created_s)
        )


class Record(NamedTuple):
    """What a tier knows of a block that it holds."""

    key: BlockKey
    parent: BlockKey
    depth: int
    nbytes: int
    namespace: bytes
    tenant: bytes
    expires_s: int
    created_s: int


class Read(NamedTuple):
    """A request for a block: `into` is a writable C-contiguous buffer exactly as long as the block."""

    key: BlockKey
    into: memoryview


class Put(Enum):
    """Outcome of a put."""

    STORED = "stored"
    PRESENT = "present"
    """Held already (or being written by another thread): nothing was done."""
    FULL = "full"
    """No room; something must be removed first."""
    REFUSED = "refused"
    """Will never fit, or must not enter."""
    ERROR = "error"
    """The medium failed; the block is not held."""


class Get(Enum):
    """Outcome of a get. Only after HIT do the bytes in the buffer mean anything."""

    HIT = "hit"
    MISS = "miss"
    CORRUPT = "corrupt"
    """Was held, but its checksum did not match: dropped, a miss to the caller."""
    ERROR = "error"
    """The medium failed; a miss to the caller."""
    TIMEOUT = "timeout"
    """The deadline passed. A late read may still write the buffer: the caller must not use it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Room in a tier, in bytes as it allocates them (payloads rounded up, descriptors included)."""

    capacity_bytes: int
    used_bytes: int
    blocks: int


class Problem(NamedTuple):
    """One thing that `check` found wrong; `key` is None when it is not about one block."""

    key: BlockKey | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of an audit of one tier (or of the store's own tables)."""

    tier: str
    blocks: int
    nbytes: int
    problems: tuple[Problem, ...] = ()
    fixed: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is wrong now: nothing was found, or all that was found has been fixed."""
        return len(self.problems) <= self.fixed


class Tier(Protocol):
    """A place with a capacity. All methods may be called from any thread."""

    @property
    def name(self) -> str:
        """`memory`, `disk`, `object`, ...: the tier's name in usage, counters and messages."""
        ...

    def usage(self) -> Usage:
        """Room and use now; O(1)."""
        ...

    def put(self, blocks: Sequence[Block]) -> list[Put]:
        """Take in blocks, one outcome each. One call's blocks are laid together where the medium has places."""
        ...

    def get(self, reads: Sequence[Read]) -> list[Get]:
        """Fill the buffers, one outcome each. Raises BufferSizeError for a buffer of the wrong length."""
        ...

    def remove(self, keys: Sequence[BlockKey], *, wipe: bool = False) -> int:
        """Forget blocks and return the bytes freed; unknown keys are ignored.

        With `wipe` (an owner's deletion) the bytes themselves are gone, and so is the record, when this returns.
        """
        ...

    def records(self) -> Iterator[Record]:
        """Every block held, in no particular order; a snapshot."""
        ...

    def check(self, *, fix: bool = False) -> CheckReport:
        """Audit every block and the accounting; with `fix`, drop what is bad."""
        ...

    def close(self) -> None:
        """Give back everything; blocks already synced stay on media that keep them."""
        ...


@runtime_checkable
class Durable(Protocol):
    """Extra ability of a tier whose blocks outlive the process."""

    def sync(self) -> None:
        """Return when every block put before the call would survive a power cut."""
        ...


@runtime_checkable
class Trimmable(Protocol):
    """Extra ability of a tier that can give free room back to the operating system."""

    def trim(self) -> None:
        """Give back what is free now."""
        ...


@runtime_checkable
class Viewable(Protocol):
    """Extra ability of a tier whose blocks can be read in place, so that another tier can take them without a copy."""

    def view(self, key: BlockKey) -> memoryview | None:
        """The block's bytes, read-only, valid until the block is removed; None if not held."""
        ...


def expect_size(read: Read, nbytes: int) -> None:
    """Raise BufferSizeError unless `read` has a buffer of `nbytes`."""
    if read.into.nbytes != nbytes:
        raise BufferSizeError(
            f"block {read.key.hex()} has {nbytes} bytes and the buffer {read.into.nbytes}; ask block_nbytes() first"
        )


def aligned_buffer(nbytes: int) -> memoryview:
    """A zeroed writable buffer that starts on a page: O_DIRECT reads and writes of it need no copy."""
    return memoryview(mmap.mmap(-1, max(nbytes, 1)))[:nbytes]


def pages_of(nbytes: int) -> int:
    """Pages that `nbytes` take up."""
    return -(-nbytes // PAGE_BYTES)
