"""Putting: what enters, where, and what a sick or full tier makes of it."""

import errno
import threading
import time

import pytest

from kvlake.base.errors import StoreClosedError
from kvlake.keys.block import BlockKey
from kvlake.testing.blocks import key_of, payload_of
from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import FOREVER, Fault
from kvlake.tiers.memory import MemoryTier
from kvlake.tiers.tier import PAGE_BYTES, Get, Put

HANG = {"delay_s": FOREVER, "times": FOREVER}
EIO = {"errno": errno.EIO, "times": FOREVER}


def test_blocks_of_any_size_are_stored_and_come_back(stores, kit):
    store = stores()
    blocks = kit.chain(0, 12, lambda number: 1 + 3000 * number)
    assert set(store.put(blocks)) == {Put.STORED}
    assert set(store.put(blocks)) == {Put.PRESENT}
    assert store.match(kit.keys_of(blocks)) == 12
    assert set(kit.fetch(store, blocks)) == {Get.HIT}
    assert store.flush(10)
    assert kit.held_by(store, "disk", blocks) == 12
    assert store.counters()["put_stored"] == 12
    assert store.block_nbytes(blocks[1].key) == 3001
    assert store.block_nbytes(key_of(999)) is None


def test_an_orphan_is_refused_and_so_is_a_false_depth(stores, kit):
    store = stores()
    blocks = kit.chain(0, 4)
    assert store.put(blocks[1:]) == [Put.REFUSED] * 3
    assert store.put(blocks[:1]) == [Put.STORED]
    assert store.put([blocks[1]._replace(depth=7)]) == [Put.REFUSED]
    assert store.put(blocks[2:]) == [Put.REFUSED] * 2
    assert store.usage()["memory"].blocks == 1


def test_one_key_twice_in_a_batch_enters_once(stores, kit):
    store = stores()
    blocks = kit.chain(0, 2)
    assert store.put([*blocks, blocks[1]]) == [Put.STORED, Put.STORED, Put.PRESENT]


def test_a_first_block_hangs_on_nothing_even_where_its_parent_is_a_block(stores, kit):
    store = stores()
    first = kit.chain(0, 1)
    odd = kit.chain(50, 1, after=first[0])[0]._replace(depth=0)
    assert store.put([odd]) == [Put.STORED]
    assert store.put(first) == [Put.STORED]
    assert store.evict([odd.key]) > 0
    assert store.evict([first[0].key]) > 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda block: block._replace(key=BlockKey(b"short")),
        lambda block: block._replace(data=memoryview(bytearray(8192))[::2]),
    ],
)
def test_a_block_that_no_tier_could_take_is_refused_before_anything_enters(stores, kit, spoil):
    store = stores()
    good, bad = kit.chain(0, 2)
    with pytest.raises(ValueError, match="16 bytes"):
        store.put([good, spoil(bad)])
    assert store.put([good, bad]) == [Put.STORED, Put.STORED]


def test_what_has_expired_or_continues_nothing_but_ended_sessions_is_refused(stores, kit):
    clock = FakeClock(wall_s=1000.0)
    store = stores(clock=clock)
    assert store.put(kit.chain(0, 1, expires_s=1000)) == [Put.REFUSED]
    block = kit.chain(1, 1)
    session = store.session("over")
    session.turn(kit.keys_of(block), 10)
    session.hint(end=True)
    assert store.put(block) == [Put.REFUSED]


def test_a_batch_larger_than_memory_goes_on_to_the_disk(stores, kit):
    store = stores()
    blocks = kit.chain(0, 90)
    assert set(store.put(blocks)) == {Put.STORED}
    assert store.usage()["memory"].blocks == 64
    assert store.flush(10)
    assert kit.held_by(store, "disk", blocks) == 90
    assert set(kit.fetch(store, blocks)) == {Get.HIT}


def test_memory_full_of_what_the_disk_will_not_take_yet_lets_puts_through(stores, kit):
    store = stores()
    store.disk.faults.add(Fault("put", errno=errno.EIO, times=1))
    assert set(store.put(kit.chain(0, 64))) == {Put.STORED}
    kit.wait_until(lambda: store.disk.faults.struck["put"])
    with store.pin(kit.keys_of(kit.chain(0, 64))):
        late = kit.chain(100, 5)
        assert set(store.put(late)) == {Put.STORED}
        assert kit.held_by(store, "disk", late) == 5


def test_what_the_disk_would_not_take_is_tried_again(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock)
    blocks = kit.chain(0, 8)
    store.disk.faults.add(Fault("put", **EIO))
    store.put(blocks)
    assert not store.flush(10), "the disk holds none of it"
    store.disk.faults.clear()
    clock.advance(60)
    assert kit.wait_until(lambda: kit.held_by(store, "disk", blocks) == 8)
    assert store.flush(10)


def test_a_flush_tries_again_by_itself(stores, kit):
    store = stores()
    blocks = kit.chain(0, 8)
    store.disk.faults.add(Fault("put", errno=errno.ENOSPC, times=2))
    store.put(blocks)
    assert kit.wait_until(lambda: store.disk.faults.struck["put"] == 2)
    assert store.flush(10)
    assert kit.held_by(store, "disk", blocks) == 8


def test_blocks_too_large_for_the_disk_do_not_fill_memory_for_ever(stores, kit):
    store = stores(memory_bytes=12 << 20)
    large = [kit.chain(number, 1, 4 << 20)[0] for number in range(3)]  # as large as a segment
    assert store.put(large) == [Put.STORED] * 3
    assert not store.flush(10)
    latest = kit.chain(10, 1, 4 << 20)
    assert store.put(latest) == [Put.STORED]
    assert kit.held_by(store, "memory", latest) == 1
    assert store.match([large[0].key]) == 0


def test_puts_return_in_time_while_the_disk_hangs(stores, kit):
    store = stores(io_timeout_s=0.2)
    store.disk.faults.add(Fault("put", **HANG), Fault("sync", **HANG))
    began = time.monotonic()
    assert set(store.put(kit.chain(0, 32))) == {Put.STORED}
    assert time.monotonic() - began < 0.2, "memory has room: nobody waits for the disk"
    outcomes = store.put(kit.chain(100, 90))
    assert time.monotonic() - began < 3
    assert outcomes.count(Put.STORED) >= 32
    assert set(outcomes) == {Put.STORED, Put.ERROR}
    assert set(kit.fetch(store, kit.chain(0, 32))) <= {Get.HIT, Get.MISS}


def test_when_the_disk_is_given_up_memory_goes_on_alone_and_forgets_nothing_on_disk(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock)
    old = kit.chain(0, 40)
    store.put(old)
    store.flush(10)
    store.disk.faults.add(Fault("put", **EIO))
    for number in range(100, 2000, 100):
        outcomes = store.put(kit.chain(number, 8))
        clock.advance(0.01)
    assert set(outcomes) == {Put.STORED}
    assert set(kit.fetch(store, kit.chain(number, 8))) == {Get.HIT}
    assert store._core.tiers[1].breaker.is_open
    assert kit.held_by(store, "disk", old) == 40
    kit.settle(store)
    store.disk.faults.clear()
    clock.advance(100)
    assert store.flush(10)
    assert set(kit.fetch(store, old)) == {Get.HIT}


def test_what_only_a_broken_disk_holds_is_taken_in_again(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock)
    blocks = kit.chain(0, 4)
    store.put(blocks)
    store.session("a").turn(kit.keys_of(blocks), 40)
    store.session("a").idle()
    store.disk.faults.add(Fault("get", **EIO), Fault("put", **EIO))
    for _ in range(5):
        assert kit.fetch(store, blocks) == [Get.ERROR] * 4
    assert store.put(blocks) == [Put.PRESENT] * 4
    assert kit.fetch(store, blocks) == [Get.HIT] * 4


def test_a_put_out_of_time_is_taken_back_and_its_buffer_is_the_callers(stores, kit):
    store = stores(memory_bytes=0, io_timeout_s=0.1)
    block = kit.chain(0, 1, 3 * PAGE_BYTES)[0]
    buffer = bytearray(block.data)
    store.disk.faults.add(Fault("put", delay_s=FOREVER))
    assert store.put([block._replace(data=buffer)]) == [Put.ERROR]
    buffer[:] = b"x" * len(buffer)
    assert store.put([block]) == [Put.ERROR], "the first has not ended: nobody knows what it writes"
    store.disk.faults.clear()
    kit.settle(store)
    assert kit.held_by(store, "disk", [block]) == 0
    assert store.put([block]) == [Put.STORED]
    assert kit.fetch(store, [block]) == [Get.HIT]


def test_a_copy_out_of_time_never_carries_other_bytes(stores, kit):
    """The disk reads blocks in place in memory: if it comes to that late, the place may be another block's."""
    store = stores(io_timeout_s=0.1, memory_bytes=8 * PAGE_BYTES)
    first = kit.chain(0, 8)
    store.disk.faults.add(Fault("put", delay_s=FOREVER))
    store.put(first)
    kit.wait_until(lambda: store._core.stuck)
    store.evict(kit.keys_of(first))
    store.put(kit.chain(100, 8))
    store.disk.faults.clear()
    kit.settle(store)
    store.put(first)
    store.flush(10)
    fresh = kit.chain(200, 8)
    store.put(fresh)
    store.flush(10)
    assert set(kit.fetch(store, first)) <= {Get.HIT, Get.MISS}


def test_a_copy_that_hangs_longer_than_the_store_lives_leaves_it_closed(stores, kit):
    store = stores(io_timeout_s=0.1)
    store.disk.faults.add(Fault("put", **HANG), Fault("sync", **HANG), Fault("close", **HANG))
    store.put(kit.chain(0, 4))
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 5
    with pytest.raises(StoreClosedError):
        store.put(kit.chain(0, 1))


def test_two_threads_that_put_the_same_chain_store_it_once(stores, kit):
    store = stores(memory_bytes=1 << 20)
    blocks = kit.chain(0, 100)
    results = []
    threads = [threading.Thread(target=lambda: results.append(store.put(blocks))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = sum(outcomes.count(Put.STORED) for outcomes in results)
    assert stored == 100
    assert store.match(kit.keys_of(blocks)) == 100


def test_an_error_of_the_disk_is_an_outcome(stores, kit):
    store = stores(memory_bytes=0)
    store.disk.faults.add(Fault("put", errno=errno.ENOSPC))
    assert store.put(kit.chain(0, 3)) == [Put.ERROR] * 3
    assert store.put(kit.chain(0, 3)) == [Put.STORED] * 3


def test_when_a_later_block_finds_room_and_an_earlier_one_does_not_it_is_taken_out_again(stores, kit):
    store = stores(disk_bytes=0, memory_bytes=4 * PAGE_BYTES)
    blocks = kit.chain(0, 3, lambda number: (2, 3, 1)[number] * PAGE_BYTES)
    assert store.put(blocks) == [Put.STORED, Put.FULL, Put.REFUSED]
    assert store.usage()["memory"].blocks == 1


def test_a_quota_is_kept_by_giving_up_ones_own(stores, kit):
    store = stores(quotas={"small": 8 * PAGE_BYTES, "*": 16 * PAGE_BYTES})
    small, other = store.tenant_digest("small"), store.tenant_digest("other")
    theirs = kit.chain(0, 10, tenant=other)
    assert set(store.put(theirs)) == {Put.STORED}
    mine = kit.chain(100, 6, tenant=small)
    store.put(mine)
    assert set(store.put(kit.chain(200, 5, tenant=small))) == {Put.STORED}
    assert store.match(kit.keys_of(mine)) == 3
    assert store.match(kit.keys_of(theirs)) == 10
    assert store._core.index.tenant_bytes[small] == 8 * PAGE_BYTES


def test_what_exceeds_a_quota_by_itself_is_refused_and_costs_nothing(stores, kit):
    store = stores(quotas={"*": 8 * PAGE_BYTES})
    tenant = store.tenant_digest("anybody")
    kept = kit.chain(0, 4, tenant=tenant)
    store.put(kept)
    assert store.put(kit.chain(100, 9, tenant=tenant)) == [Put.REFUSED] * 9
    assert store.match(kit.keys_of(kept)) == 4
    assert store.counters()["refused_by_quota"] == 9


def test_what_is_pinned_does_not_make_room_for_its_tenant(stores, kit):
    store = stores(quotas={"*": 8 * PAGE_BYTES})
    tenant = store.tenant_digest("anybody")
    kept = kit.chain(0, 8, tenant=tenant)
    store.put(kept)
    with store.pin(kit.keys_of(kept)) as pinned:
        assert pinned == 8
        assert store.put(kit.chain(100, 1, tenant=tenant)) == [Put.REFUSED]


def test_a_shared_parent_of_another_tenant_is_not_given_up_with_its_children(stores, kit):
    store = stores(quotas={"*": 8 * PAGE_BYTES})
    one, two = store.tenant_digest("one"), store.tenant_digest("two")
    shared = kit.chain(0, 6, tenant=one)
    below = kit.chain(50, 2, after=shared[-1], tenant=two)
    store.put(shared + below)
    assert store.put(kit.chain(100, 8, tenant=one)) == [Put.REFUSED] * 8
    assert store.match(kit.keys_of(shared + below)) == 8


def test_a_put_larger_than_one_call_is_cut_for_the_disks_deadline(stores, kit, monkeypatch):
    monkeypatch.setattr("kvlake.store.moves._CALL_BYTES", 10 * PAGE_BYTES)
    store = stores(memory_bytes=0)
    assert set(store.put(kit.chain(0, 35))) == {Put.STORED}
    assert store.disk.asked["put"] == 4


def test_a_block_needs_its_own_bytes_back(stores):
    store = stores(disk_bytes=0)
    assert isinstance(store.tiers()[0], MemoryTier)
    assert payload_of(key_of(0), 8) != payload_of(key_of(1), 8)
