"""Getting: from where, within what time, and each block only once at a time."""

import errno
import math
import threading
import time

import pytest

from kvlake.base.errors import BufferSizeError, StoreClosedError
from kvlake.testing.blocks import key_of
from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import FOREVER, Fault
from kvlake.tiers.tier import PAGE_BYTES, Get, Put, aligned_buffer


@pytest.fixture
def cold(stores, kit):
    """(settings) -> a store and 16 blocks that only the disk holds."""

    def make(count=16, **settings):
        store = stores(**settings)
        blocks = kit.chain(0, count)
        store.put(blocks)
        store.flush(10)
        store.session("cold").turn(kit.keys_of(blocks), 160)
        store.session("cold").idle()
        assert kit.held_by(store, "memory", blocks) == 0
        return store, blocks

    return make


def test_a_missing_block_is_a_miss_and_leaves_its_neighbours_alone(stores, kit):
    store = stores()
    blocks = kit.chain(0, 3)
    store.put(blocks[:2])
    assert kit.fetch(store, blocks) == [Get.HIT, Get.HIT, Get.MISS]
    assert store.get([], []) == []


def test_buffers_of_the_wrong_length_or_number_are_the_callers_mistake(cold, kit):
    store, blocks = cold()
    with pytest.raises(BufferSizeError, match="block_nbytes"):
        store.get([blocks[0].key], [bytearray(5)])
    with pytest.raises(BufferSizeError, match="2 keys and 1 buffers"):
        store.get(kit.keys_of(blocks[:2]), [bytearray(PAGE_BYTES)])
    assert set(kit.fetch(store, blocks)) == {Get.HIT}, "a mistake leaves no block announced as being read"


def test_the_first_read_leaves_a_block_on_the_disk_and_the_second_promotes_it(cold, kit):
    store, blocks = cold()
    kit.fetch(store, blocks)
    assert kit.held_by(store, "memory", blocks) == 0
    kit.fetch(store, blocks)
    assert kit.held_by(store, "memory", blocks) == 16
    read = store.disk.asked["blocks_read"]
    assert set(kit.fetch(store, blocks)) == {Get.HIT}
    assert store.disk.asked["blocks_read"] == read


def test_two_readers_of_one_block_cost_one_read_of_the_disk(cold, kit):
    store, blocks = cold()
    store.disk.faults.add(Fault("get", delay_s=0.3))
    results = []
    threads = [threading.Thread(target=lambda: results.append(kit.fetch(store, blocks))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[Get.HIT] * 16] * 2
    assert store.disk.asked["blocks_read"] == 16


def test_who_waits_for_another_reader_waits_no_longer_than_his_own_deadline(cold, kit):
    store, blocks = cold()
    store.disk.faults.add(Fault("get", delay_s=FOREVER))
    first = threading.Thread(target=kit.fetch, args=(store, blocks), kwargs={"timeout_s": 5.0})
    first.start()
    assert kit.wait_until(lambda: store.disk.asked["get"])
    began = time.monotonic()
    assert set(kit.fetch(store, blocks, timeout_s=0.2)) <= {Get.TIMEOUT, Get.HIT}
    assert time.monotonic() - began < 2
    store.disk.faults.clear()
    first.join()


def test_what_the_other_reader_could_not_bring_is_tried_once_more(cold, kit):
    store, blocks = cold()
    store.disk.faults.add(Fault("get", delay_s=0.3, errno=errno.EIO))
    results = []
    threads = [threading.Thread(target=lambda: results.append(kit.fetch(store, blocks))) for _ in range(2)]
    for thread in threads:
        thread.start()
        kit.wait_until(lambda: store.disk.asked["get"])
    for thread in threads:
        thread.join()
    assert sorted(outcomes[0].value for outcomes in results) == ["error", "hit"]


def test_after_the_deadline_a_late_read_writes_a_buffer_that_is_still_there(cold, kit):
    store, blocks = cold()
    store.disk.faults.add(Fault("get", delay_s=FOREVER))
    buffers = [aligned_buffer(PAGE_BYTES) for _ in blocks]
    began = time.monotonic()
    assert store.get(kit.keys_of(blocks), buffers, timeout_s=0.2) == [Get.TIMEOUT] * 16
    assert time.monotonic() - began < 2
    del buffers
    store.disk.faults.clear()
    kit.settle(store)
    assert store.counters()["get_timeout"] == 16
    assert store.counters()["disk_timeouts"] == 1
    assert set(kit.fetch(store, blocks)) == {Get.HIT}


def test_memory_is_not_asked_against_the_clock(stores, kit):
    store = stores()
    blocks = kit.chain(0, 4)
    store.put(blocks)
    assert kit.fetch(store, blocks, timeout_s=0.0) == [Get.HIT] * 4


def test_an_endless_deadline_is_waited_for_on_ones_own_thread(cold, kit):
    store, blocks = cold()
    seen = []
    read = store.disk.tier.get
    store.disk.tier.get = lambda reads: seen.append(threading.current_thread()) or read(reads)
    assert set(kit.fetch(store, blocks, timeout_s=math.inf)) == {Get.HIT}
    assert seen == [threading.current_thread()]


def test_a_copy_dropped_under_a_reader_is_read_from_below(stores, kit):
    store = stores()
    blocks = kit.chain(0, 8)
    store.put(blocks)
    store.flush(10)
    memory = store.tiers()[0]
    read = memory.get

    def drop_first(reads):
        store._moves.drop_copies(0, kit.keys_of(blocks))
        return read(reads)

    memory.get = drop_first
    assert set(kit.fetch(store, blocks)) == {Get.HIT}
    memory.get = read
    assert kit.held_by(store, "memory", blocks) == 0


def test_a_corrupt_block_is_forgotten_with_all_that_hangs_on_it(cold, kit, tmp_path):
    store, blocks = cold()
    store.flush(10)
    spoil(tmp_path / "kv", blocks[5].data)
    outcomes = kit.fetch(store, blocks)
    assert outcomes[:5] == [Get.HIT] * 5
    assert outcomes[5] is Get.CORRUPT
    assert store.match(kit.keys_of(blocks)) == 5
    assert store.counters()["lost_blocks"] == 11
    assert kit.held_by(store, "disk", blocks) == 5
    assert set(store.put(blocks)) == {Put.PRESENT, Put.STORED}
    assert store.match(kit.keys_of(blocks)) == 16
    assert set(kit.fetch(store, blocks)) == {Get.HIT}


def test_a_corrupt_copy_is_no_loss_where_memory_has_the_block(stores, kit, tmp_path):
    store = stores()
    blocks = kit.chain(0, 4)
    store.put(blocks)
    store.flush(10)
    spoil(tmp_path / "kv", blocks[1].data)
    assert sum(len(report.problems) for report in store.check(fix=True)) == 2, "the disk's finding, and the index's"
    assert kit.held_by(store, "disk", blocks) == 3
    assert set(kit.fetch(store, blocks)) == {Get.HIT}
    assert store.flush(10)
    assert kit.held_by(store, "disk", blocks) == 4, "written once more"


def test_an_expired_block_is_a_miss_to_match_and_get(stores, kit):
    clock = FakeClock(wall_s=1000.0)
    store = stores(clock=clock)
    blocks = kit.chain(0, 2) + kit.chain(2, 2, after=kit.chain(0, 2)[-1], expires_s=1010)
    store.put(blocks)
    assert store.match(kit.keys_of(blocks)) == store.match_scan(kit.keys_of(blocks)) == 4
    clock.set_wall(1010.0)
    assert store.match(kit.keys_of(blocks)) == store.match_scan(kit.keys_of(blocks)) == 2
    assert kit.fetch(store, blocks) == [Get.HIT, Get.HIT, Get.MISS, Get.MISS]


def test_a_prefetch_brings_a_chain_into_memory(cold, kit):
    store, blocks = cold()
    assert store.prefetch(kit.keys_of(blocks)).result(10) == 16
    assert kit.held_by(store, "memory", blocks) == 16
    assert store.prefetch([*kit.keys_of(blocks), key_of(999)]).result(10) == 16
    assert store.prefetch([key_of(999)]).result(10) == 0


def test_a_prefetch_larger_than_memory_brings_the_beginning_and_stops(cold, kit, monkeypatch):
    monkeypatch.setattr("kvlake.store.reads._PREFETCH_BYTES", 8 * PAGE_BYTES)
    store, blocks = cold(count=150)
    read = store.disk.asked["blocks_read"]
    assert store.prefetch(kit.keys_of(blocks)).result(10) == 64
    assert store.disk.asked["blocks_read"] - read <= 72, "no more is read than memory can take"


def test_a_prefetch_makes_room_from_what_is_older(cold, kit):
    store, blocks = cold(count=64)
    store.put(kit.chain(500, 60))
    store.flush(10)
    assert store.prefetch(kit.keys_of(blocks)).result(10) == 64


def test_a_prefetch_waits_for_a_reader_who_is_there_already(cold, kit):
    store, blocks = cold()
    store.disk.faults.add(Fault("get", delay_s=0.3))
    reader = threading.Thread(target=kit.fetch, args=(store, blocks))
    reader.start()
    kit.wait_until(lambda: store.disk.asked["get"])
    assert store.prefetch(kit.keys_of(blocks)).result(10) == 16
    reader.join()


@pytest.mark.parametrize("fault", [{"errno": errno.EIO}, {"outcome": None, "delay_s": 0.4}])
def test_a_prefetch_from_a_sick_disk_brings_what_it_can(cold, kit, fault):
    store, blocks = cold(get_timeout_s=0.2)
    store.disk.faults.add(Fault("get", **fault))
    assert store.prefetch(kit.keys_of(blocks)).result(10) == 0
    kit.settle(store)
    assert store.prefetch(kit.keys_of(blocks)).result(10) == 16


def test_a_prefetch_without_a_slower_tier_tells_what_is_there(stores, kit):
    store = stores(disk_bytes=0)
    store.put(kit.chain(0, 3))
    assert store.prefetch(kit.keys_of(kit.chain(0, 5))).result(10) == 3


def test_what_an_engine_reads_is_used_now(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock, disk_bytes=0)
    first, second = kit.chain(0, 30), kit.chain(100, 30)
    store.put(first)
    clock.advance(1)
    store.put(second)
    clock.advance(1)
    kit.fetch(store, first)
    store.put(kit.chain(200, 10))
    assert store.match(kit.keys_of(first)) == 30
    assert store.match(kit.keys_of(second)) < 30


def test_a_closed_store_says_so(stores, kit):
    store = stores()
    store.close()
    for call in (
        lambda: kit.fetch(store, []),
        lambda: store.prefetch([]),
        lambda: store.evict([]),
        lambda: store.session("a"),
        store.flush,
        store.check,
    ):
        with pytest.raises(StoreClosedError, match="open it again"):
            call()
    store.close()


def spoil(folder, payload):
    """Flip a byte of `payload` wherever it lies on the disk."""
    for segment in folder.glob("*.seg"):
        with segment.open("r+b") as file:
            at = file.read().find(payload)
            if at >= 0:
                file.seek(at)
                file.write(bytes([payload[0] ^ 1]))
