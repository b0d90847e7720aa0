"""The whole store without a memory tier: the same batches through index, moves and disk tier."""

from pathlib import Path

import kvlake
from engines.engine import Sample, Workload, drop_cache, empty_dir, timed
from engines.kvlake_disk import blocks_of, capacity, expect, warm_blocks
from kvlake.keys.block import BlockKey
from kvlake.tiers.disk.tier import DiskTier
from kvlake.tiers.tier import Get, Put


class KvlakeStore:
    name = "kvlake-store"

    def __init__(self, workload: Workload, directory: Path) -> None:
        self._work, self._root = workload, directory / "kvlake-store"
        self._store: kvlake.Store | None = None

    def _fresh(self) -> kvlake.Store:
        self.close()
        root = empty_dir(self._root)
        store = kvlake.open_store(root, memory_bytes=0, disk_bytes=capacity(self._work, root))
        self._store = store
        expect(store.put(warm_blocks(self._work)), Put.STORED)
        store.flush()
        return store

    def write(self) -> Sample:
        work, store = self._work, self._fresh()

        def action() -> None:
            for batch in work.puts():
                expect(store.put(blocks_of(work, batch)), Put.STORED)
            if not store.flush():
                raise RuntimeError("flush did not finish")

        return timed(action, work.nbytes)

    def read(self, operation: str) -> Sample:
        work, store = self._work, self._store
        assert store is not None, "write comes first"
        drop_cache(self._root)

        def action() -> None:
            for batch in work.gets(operation):
                keys = [BlockKey(work.keys[index]) for index in batch]
                expect(store.get(keys, [work.target[index] for index in batch]), Get.HIT)

        return timed(action, work.nbytes)

    def note(self) -> str:
        modes = [tier.io_mode for tier in self._store.tiers() if isinstance(tier, DiskTier)] if self._store else []
        return f"no memory tier, {', '.join(modes) or 'not opened'}"

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
