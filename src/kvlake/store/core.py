"""What the parts of the store share: its lock, its index, its tiers, its sessions, its settings and its counts."""

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from kvlake.base.clock import Clock, SystemClock
from kvlake.base.errors import StoreBusyError
from kvlake.keys.block import BlockKey
from kvlake.policy.rank import Rank, tail_first_lru
from kvlake.policy.watermark import Watermarks
from kvlake.store.guard import Guard
from kvlake.store.index import Index
from kvlake.store.session import SessionTable
from kvlake.tiers.tier import Put, Tier, Viewable


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store behaves; where its bytes lie is the tiers' own matter."""

    get_timeout_s: float = 10.0
    """Deadline of a get."""
    io_timeout_s: float = 30.0
    """Deadline of everything else that a slower tier is asked to do."""
    idle_ttl_s: float | None = 300.0
    """Seconds without a turn after which a session goes idle; None for never."""
    commit_interval_s: float = 0.5
    """Longest time that a written block waits to be made durable."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    rank: Rank = tail_first_lru
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Bytes that a tenant may hold; `*` for those not named."""
    read_only: bool = False
    """Look, and change nothing: another process owns the tiers."""


class Core:
    """State of one store. Every mutable field is guarded by `lock`, which is never held across I/O."""

    def __init__(self, tiers: Sequence[Tier], options: StoreOptions, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.tiers = [
            Guard(tier, self.clock, math.inf if isinstance(tier, Viewable) else options.io_timeout_s) for tier in tiers
        ]
        self.lock = threading.RLock()
        self.settled = threading.Condition(self.lock)
        """Told whenever a move ends."""
        self.index = Index()
        self.sessions = SessionTable()
        self.entering: set[BlockKey] = set()
        """Blocks being put."""
        self.leaving: set[BlockKey] = set()
        """Blocks whose bytes are being removed from a tier: they enter no tier until that is done."""
        self.stuck: dict[BlockKey, Put] = {}
        """Blocks that the next slower tier would not take when it was last asked, and its answer."""
        self.tenants: dict[bytes, str] = {}
        """Names by digest, of the tenants seen so far."""
        self.counts: Counter[str] = Counter()
        for tenant in options.quotas:
            self.tenant_digest(tenant)

    def count(self, what: str, times: int = 1) -> None:
        with self.lock:
            self.counts[what] += times

    def below(self, position: int) -> int:
        """Bits of the tiers slower than the one at `position`."""
        return ((1 << len(self.tiers)) - 1) & ~((1 << (position + 1)) - 1)

    def expect_writable(self) -> None:
        """Raise StoreBusyError where another process owns what is to be removed."""
        if self.options.read_only:
            raise StoreBusyError("this store is open for reading only; open it without read_only to remove from it")

    def tenant_digest(self, tenant: str) -> bytes:
        digest = blake2b(tenant.encode(), digest_size=8, person=b"kvlake.tenant.1").digest()
        self.tenants.setdefault(digest, tenant)
        return digest
