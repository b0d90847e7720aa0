"""kvlake's disk tier used directly: puts and gets in batches of one chain, checksums on."""

import os
from pathlib import Path

from engines.engine import WARM_BLOCKS, Sample, Workload, chain, drop_cache, empty_dir, timed
from kvlake.keys.block import BlockKey, root_key
from kvlake.tiers.disk.tier import DiskTier
from kvlake.tiers.tier import Block, Get, Put, Read

_ROOT = root_key(bytes(16))
_ORDINARY_BYTES, _ROOM_BYTES = 32 << 30, 8 << 30


def blocks_of(work: Workload, batch: range) -> list[Block]:
    """A batch of the session's chain."""
    return [_block(work.keys, index, work.source[index]) for index in batch]


def warm_blocks(work: Workload) -> list[Block]:
    """A few blocks of another chain, put before the clock starts, so that what a store does once is done."""
    keys = chain(min(WARM_BLOCKS, work.count), b"warm")
    return [_block(keys, index, work.source[index]) for index in range(len(keys))]


def _block(keys: tuple[bytes, ...], index: int, data: memoryview) -> Block:
    return Block(BlockKey(keys[index]), BlockKey(keys[index - 1]) if index else _ROOT, index, data)


def capacity(work: Workload, directory: Path) -> int:
    """A store of an ordinary size, whose segments are 1 GiB: as with the control's file, the disk was allocated before
    the clock started. Only what is written takes room; where even that is scarce, a store just large enough."""
    stat = os.statvfs(directory)
    if stat.f_bavail * stat.f_frsize > work.nbytes + _ROOM_BYTES:
        return _ORDINARY_BYTES
    return max(work.nbytes + work.nbytes // 2 + (256 << 20), work.count << 15)


def expect(outcomes: list[Put] | list[Get], wanted: Put | Get) -> None:
    other = [outcome for outcome in outcomes if outcome is not wanted]
    if other:
        raise RuntimeError(f"{len(other)} of {len(outcomes)} blocks came back {other[0]}, not {wanted}")


class KvlakeDisk:
    name = "kvlake-disk"

    def __init__(self, workload: Workload, directory: Path) -> None:
        self._work, self._root = workload, directory / "kvlake-disk"
        self._tier: DiskTier | None = None

    def _fresh(self) -> DiskTier:
        self.close()
        self._tier = DiskTier.open(empty_dir(self._root), capacity(self._work, self._root))
        expect(self._tier.put(warm_blocks(self._work)), Put.STORED)
        self._tier.sync()
        return self._tier

    def write(self) -> Sample:
        work, tier = self._work, self._fresh()

        def action() -> None:
            for batch in work.puts():
                expect(tier.put(blocks_of(work, batch)), Put.STORED)
            tier.sync()

        return timed(action, work.nbytes)

    def read(self, operation: str) -> Sample:
        work, tier = self._work, self._tier
        assert tier is not None, "write comes first"
        drop_cache(self._root)

        def action() -> None:
            for batch in work.gets(operation):
                reads = [Read(BlockKey(work.keys[index]), work.target[index]) for index in batch]
                expect(tier.get(reads), Get.HIT)

        return timed(action, work.nbytes)

    def note(self) -> str:
        return self._tier.io_mode if self._tier else "not opened"

    def close(self) -> None:
        if self._tier is not None:
            self._tier.close()
            self._tier = None
