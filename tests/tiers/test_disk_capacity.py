"""The disk tier never takes more than it may, whatever it is given."""

import threading

import pytest

from kvlake.base.errors import CapacityError
from kvlake.testing.blocks import (
    accounting_faults,
    block_of,
    held_by,
    key_of,
    put_all,
    wrong_keys,
)
from kvlake.tiers.disk import Device
from kvlake.tiers.disk.record import location_of
from kvlake.tiers.disk.recover import JOURNAL, DiskOptions
from kvlake.tiers.tier import Put

MIB = 1 << 20


def disk_use(root):
    """What `du` says of the files in `root`."""
    total = 0
    for path in root.iterdir():
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # removed since it was listed
    return total


class TestCapacity:
    def test_the_smallest_capacity_has_a_name(self, open_disk):
        with pytest.raises(CapacityError, match="at least 16"):
            open_disk(capacity_bytes=16 * MIB - 1)

    def test_a_disk_without_room_is_refused(self, open_disk):
        with pytest.raises(CapacityError, match="no room for a store"):
            open_disk(reserve_bytes=1 << 60)

    def test_it_grows_only_while_the_reserve_is_kept(self, open_disk, monkeypatch):
        tier = open_disk(reserve_bytes=2 * MIB)
        monkeypatch.setattr(Device, "free_bytes", lambda self: 5 * MIB)
        assert tier.put([block_of(1, 100)]) == [Put.FULL]
        assert "kept in reserve" in tier._segments.growth_error
        monkeypatch.setattr(Device, "free_bytes", lambda self: 6 * MIB)
        put_all(tier, [1])

    def test_a_lower_capacity_drops_what_is_past_it(self, root, open_disk):
        tier = open_disk(capacity_bytes=32 * MIB)
        keys = put_all(tier, range(90), 256_000)
        tier.close()
        tier = open_disk()
        assert disk_use(root) <= 16 * MIB
        assert tier.usage().used_bytes <= tier.usage().capacity_bytes <= 16 * MIB
        assert held_by(tier) < set(keys)
        assert len(held_by(tier)) > 30
        assert tier.counters["unplaced_blocks"] == 90 - len(held_by(tier))
        assert wrong_keys(tier) == {}
        assert accounting_faults(tier) == []
        left = held_by(tier)
        tier.close()
        assert held_by(open_disk(capacity_bytes=32 * MIB)) == left

    def test_a_capacity_below_one_segment_is_refused_not_obeyed(self, root, open_disk):
        tier = open_disk(capacity_bytes=1 << 30)
        keys = put_all(tier, range(3))
        tier.close()
        with pytest.raises(CapacityError, match="32"):
            open_disk()
        assert held_by(open_disk(capacity_bytes=1 << 30)) == set(keys)

    def test_a_lower_capacity_shrinks_the_journal_too(self, root, open_disk):
        tier = open_disk(capacity_bytes=64 * MIB)
        put_all(tier, range(2900), 64)
        tier.remove([key_of(number) for number in range(1000)])
        tier.close()
        tier = open_disk()
        limit = DiskOptions(capacity_bytes=16 * MIB).max_blocks
        assert held_by(tier) == {key_of(number) for number in range(2900 - limit, 2900)}
        assert (root / JOURNAL).stat().st_size < 100 * limit
        assert disk_use(root) <= 16 * MIB
        assert accounting_faults(tier) == []
        tier.close()
        assert open_disk().usage().blocks == limit

    def test_five_times_the_capacity_never_takes_more_than_the_capacity(self, root, open_disk):
        tier, most, done = open_disk(), [], threading.Event()
        watcher = threading.Thread(target=lambda: [most.append(disk_use(root)) for _ in iter(done.is_set, True)])
        watcher.start()
        written, held = 0, []
        while written < 5 * tier.usage().capacity_bytes:
            blocks = [block_of(written + number, 1 + (written + 9973 * number) % 200_000) for number in range(10)]
            for block, outcome in zip(blocks, tier.put(blocks), strict=True):
                assert outcome in (Put.STORED, Put.FULL)
                if outcome is Put.STORED:
                    held.append(block.key)
                    written += len(block.data)
                else:
                    tier.remove([held.pop(0) for _ in range(min(4, len(held)))])
            assert tier.usage().used_bytes <= tier.usage().capacity_bytes
        done.set()
        watcher.join()
        assert max(*most, disk_use(root)) <= 16 * MIB
        assert tier.disk_bytes() <= 16 * MIB
        assert wrong_keys(tier) == {}
        assert accounting_faults(tier) == []

    def test_more_blocks_than_the_journal_holds_are_not_taken(self, root, open_disk):
        tier = open_disk()
        limit = DiskOptions(capacity_bytes=16 * MIB).max_blocks
        outcomes = [outcome for at in range(0, limit + 40, 40) for outcome in tier.put(tiny(at, 40))]
        assert outcomes.count(Put.STORED) == limit == tier.usage().blocks
        assert outcomes.count(Put.FULL) == len(outcomes) - limit
        tier.close()
        assert disk_use(root) <= 16 * MIB
        assert open_disk().usage().blocks == limit

    def test_a_lost_segment_in_the_middle_costs_no_other_when_the_disk_is_full(self, root, open_disk, monkeypatch):
        tier = open_disk()
        put_all(tier, range(40), 256_000)
        last = {record.key for record in tier.records()} & holds_in(tier, 2)
        tier.close()
        (root / "00000.seg").unlink()
        monkeypatch.setattr(Device, "free_bytes", lambda self: 0)
        assert last <= held_by(open_disk())


def tiny(first, count):
    return [block_of(number, 1) for number in range(first, first + count)]


def holds_in(tier, segment):
    pages = tier._state.segments.segment_pages
    return {key for key, packed in tier._index.items() if location_of(packed).page // pages == segment}
