"""A disk that lies, fails, fills up or hangs: outcomes and counts, never wrong bytes, and then service goes on."""

import errno
import threading

import pytest

from kvlake.testing.blocks import (
    block_of,
    get_all,
    put_all,
    wrong_keys,
)
from kvlake.testing.faults import FOREVER, Fault, FaultyDevice
from kvlake.tiers.disk import commits
from kvlake.tiers.disk.recover import JOURNAL
from kvlake.tiers.tier import PAGE_BYTES, Get, Put

MIB = 1 << 20
NBYTES = 20_000


class TestWriteErrors:
    @pytest.mark.parametrize("fault", [
        {"errno": errno.EIO}, {"errno": errno.ENOSPC}, {"moved_bytes": PAGE_BYTES}, {"moved_bytes": 0},
    ])  # fmt: skip
    def test_only_the_blocks_of_the_failed_job_are_lost(self, tier, faults, fault):
        first = put_all(tier, range(5))
        faults.add(Fault("write", name=".seg", skip=1, **fault))
        blocks = [block_of(number, 300_000) for number in range(10, 20)]  # several jobs
        outcomes = tier.put(blocks)
        assert set(outcomes) == {Put.STORED, Put.ERROR}
        assert tier.counters["write_errors"] == 1
        retried = tier.put(blocks)
        assert retried == [Put.PRESENT if outcome is Put.STORED else Put.STORED for outcome in outcomes]
        assert len(list(tier.records())) == len(first) + len(blocks)
        assert wrong_keys(tier) == {}

    def test_a_disk_that_takes_nothing_is_not_written_to(self, tier, faults):
        keys = put_all(tier, range(5))
        faults.add(Fault("write", name=".seg", errno=errno.EIO, times=FOREVER))
        for number in range(10, 20):
            assert tier.put([block_of(number, NBYTES)]) == [Put.ERROR]
        assert tier.counters["write_errors"] == 10
        assert get_all(tier, keys) == [Get.HIT] * 5
        faults.clear()
        put_all(tier, range(10, 20))

    @pytest.mark.parametrize("where", ["preallocate", "write"])
    def test_a_segment_that_cannot_be_made_is_no_room(self, tier, faults, where, root):
        faults.add(Fault(where, name=".seg", errno=errno.ENOSPC, times=3))
        for number in range(3):
            assert tier.put([block_of(number, NBYTES)]) == [Put.FULL]
        assert "injected" in tier._segments.growth_error
        assert list(root.glob("*.seg")) == []
        put_all(tier, range(3))
        assert tier._segments.growth_error == ""

    @pytest.mark.parametrize("where", ["sync", "names"])
    def test_a_new_segment_is_made_durable_by_the_commit(self, tier, faults, where):
        name = ".seg" if where == "sync" else ""
        faults.add(Fault(where, name=name, errno=errno.EIO), Fault(where, name=name))
        keys = put_all(tier, range(3))
        with pytest.raises(OSError, match="injected"):
            tier.sync()
        tier.sync()
        assert faults.struck[where] == 2  # tried again
        assert get_all(tier, keys) == [Get.HIT] * 3

    def test_a_bad_block_of_the_caller_spoils_nothing(self, tier):
        good, flawed = block_of(1, NBYTES), block_of(2, NBYTES)
        for data in ("text", memoryview(bytes(NBYTES))[::2]):
            with pytest.raises((TypeError, BufferError, ValueError)):
                tier.put([good, flawed._replace(data=data)])
        assert tier.put([good, flawed]) == [Put.STORED, Put.STORED]
        assert wrong_keys(tier) == {}

    def test_a_record_that_cannot_be_packed_does_not_hang(self, tier):
        put_all(tier, [1])
        blocks = [block_of(number, 400_000) for number in range(10, 16)]
        with pytest.raises(Exception, match=r"format|range|argument"):
            tier.put([*blocks, block_of(20, NBYTES)._replace(expires_s=-1)])
        assert tier.check(fix=True).ok
        put_all(tier, [20])
        assert wrong_keys(tier) == {}


class TestReadErrors:
    def test_one_bad_block_in_a_merged_read_costs_no_other(self, tier, faults):
        keys = put_all(tier, range(20))
        # The merged read fails, then each block is asked for alone, and the fourth fails again.
        faults.add(Fault("read", name=".seg", errno=errno.EIO))
        faults.add(Fault("read", name=".seg", errno=errno.EIO, skip=3))
        outcomes = get_all(tier, keys)
        assert outcomes.count(Get.ERROR) == 1
        assert outcomes.count(Get.HIT) == 19
        assert tier.counters["read_errors"] == 1
        assert get_all(tier, keys) == [Get.HIT] * 20

    def test_a_short_read_is_not_a_hit(self, tier, faults):
        keys = put_all(tier, range(5))
        faults.add(Fault("read", name=".seg", moved_bytes=PAGE_BYTES, times=6))
        assert get_all(tier, keys) == [Get.ERROR] * 5
        assert get_all(tier, keys) == [Get.HIT] * 5

    def test_check_says_what_cannot_be_read(self, tier, faults):
        put_all(tier, range(5))
        faults.add(Fault("read", name=".seg", errno=errno.EIO, skip=2))
        (problem,) = tier.check().problems
        assert "cannot be read: Input/output error" in problem.what

    def test_a_read_that_hangs_holds_up_nobody_else(self, tier, faults):
        keys = put_all(tier, range(5))
        faults.add(Fault("read", name=".seg", delay_s=FOREVER))
        found = []
        thread = threading.Thread(target=lambda: found.append(get_all(tier, keys)))
        thread.start()
        while not faults.struck["read"]:
            pass
        put_all(tier, range(10, 15))
        tier.sync()
        assert get_all(tier, keys) == [Get.HIT] * 5
        faults.clear()
        thread.join(10)
        assert found == [[Get.HIT] * 5]


class TestSyncErrors:
    @pytest.mark.parametrize(("on", "name"), [("sync", ".seg"), ("sync", JOURNAL), ("write", JOURNAL)])
    def test_a_failed_commit_tells_and_the_next_one_makes_up(self, tier, faults, open_disk, on, name):
        keys = put_all(tier, range(20))
        tier.remove(keys[:5])
        faults.add(Fault(on, name=name, errno=errno.EIO, moved_bytes=50))
        with pytest.raises(OSError, match="injected"):
            tier.sync()
        assert tier.counters["sync_errors"] == 1
        more = put_all(tier, range(30, 35))
        assert get_all(tier, keys[5:] + more) == [Get.HIT] * 20
        tier.sync()
        tier.close()
        again = open_disk()
        assert {record.key for record in again.records()} == {*keys[5:], *more}
        assert wrong_keys(again) == {}

    @pytest.mark.parametrize("fault", [
        {"on": "names"}, {"on": "sync", "name": JOURNAL}, {"on": "write", "name": ".new"},
    ])  # fmt: skip
    def test_a_failed_compaction_loses_nothing(self, tier, faults, open_disk, monkeypatch, fault):
        keys = put_all(tier, range(20))
        tier.sync()
        monkeypatch.setattr(commits, "_SLACK_BYTES", -(1 << 40))
        faults.add(Fault(errno=errno.EIO, **fault))
        with pytest.raises(OSError, match="injected"):
            tier.sync()
        monkeypatch.undo()
        late = put_all(tier, range(30, 33))
        tier.remove(keys[:2])
        tier.sync()
        tier.close()
        again = open_disk()
        assert {record.key for record in again.records()} == {*keys[2:], *late}
        assert wrong_keys(again) == {}

    def test_without_commits_room_is_not_used_again(self, tier, faults):
        keys = put_all(tier, range(40), 256_000)
        tier.sync()
        tier.remove(keys)
        faults.add(Fault("sync", name=JOURNAL, errno=errno.EIO, times=FOREVER))
        assert tier.put([block_of(100, 3 * MIB)]) == [Put.FULL]
        assert tier.counters["sync_errors"]
        faults.clear()
        put_all(tier, [100], 3 * MIB)

    def test_room_is_not_used_again_while_the_commit_is_under_way(self, tier, faults):
        keys = put_all(tier, range(40), 256_000)
        tier.sync()
        tier.remove(keys)
        faults.add(Fault("sync", name=JOURNAL, delay_s=FOREVER))
        thread = threading.Thread(target=tier.sync)
        thread.start()
        while not faults.struck["sync"]:
            pass
        assert tier.put([block_of(100, 3 * MIB)]) == [Put.FULL]
        faults.clear()
        thread.join(10)
        put_all(tier, [100], 3 * MIB)

    def test_data_whose_sync_failed_is_synced_again(self, tier, faults):
        put_all(tier, range(5))
        faults.add(Fault("sync", name=".seg", errno=errno.EIO), Fault("sync", name=".seg"))
        with pytest.raises(OSError, match="injected"):
            tier.sync()
        tier.sync()
        assert faults.struck["sync"] == 2

    def test_bytes_that_cannot_be_wiped_are_told_of(self, tier, faults):
        keys = put_all(tier, range(4))
        faults.add(Fault("zero", errno=errno.EIO))
        with pytest.raises(OSError, match="injected"):
            tier.remove(keys[:2], wipe=True)
        assert get_all(tier, keys) == [Get.MISS] * 2 + [Get.HIT] * 2

    def test_close_does_not_raise(self, open_disk, device, faults):
        tier = open_disk(device)
        put_all(tier, [1])
        faults.add(Fault("sync", errno=errno.EIO, times=FOREVER))
        tier.close()
        tier.close()
        faults.clear()
        open_disk()


class TestOpenErrors:
    def lost_journal(self, tier, root):
        keys = put_all(tier, range(40))
        tier.close()
        (root / JOURNAL).unlink()
        return keys

    def test_a_journal_that_cannot_be_read_is_not_taken_for_a_torn_one(self, root, open_disk):
        keys = put_all(tier := open_disk(), range(5))
        tier.close()
        device = FaultyDevice(root, direct=False, faults=[Fault("read", name=JOURNAL, errno=errno.EIO)])
        with pytest.raises(OSError, match="injected"):
            open_disk(device)
        assert {record.key for record in open_disk().records()} == set(keys)

    def test_a_bad_spot_costs_a_rebuild_only_what_lies_there(self, root, open_disk):
        keys = self.lost_journal(open_disk(), root)
        device = FaultyDevice(root, direct=False)
        # Past the two header reads: the first stretch fails as a whole, then one page of it alone.
        device.faults.add(Fault("read", name=".seg", errno=errno.EIO, skip=2))
        device.faults.add(Fault("read", name=".seg", errno=errno.EIO, skip=2 + 10))
        tier = open_disk(device)
        assert device.faults.struck["read"] == 2
        assert len(keys) - 2 <= len(list(tier.records())) <= len(keys)
        assert wrong_keys(tier) == {}

    def test_a_rebuild_that_cannot_be_noted_fails_and_can_be_tried_again(self, root, open_disk):
        keys = self.lost_journal(open_disk(), root)
        device = FaultyDevice(root, direct=False, faults=[Fault("sync", name=JOURNAL, errno=errno.EIO)])
        with pytest.raises(OSError, match="injected"):
            open_disk(device)
        assert {record.key for record in open_disk().records()} == set(keys)
