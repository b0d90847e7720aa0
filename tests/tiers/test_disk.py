"""The disk tier over its life: opened again, shared, bounded, rebuilt."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlake.base.errors import StoreBusyError, StoreFormatError
from kvlake.keys.block import NO_PARENT
from kvlake.testing.blocks import accounting_faults, block_of, held_by, key_of, put_all, wrong_keys
from kvlake.testing.clock import FakeClock
from kvlake.tiers.disk import Device, DiskTier, commits
from kvlake.tiers.disk.record import location_of
from kvlake.tiers.disk.recover import JOURNAL, DiskOptions
from kvlake.tiers.tier import Put

MIB = 1 << 20


class TestOpenedAgain:
    @pytest.mark.parametrize("direct", [True, False])
    def test_all_that_was_put_is_there(self, root, open_disk, direct):
        tier = open_disk(Device(root, direct=direct))
        for size in (1, 4096, 5000, 300_000):
            put_all(tier, range(size, size + 10), size)
        before = sorted(tier.records()), tier.usage()
        tier.close()
        tier = open_disk(Device(root, direct=not direct))
        assert (sorted(tier.records()), tier.usage()) == before
        assert wrong_keys(tier) == {}
        assert accounting_faults(tier) == []

    def test_what_was_removed_stays_away_and_its_room_is_used(self, open_disk):
        tier = open_disk()
        keys = put_all(tier, range(100))
        tier.remove(keys[:60])
        tier.close()
        tier = open_disk()
        assert held_by(tier) == set(keys[60:])
        put_all(tier, range(200, 260))
        assert accounting_faults(tier) == []

    def test_a_wall_clock_tells_when_a_block_was_made(self, root):
        clock = FakeClock(wall_s=1234.9)
        tier = DiskTier.open(root, DiskOptions(capacity_bytes=16 * MIB, reserve_bytes=0), clock=clock)
        put_all(tier, [1])
        assert [record.created_s for record in tier.records()] == [1234]
        tier.close()

    def test_an_int_for_options_is_the_capacity(self, tmp_path):
        tier = DiskTier.open(tmp_path / "made" / "on the way", 64 * MIB)
        assert 32 * MIB < tier.usage().capacity_bytes < 64 * MIB
        assert "0 blocks" in repr(tier)
        tier.close()

    def test_the_journal_is_compacted_as_it_grows(self, root, open_disk, monkeypatch):
        monkeypatch.setattr(commits, "_SLACK_BYTES", 1024)
        tier = open_disk()
        keys = put_all(tier, range(5))
        for number in range(100, 160):
            tier.remove(put_all(tier, [number]))
            tier.sync()
        assert tier.counters["compactions"] > 3
        assert (root / JOURNAL).stat().st_size < 4096
        tier.close()
        assert held_by(open_disk()) == set(keys)

    def test_many_small_commits_merge_in_order(self, open_disk):
        tier = open_disk()
        for number in range(300):
            put_all(tier, [number], 64)
            if number % 3 == 0:
                tier.remove([key_of(number)])
                put_all(tier, [number], 65)
        tier.remove([key_of(1)])
        tier.close()
        tier = open_disk()
        assert {record.nbytes for record in tier.records()} == {64, 65}
        assert tier.usage().blocks == 299
        assert wrong_keys(tier) == {}


def test_a_chain_lies_together_though_others_grow_beside_it(open_disk):
    tier = open_disk()
    ends = {}
    for step in range(4):
        for chain in range(3):
            number = 10 * chain + step
            block = block_of(number, 8000, parent=key_of(number - 1) if step else NO_PARENT, depth=step)
            assert tier.put([block]) == [Put.STORED]
            location = location_of(tier._index[block.key])
            assert step == 0 or location.descriptor == ends[chain]
            ends[chain] = location.page + location.pages


class TestOwner:
    def test_a_second_writer_is_told_who_has_it(self, root, open_disk):
        open_disk()
        code = (
            "import sys; from kvlake.base.errors import StoreBusyError\n"
            "from kvlake.tiers.disk import DiskTier\n"
            "try: DiskTier.open(sys.argv[1], 16 << 20)\n"
            "except StoreBusyError as error: print(error)"
        )
        said = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=True).stdout
        assert f"process {os.getpid()};" in said
        with pytest.raises(StoreBusyError):
            open_disk()

    def test_a_closed_or_dead_owner_does_not_stand_in_the_way(self, open_disk):
        open_disk().close()
        open_disk()

    def test_read_only_sees_what_the_owner_has_committed(self, root, open_disk):
        owner = open_disk()
        keys = put_all(owner, range(10))
        owner.sync()
        put_all(owner, range(20, 25))
        looker = open_disk(read_only=True)
        assert held_by(looker) == set(keys)
        assert wrong_keys(looker) == {}
        assert looker.check().ok
        assert looker.put([block_of(90, 100)]) == [Put.REFUSED]
        looker.sync()
        looker.close()
        assert held_by(owner) > set(keys)
        assert accounting_faults(owner) == []

    def test_read_only_changes_nothing(self, root, open_disk):
        owner = open_disk()
        keys = put_all(owner, range(10))
        owner.sync()
        looker = open_disk(read_only=True)
        with pytest.raises(OSError, match="read-only"):
            looker.remove(keys[:5], wipe=True)
        assert looker.remove(keys[:5]) > 0
        looker.check(fix=True)
        looker.close()
        assert wrong_keys(owner) == {}
        owner.close()
        assert held_by(open_disk()) == set(keys)

    def test_read_only_does_not_repair(self, root, open_disk):
        tier = open_disk()
        keys = put_all(tier, range(3))
        tier.close()
        with (root / JOURNAL).open("ab") as file:
            file.write(b"torn")
        size = (root / JOURNAL).stat().st_size
        assert held_by(open_disk(read_only=True)) == set(keys)
        assert (root / JOURNAL).stat().st_size == size


class TestForeign:
    def test_another_directory_is_refused_and_left_alone(self, root, open_disk):
        (root / "thesis.tex").write_text("years of work")
        with pytest.raises(StoreFormatError, match=r"thesis\.tex"):
            open_disk()
        assert (root / "thesis.tex").read_text() == "years of work"

    def test_an_empty_directory_cannot_be_looked_at(self, open_disk):
        with pytest.raises(StoreFormatError, match="holds no kvlake store"):
            open_disk(read_only=True)

    def test_what_a_killed_open_left_is_no_foreign_thing(self, root, open_disk):
        for name in (".probe", "lock", JOURNAL + ".new", "sessions.log"):
            (root / name).write_bytes(b"half")
        put_all(open_disk(), [1])

    def test_a_failed_open_lets_go_of_the_directory(self, root, open_disk):
        (root / "thesis.tex").touch()
        with pytest.raises(StoreFormatError):
            open_disk()
        (root / "thesis.tex").unlink()
        open_disk()


def test_this_disk_can_do_without_fallbacks(tmp_path):
    """Says in the test report which way of I/O was tested here."""
    device = Device(Path(tmp_path))
    assert (device.io_mode == "direct-aio") == (device.why_not_direct == "")
    device.close()
