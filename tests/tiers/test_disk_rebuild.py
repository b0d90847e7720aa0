"""What lies on the disk: enough to make a lost journal again, and nothing of what was wiped."""

import errno
import os

import pytest

from kvlake.testing.blocks import (
    accounting_faults,
    block_of,
    held_by,
    key_of,
    put_all,
    traces_of,
    wrong_keys,
)
from kvlake.tiers.disk import device as device_module
from kvlake.tiers.disk.recover import JOURNAL
from kvlake.tiers.tier import PAGE_BYTES, Get, Put, Read, aligned_buffer

MIB = 1 << 20


def segment_bytes(root):
    return b"".join(path.read_bytes() for path in sorted(root.glob("*.seg")))


def no_sync():
    raise OSError(errno.EIO, "the journal cannot be written")


class TestRebuilt:
    """The journal is lost; the segments tell."""

    @pytest.fixture(params=["gone", "garbage"])
    def lose_journal(self, root, request):
        def lose():
            if request.param == "gone":
                (root / JOURNAL).unlink()
            else:
                (root / JOURNAL).write_bytes(os.urandom(500))

        return lose

    def test_the_blocks_are_found_again(self, open_disk, lose_journal):
        tier = open_disk()
        for size in (1, 4096, 5000, 300_000):
            put_all(tier, range(size, size + 20), size)
        before = sorted(tier.records())
        tier.close()
        lose_journal()
        tier = open_disk()
        assert sorted(tier.records()) == before
        assert tier.counters["rebuilt_blocks"] == 80
        assert wrong_keys(tier) == {}
        assert accounting_faults(tier) == []
        tier.close()
        assert sorted(open_disk().records()) == before

    def test_wiped_blocks_are_not(self, open_disk, lose_journal):
        tier = open_disk()
        keys = put_all(tier, range(40))
        tier.remove(keys[::2], wipe=True)
        tier.close()
        lose_journal()
        tier = open_disk()
        assert held_by(tier) == set(keys[1::2])
        assert wrong_keys(tier) == {}

    def test_nothing_false_is_found_where_runs_overwrote_others(self, open_disk, lose_journal):
        tier = open_disk()
        for round_number in range(6):
            tier.remove(list(held_by(tier))[::2])
            tier.put([block_of(1000 * round_number + n, 7000 * (1 + n % 9)) for n in range(60)])
        live = held_by(tier)
        tier.close()
        lose_journal()
        tier = open_disk()
        assert held_by(tier) >= live
        assert wrong_keys(tier) == {}
        assert accounting_faults(tier) == []

    def test_equal_bytes_under_two_keys_do_not_cost_both(self, open_disk, lose_journal):
        tier = open_disk()
        same = bytes(20_000)
        old, new = block_of(1, 1)._replace(data=same), block_of(2, 1)._replace(data=same)
        before, behind = block_of(3, PAGE_BYTES), block_of(4, PAGE_BYTES)
        tier.put([before, old, behind])
        tier.remove([before.key, old.key])  # the run's descriptor stays, for `behind`
        tier.sync()
        assert tier.put([new._replace(parent=key_of(3))]) == [Put.STORED]
        tier.close()
        lose_journal()
        assert open_disk().get([Read(new.key, aligned_buffer(20_000))]) == [Get.HIT]


class TestWipe:
    def test_the_bytes_are_gone_from_the_disk(self, root, open_disk):
        tier = open_disk()
        blocks = [block_of(number, 20_000) for number in range(6)]
        tier.put(blocks)
        tier.remove([blocks[2].key], wipe=True)
        found = segment_bytes(root)
        assert traces_of(blocks[2].data, found) == 0
        assert traces_of(blocks[1].data, found) == len(blocks[1].data) // 64
        assert wrong_keys(tier) == {}

    def test_no_block_leaves_bytes_in_the_padding_of_another(self, root, open_disk):
        tier = open_disk()
        secret = block_of(1, 3 * PAGE_BYTES - 1)
        tier.put([secret])
        tier.put([block_of(2, 10), block_of(3, PAGE_BYTES + 10)])
        tier.remove([secret.key], wipe=True)
        assert traces_of(secret.data, segment_bytes(root)) == 0

    def test_a_disk_without_means_to_zero_is_written_over(self, root, open_disk, monkeypatch):
        class NoFallocate:
            def fallocate(self, *_):
                return -1

        tier = open_disk()
        block = block_of(1, 3 * MIB)
        tier.put([block])
        monkeypatch.setattr(device_module, "_libc", NoFallocate())
        tier.remove([block.key], wipe=True)
        assert traces_of(block.data[:100_000], segment_bytes(root)) == 0

    def test_removed_room_waits_for_the_commit(self, open_disk, monkeypatch):
        """What the journal still names must not be overwritten."""
        tier = open_disk()
        keys = put_all(tier, range(44), 256_000)
        used = tier.usage().used_bytes
        assert tier.remove(keys) == used
        monkeypatch.setattr(tier, "sync", no_sync)
        assert tier.put([block_of(100, 3 * MIB)]) == [Put.FULL]
        monkeypatch.undo()
        assert tier.put([block_of(100, 3 * MIB)]) == [Put.STORED]
