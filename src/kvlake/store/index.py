"""What the store knows of its blocks, as a forest: each block under its parent, with the tiers that hold it.

A child never outlives its parent: blocks enter after their parents and leave before them. So the blocks of a chain that
are present are a prefix of it, and `match` finds its end by binary search.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kvlake.keys.block import BlockKey
from kvlake.tiers.tier import Block, Record


class Entry:
    """One block. All fields are guarded by the store's lock."""

    __slots__ = (
        "busy", "children", "created_s", "depth", "expires_s", "held", "key", "last_use_s", "namespace", "nbytes",
        "parent", "pins", "reads", "tenant",
    )  # fmt: skip

    def __init__(self, record: Record, held: int) -> None:
        self.key, self.parent, self.depth, self.nbytes = record.key, record.parent, record.depth, record.nbytes
        self.namespace, self.tenant = record.namespace, record.tenant
        self.expires_s, self.created_s = record.expires_s, record.created_s
        self.held = held
        """Bit i is set while tier i holds the block."""
        self.last_use_s = float(record.created_s)
        self.children = 0
        self.pins = 0
        self.busy = 0
        """Moves under way that read or write the block."""
        self.reads = 0
        """Gets served from a slower tier since the block was last in the fastest."""

    def __repr__(self) -> str:
        return f"<Entry {self.key.hex()[:8]} depth {self.depth} {self.nbytes} B held {self.held:b}>"

    def block(self, data: memoryview) -> Block:
        """The block again, with its bytes, to be put into another tier."""
        return Block(self.key, self.parent, self.depth, data, self.namespace, self.tenant, self.expires_s)


class Index:
    """The forest. Its owner's lock guards changes; single look-ups need none."""

    def __init__(self) -> None:
        self.entries: dict[BlockKey, Entry] = {}
        self.tenant_bytes: Counter[bytes] = Counter()
        self._shared: dict[bytes, bytes] = {}
        """Namespaces and tenants, each once: a million blocks have a handful of them."""
        self.expiring = 0
        """Entries that have an expiry: while there are none, nothing looks at clocks."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __contains__(self, key: BlockKey) -> bool:
        return key in self.entries

    def get(self, key: BlockKey) -> Entry | None:
        return self.entries.get(key)

    def add(self, record: Record, held: int) -> Entry | None:
        """Enter a block under its parent; None for an orphan, which could never be matched."""
        parent = self.entries.get(record.parent) if record.depth else None
        if record.depth and (parent is None or parent.depth != record.depth - 1):
            return None
        entry = Entry(record, held)
        entry.namespace = self._shared.setdefault(record.namespace, record.namespace)
        entry.tenant = self._shared.setdefault(record.tenant, record.tenant)
        self.entries[record.key] = entry
        self.tenant_bytes[record.tenant] += record.nbytes
        self.expiring += bool(record.expires_s)
        if parent is not None:
            entry.parent = parent.key
            parent.children += 1
        return entry

    def drop(self, entry: Entry) -> None:
        """Forget a block; it must have no children."""
        del self.entries[entry.key]
        self.tenant_bytes[entry.tenant] -= entry.nbytes
        self.expiring -= bool(entry.expires_s)
        parent = self.entries.get(entry.parent) if entry.depth else None
        if parent is not None:
            parent.children -= 1

    def match(self, keys: Sequence[BlockKey], now_s: float) -> int:
        """Leading keys of a chain that are present; O(log n) while nothing expires."""
        entries = self.entries
        if not keys or keys[0] not in entries:
            return 0
        low, high = 1, len(keys)
        if keys[-1] in entries:
            low = high
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in entries:
                low = middle + 1
            else:
                high = middle
        return self.scan(keys[:low], now_s) if self.expiring else low

    def scan(self, keys: Sequence[BlockKey], now_s: float) -> int:
        """The same as `match`, key by key: the reference that it is held to."""
        for count, key in enumerate(keys):
            entry = self.entries.get(key)
            if entry is None or (entry.expires_s and entry.expires_s <= now_s):
                return count
        return len(keys)

    def subtree(self, keys: Iterable[BlockKey]) -> list[Entry]:
        """The entries of `keys` and all below them, children before parents.

        Reads the whole index if any has children that are not among `keys`.
        """
        chosen = {key: entry for key in keys if (entry := self.entries.get(key)) is not None}
        among = sum(1 for entry in chosen.values() if entry.depth and entry.parent in chosen)
        if sum(entry.children for entry in chosen.values()) > among:
            # Parents come first in this order, so one pass finds every descendant.
            for entry in sorted(self.entries.values(), key=lambda entry: entry.depth):
                if entry.depth and entry.parent in chosen:
                    chosen[entry.key] = entry
        return sorted(chosen.values(), key=lambda entry: -entry.depth)
