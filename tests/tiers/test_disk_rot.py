"""Bits that flip, books that are off, ways of I/O that are not there: found, counted, got over."""

import errno
import os
import random
import threading

import pytest

from kvlake.testing.blocks import (
    accounting_faults,
    block_of,
    fetch,
    get_all,
    key_of,
    put_all,
    wrong_keys,
)
from kvlake.tiers.disk import Device
from kvlake.tiers.disk import device as device_module
from kvlake.tiers.disk.record import location_of
from kvlake.tiers.tier import PAGE_BYTES, Get

NBYTES = 20_000


def place(tier, key):
    """File and byte offset of a block's payload."""
    location = location_of(tier._index[key])
    segment, page = divmod(location.page, tier._segments.segment_pages)
    return tier._device.root / f"{segment:05d}.seg", page * PAGE_BYTES


def flip(path, bit):
    """Rot, behind everybody's back."""
    fd = os.open(path, os.O_RDWR)
    (byte,) = os.pread(fd, 1, bit // 8)
    os.pwrite(fd, bytes([byte ^ 1 << bit % 8]), bit // 8)
    os.fsync(fd)
    os.close(fd)


class TestRot:
    @pytest.mark.parametrize("seed", range(3))
    def test_a_flipped_bit_is_corrupt_and_counted_and_dropped(self, tier, seed):
        rng = random.Random(seed)
        keys = put_all(tier, range(40))
        rotten = rng.sample(keys, 7)
        for key in rotten:
            path, offset = place(tier, key)
            flip(path, 8 * offset + rng.randrange(8 * NBYTES))
        assert get_all(tier, keys) == [Get.CORRUPT if key in rotten else Get.HIT for key in keys]
        assert tier.counters["corrupt_blocks"] == 7
        assert get_all(tier, keys) == [Get.MISS if key in rotten else Get.HIT for key in keys]
        put_all(tier, [n for n in range(40) if key_of(n) in rotten])
        assert wrong_keys(tier) == {}

    def test_rot_anywhere_is_never_wrong_bytes(self, tier):
        rng = random.Random(4)
        keys = put_all(tier, range(100))
        path, _ = place(tier, keys[0])
        for _ in range(300):
            flip(path, 8 * PAGE_BYTES + rng.randrange(8 * 600 * PAGE_BYTES))
        outcomes = get_all(tier, keys)
        assert set(outcomes) == {Get.HIT, Get.CORRUPT}
        assert tier.counters["corrupt_blocks"] == outcomes.count(Get.CORRUPT)

    def test_right_bytes_in_the_wrong_place_are_corrupt(self, tier):
        keys = put_all(tier, range(2))
        (path, first), (_, second) = place(tier, keys[0]), place(tier, keys[1])
        with path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), os.pread(file.fileno(), NBYTES, first), second)
            os.fsync(file.fileno())
        assert get_all(tier, keys) == [Get.HIT, Get.CORRUPT]

    def test_check_finds_it_and_can_drop_it(self, tier):
        keys = put_all(tier, range(30))
        path, offset = place(tier, keys[11])
        flip(path, 8 * offset)
        report = tier.check()
        assert [(problem.key, problem.what) for problem in report.problems] == [(keys[11], "fails its checksum")]
        assert not report.ok
        assert tier.check(fix=True).ok
        assert tier.check().problems == ()
        assert get_all(tier, keys).count(Get.MISS) == 1


class TestModes:
    def test_without_direct_io_it_says_why(self, root, monkeypatch, open_disk):
        real = os.open

        def open_without_direct(path, flags, *rest, **more):
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return real(path, flags, *rest, **more)

        monkeypatch.setattr(os, "open", open_without_direct)
        tier = open_disk(Device(root))
        assert tier.io_mode == "buffered-threads"
        assert "no O_DIRECT here" in tier.why_not_direct
        put_all(tier, range(5))
        assert wrong_keys(tier) == {}

    def test_a_queue_that_runs_out_later_is_replaced_by_threads(self, root, without_aio, open_disk):
        device = Device(root)
        if device.io_mode != "direct-aio":
            pytest.skip(f"this disk does {device.io_mode}")
        without_aio()
        tier = open_disk(device)
        put_all(tier, range(5))
        assert tier.io_mode == "direct-threads"
        assert wrong_keys(tier) == {}

    def test_a_ram_file_system_is_not_asked_for_direct_io(self, tmp_path, monkeypatch):
        monkeypatch.setattr(device_module, "_file_system", lambda path: 0x01021994)
        device = Device(tmp_path)
        assert (device.io_mode, device.why_not_direct) == ("buffered-threads", "tmpfs is a RAM file system")
        device.close()


def test_an_audit_in_the_midst_of_work_gives_no_false_alarm(open_disk):
    tier, alarms, done = open_disk(), [], threading.Event()

    def audit():
        while not done.is_set():
            alarms.extend(tier.check().problems)

    thread = threading.Thread(target=audit)
    thread.start()
    rng = random.Random(5)
    for number in range(300):
        tier.put([block_of(number, rng.randrange(1, 60_000))])
        held = [record.key for record in tier.records()]
        tier.remove(rng.sample(held, len(held) // 8), wipe=number % 10 == 0)
    done.set()
    thread.join()
    assert alarms == []
    assert fetch(tier, key_of(299), next(r.nbytes for r in tier.records() if r.key == key_of(299)))[0] is Get.HIT
    assert accounting_faults(tier) == []


def test_fixing_the_count_frees_nothing_twice(open_disk):
    tier = open_disk()
    keys = put_all(tier, range(10))
    tier.remove(keys[1:6])
    tier._state.used_pages += 3
    report = tier.check(fix=True)
    assert "pages are said to be in use" in report.problems[0].what
    assert report.ok
    tier.put([block_of(20, NBYTES, parent=keys[0])])  # would best lie where the removed ones lay
    tier.sync()
    assert accounting_faults(tier) == []
    put_all(tier, range(30, 60))
    assert wrong_keys(tier) == {}
