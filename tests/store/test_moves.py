"""Moves between tiers: relief, eviction, loss, and what happens when two of them meet."""

import errno
import threading

import pytest

from kvlake.policy.watermark import Watermarks
from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import FOREVER, Fault
from kvlake.tiers.tier import PAGE_BYTES, Get, Put


def test_above_the_high_mark_memory_gives_up_copies_down_to_the_low_one(stores, kit):
    store = stores(watermarks=Watermarks(high=0.75, low=0.5))
    store.put(kit.chain(0, 48))
    store.flush(10)
    assert store.usage()["memory"].blocks == 48
    store.put(kit.chain(100, 4))
    store.flush(10)
    assert kit.wait_until(lambda: store.usage()["memory"].blocks == 32)
    assert len(store._core.index) == 52, "only copies have gone"


def test_relief_never_costs_a_block_that_is_nowhere_else(stores, kit):
    store = stores(watermarks=Watermarks(high=0.5, low=0.25))
    store.disk.faults.add(Fault("put", errno=errno.EIO, times=FOREVER))
    store.put(kit.chain(0, 64))
    store.flush(10)
    store._moves.relieve(0)
    assert store.usage()["memory"].blocks == 64


def test_above_its_high_mark_the_disk_evicts(stores, kit):
    store = stores(memory_bytes=0, watermarks=Watermarks(high=0.5, low=0.25))
    capacity = store.usage()["disk"].capacity_bytes
    for number in range(0, 12_000, 1000):
        store.put(kit.chain(number, 10, 64 << 10))
        store.flush(10)
    assert kit.wait_until(lambda: store.usage()["disk"].used_bytes <= 0.5 * capacity)
    assert store.counters()["evicted_blocks"] >= 10
    assert store.match(kit.keys_of(kit.chain(11_000, 10, 64 << 10))) == 10


def test_a_full_disk_gives_up_the_oldest_for_the_newest(stores, kit):
    clock = FakeClock()
    store = stores(memory_bytes=0, clock=clock)
    chains = [kit.chain(number, 20, 64 << 10) for number in range(0, 12_000, 1000)]
    for blocks in chains:
        clock.advance(1)
        assert set(store.put(blocks)) == {Put.STORED}
    assert store.match(kit.keys_of(chains[-1])) == 20
    assert store.match(kit.keys_of(chains[0])) < 20


def test_evict_takes_leaves_first_and_leaves_what_others_need(stores, kit):
    store = stores()
    blocks = kit.chain(0, 4)
    branch = kit.chain(50, 1, after=blocks[1])
    store.put(blocks + branch)
    assert store.evict(kit.keys_of(blocks)) == 2 * PAGE_BYTES
    assert store.match(kit.keys_of(blocks)) == 2
    assert store.evict(kit.keys_of(blocks + branch)) == 3 * PAGE_BYTES
    assert not len(store._core.index)


def test_what_is_pinned_is_not_evicted(stores, kit):
    store = stores()
    blocks = kit.chain(0, 4)
    store.put(blocks)
    with store.pin([blocks[2].key]) as pinned:
        assert pinned == 1
        assert store.evict(kit.keys_of(blocks)) == PAGE_BYTES
    store.session("a").turn(kit.keys_of(blocks[:3]), 30)
    store.session("a").pin(100)
    assert store.evict(kit.keys_of(blocks)) == 0
    store.session("a").pin(0)
    assert store.evict(kit.keys_of(blocks)) == 3 * PAGE_BYTES


def test_a_pin_outlives_the_loss_of_its_block(stores, kit):
    store = stores()
    blocks = kit.chain(0, 2)
    store.put(blocks)
    with store.pin(kit.keys_of(blocks)):
        store._moves.lose(0, [blocks[0].key])
        store._moves.lose(1, [blocks[0].key])
        store.put(blocks)
    assert store.evict(kit.keys_of(blocks)) == 2 * PAGE_BYTES


def test_a_block_lost_while_it_is_copied_keeps_its_place_until_the_copy_ends(stores, kit):
    """The copy reads memory in place. Were the place given away, the disk would get another block's bytes."""
    store = stores(memory_bytes=9 * PAGE_BYTES)
    parent, *children = kit.chain(0, 8)
    store.put([parent])
    store.flush(10)
    store._moves.drop_copies(0, [parent.key])
    entered, leave = threading.Event(), threading.Event()
    put = store.disk.tier.put

    def slow(blocks):
        entered.set()
        assert leave.wait(10)
        return put(blocks)

    store.disk.tier.put = slow
    store.put(children)
    assert entered.wait(10)
    store._moves.lose(1, [parent.key])
    assert store.match([parent.key]) == 0
    store.disk.tier.put = put
    assert store.put([parent]) == [Put.STORED]
    assert store.put(children[:1]) == [Put.REFUSED], "its bytes are still being read"
    assert set(store.put(kit.chain(100, 8))) & {Put.STORED}
    leave.set()
    kit.settle(store)
    assert kit.held_by(store, "disk", children) == 0
    assert set(store.put(children)) == {Put.STORED}
    store.flush(10)
    store._moves.drop_copies(0, kit.keys_of([parent, *children]))
    assert set(kit.fetch(store, [parent, *children])) == {Get.HIT}


def test_a_block_being_dropped_from_memory_is_not_promoted_into_it(stores, kit):
    store = stores()
    blocks = kit.chain(0, 2)
    store.put(blocks)
    store.flush(10)
    memory, seen = store.tiers()[0], []
    remove = memory.remove

    def promote_first(keys, *, wipe=False):
        seen.append(store._moves.promote([(block.key, memoryview(block.data)) for block in blocks], asked=True))
        return remove(keys, wipe=wipe)

    memory.remove = promote_first
    store._moves.drop_copies(0, kit.keys_of(blocks))
    memory.remove = remove
    assert seen == [0]
    assert kit.held_by(store, "memory", blocks) == 0
    assert store._moves.promote([(blocks[0].key, memoryview(blocks[0].data))], asked=True) == 1


def test_blocks_lost_while_they_are_promoted_leave_nothing_behind(stores, kit):
    store = stores()
    parent, *blocks = kit.chain(0, 3)
    store.put([parent, *blocks])
    store.flush(10)
    store._moves.drop_copies(0, kit.keys_of([parent, *blocks]))
    memory = store.tiers()[0]
    put = memory.put

    def lose_first(taken):
        assert store.evict(kit.keys_of(blocks)) == 0, "busy"
        store._moves.lose(1, [parent.key])
        return put(taken)

    memory.put = lose_first
    store._moves.promote([(block.key, memoryview(block.data)) for block in blocks], asked=True)
    memory.put = put
    kit.settle(store)
    assert kit.held_by(store, "memory", blocks) == kit.held_by(store, "disk", blocks) == 0
    assert set(store.put([parent, *blocks])) == {Put.STORED}


def test_a_claim_waits_for_a_move_but_not_for_ever(stores, kit):
    store = stores(io_timeout_s=0.2)
    blocks = kit.chain(0, 2)
    store.disk.faults.add(Fault("put", errno=errno.EIO, times=FOREVER))
    store.put(blocks)
    kit.wait_until(lambda: store._core.stuck)
    kit.settle(store)
    entry = store._core.index.get(blocks[1].key)
    entry.busy += 1
    store.disk.faults.clear()
    assert not store._moves.demote(kit.keys_of(blocks))
    assert kit.held_by(store, "disk", blocks) == 1
    timer = threading.Timer(0.05, store._moves.release, args=([entry],))
    timer.start()
    assert store._moves.demote(kit.keys_of(blocks))
    timer.join()


def test_a_block_that_memory_turns_out_not_to_hold_is_lost_in_the_copy(stores, kit):
    store = stores()
    blocks = kit.chain(0, 3)
    store.disk.faults.add(Fault("put", errno=errno.EIO, times=FOREVER))
    store.put(blocks)
    kit.wait_until(lambda: store._core.stuck)
    kit.settle(store)
    store.tiers()[0].remove([blocks[1].key])
    store.disk.faults.clear()
    store.flush(10)
    assert store.match(kit.keys_of(blocks)) == 1
    assert store.counters()["lost_blocks"] == 2


def test_check_sees_what_the_index_and_the_tiers_disagree_on(stores, kit):
    store = stores()
    blocks = kit.chain(0, 4)
    store.put(blocks)
    store.flush(10)
    stray = kit.chain(50, 1)
    store.disk.put(stray)
    store.tiers()[0].remove([blocks[3].key])
    store.disk.remove([blocks[3].key])
    problems = [problem for report in store.check() for problem in report.problems]
    assert {problem.key for problem in problems} == {stray[0].key, blocks[3].key}
    assert all(report.ok for report in store.check(fix=True))
    assert [report for report in store.check() if report.problems] == []
    assert store.match(kit.keys_of(blocks)) == 3


def test_check_beside_traffic_finds_nothing(stores, kit):
    store = stores(memory_bytes=1 << 20)
    done = threading.Event()

    def traffic():
        for number in range(0, 4000, 100):
            blocks = kit.chain(number, 6)
            store.put(blocks)
            store.evict(kit.keys_of(blocks[3:]))
        done.set()

    thread = threading.Thread(target=traffic)
    thread.start()
    found = []
    while not done.is_set():
        found += [problem for report in store.check(fix=True) for problem in report.problems]
    thread.join()
    assert found == []
    assert all(store.match(kit.keys_of(kit.chain(number, 3))) == 3 for number in range(0, 4000, 100))


@pytest.mark.parametrize("seed", range(3))
def test_many_threads_leave_the_accounts_right(stores, kit, seed):
    """Everything at once; the audit at the end of every test is what this one is for."""
    store = stores(memory_bytes=32 * PAGE_BYTES, idle_ttl_s=0.01)
    chains = [kit.chain(1000 * at + 10_000 * seed, 12, PAGE_BYTES - at) for at in range(6)]
    errors = []

    def work(at):
        try:
            for step in range(25):
                blocks = chains[(at + step) % 6]
                session = store.session(f"s{(at + step) % 6}")
                store.put(blocks)
                session.turn(kit.keys_of(blocks), 120)
                kit.fetch(store, blocks[: 1 + (step * 5) % 12])
                (session.idle, session.resume, session.describe)[step % 3]()
                store.evict(kit.keys_of(blocks[8:]))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
