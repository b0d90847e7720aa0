"""What happens without being asked, and that it goes on whatever happens."""

import errno
import threading
import time

import pytest

from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import FOREVER, Fault
from kvlake.tiers.tier import PAGE_BYTES, Get

HANG = {"delay_s": FOREVER, "times": FOREVER}


def test_what_is_put_is_on_the_disk_and_durable_soon(stores, kit):
    store = stores()
    blocks = kit.chain(0, 4)
    store.put(blocks)
    assert kit.wait_until(lambda: kit.held_by(store, "disk", blocks) == 4)
    assert kit.wait_until(lambda: store.counters().get("disk_syncs"))


def test_a_flush_ends_although_puts_never_do(stores, kit):
    store = stores(memory_bytes=1 << 20)
    stop = threading.Event()

    def put_on():
        number = 0
        while not stop.is_set():
            store.put(kit.chain(number, 2))
            number += 10

    thread = threading.Thread(target=put_on)
    thread.start()
    try:
        for _ in range(3):
            assert store.flush(10)
    finally:
        stop.set()
        thread.join()


def test_a_commit_that_failed_is_made_up_for(stores, kit):
    store = stores()
    store.disk.faults.add(Fault("sync", errno=errno.EIO))
    blocks = kit.chain(0, 2)
    store.put(blocks)
    assert kit.wait_until(lambda: store.counters().get("disk_syncs"))


def test_the_thread_survives_a_fault_and_commits_what_it_had_to(stores, kit, monkeypatch, caplog):
    store = stores()
    real = store._moves.relieve
    failed = threading.Event()

    def fail(position):
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a fault of ours")
        real(position)

    monkeypatch.setattr(store._moves, "relieve", fail)
    blocks = kit.chain(0, 2)
    store.put(blocks)
    assert kit.wait_until(lambda: store.counters().get("disk_syncs"))
    assert store.counters()["background_errors"] == 1
    assert "a fault of ours" in caplog.text
    assert store.flush(10)


def test_sessions_go_idle_by_themselves(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=60.0)
    seen = []
    store.on_idle(seen.append)
    blocks = kit.chain(0, 4)
    store.put(blocks)
    session = store.session("s")
    session.turn(kit.keys_of(blocks), 40)
    clock.advance(59)
    time.sleep(0.1)
    assert seen == []
    clock.advance(2)
    assert kit.wait_until(lambda: seen == ["s"])
    assert kit.wait_until(lambda: kit.held_by(store, "memory", blocks) == 0)
    assert session.describe().state == "idle"
    assert store.match(kit.keys_of(blocks)) == 4


def test_a_callback_that_raises_stops_neither_the_others_nor_the_sweep(stores, kit, caplog):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=10.0)
    seen = []

    def fail(name):
        raise RuntimeError(f"the engine failed for {name}")

    store.on_idle(fail)
    store.on_idle(seen.append)
    for at in range(3):
        blocks = kit.chain(100 * at, 2)
        store.put(blocks)
        store.session(f"s{at}").turn(kit.keys_of(blocks), 20)
    clock.advance(11)
    assert kit.wait_until(lambda: len(seen) == 3)
    assert kit.wait_until(lambda: store.usage()["memory"].blocks == 0)
    assert store.counters()["callback_errors"] == 3
    store.session("s0").turn(kit.keys_of(kit.chain(0, 2)), 20)
    store.session("s0").idle()
    assert seen[-1] == "s0"
    assert "background_errors" not in store.counters()


def test_a_turn_that_comes_while_others_go_idle_is_in_time(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=10.0)
    seen = []

    def take_long(name):
        seen.append(name)
        for other in ("s0", "s1"):
            if other not in seen:
                store.session(other).turn([], 0)

    store.on_idle(take_long)
    for at in range(2):
        store.session(f"s{at}").turn([], 0)
    clock.advance(11)
    assert kit.wait_until(lambda: seen)
    clock.advance(2)
    time.sleep(0.1)
    assert len(seen) == 1


def test_a_session_deleted_before_its_time_came_is_no_error(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=10.0)

    def delete_the_other(name):
        names = {info.id for info in store.sessions()}
        if name in names:  # idle, and not deleted, of which it is told as well
            for other in names - {name}:
                store.find_session(other).delete()

    store.on_idle(delete_the_other)
    for at in range(2):
        store.session(f"s{at}").turn([], 0)
    clock.advance(11)
    assert kit.wait_until(lambda: len(store.sessions()) == 1)
    assert store.flush(10)
    assert "background_errors" not in store.counters()


def test_expired_sessions_and_blocks_go(stores, kit):
    clock = FakeClock(wall_s=1000.0)
    store = stores(clock=clock)
    blocks = kit.chain(0, 2)
    below = kit.chain(10, 2, after=blocks[-1], expires_s=1050)
    store.put(blocks + below)
    mine = kit.chain(100, 3)
    store.put(mine)
    session = store.session("s")
    session.turn(kit.keys_of(mine), 30)
    session.hint(ttl_s=30)
    clock.advance(31)
    assert kit.wait_until(lambda: not store.sessions())
    assert kit.wait_until(lambda: kit.held_by(store, "disk", mine) == 0)
    assert store.match(kit.keys_of(blocks + below)) == 4
    clock.advance(30)
    assert kit.wait_until(lambda: store.counters().get("expired_blocks") == 2)
    assert kit.held_by(store, "memory", below) == kit.held_by(store, "disk", below) == 0
    assert store.match(kit.keys_of(blocks + below)) == 2


def test_on_its_own_thread_nothing_waits_for_the_thread(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=10.0)
    answers = []
    store.on_idle(lambda _: answers.append(store.flush(60)))
    store.session("s").turn([], 0)
    clock.advance(11)
    assert kit.wait_until(lambda: answers, 5) == [False]


def test_a_callback_may_close_the_store(stores, kit):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=10.0, io_timeout_s=0.5)
    store.on_idle(lambda _: store.close())
    store.session("s").turn([], 0)
    clock.advance(11)
    assert kit.wait_until(lambda: store._closed)
    kit.wait_until(lambda: not store._background._thread.is_alive())


def test_close_writes_through_what_is_left(stores, kit):
    store = stores(memory_bytes=4 << 20)
    blocks = kit.chain(0, 200)
    store.put(blocks)
    store.close()
    again = stores()
    assert again.match(kit.keys_of(blocks)) == 200
    assert set(kit.fetch(again, blocks)) == {Get.HIT}


def test_close_waits_for_a_disk_that_is_slow_but_moves(stores, kit, monkeypatch):
    monkeypatch.setattr("kvlake.store.moves._BATCH_BYTES", 4 * PAGE_BYTES)
    store = stores(io_timeout_s=0.25)
    store.disk.faults.add(Fault("put", delay_s=0.1, times=FOREVER))
    blocks = kit.chain(0, 32)
    store.put(blocks)
    store.close()
    assert stores().match(kit.keys_of(blocks)) == 32


@pytest.mark.parametrize("hangs", ["put", "get", "remove", "sync", "close"])
def test_close_ends_whatever_hangs(stores, kit, hangs):
    store = stores(io_timeout_s=0.15)
    store.put(kit.chain(0, 8))
    store.disk.faults.add(Fault(hangs, **HANG))
    store.put(kit.chain(100, 8))
    began = time.monotonic()
    store.close()
    store.close()
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_session_log_that_hangs_holds_nobody_up(stores, kit, operation):
    store = stores(io_timeout_s=0.15)
    blocks = kit.chain(0, 4)
    store.put(blocks)
    assert store.flush(10)
    store.device.faults.add(Fault(operation, name="sessions.log", **HANG), Fault(operation, name=".new", **HANG))
    began = time.monotonic()
    session = store.session("s")
    session.turn(kit.keys_of(blocks), 40)
    session.idle()
    assert not store.flush(5)
    assert not session.delete().wiped
    store.close()
    assert time.monotonic() - began < 5
    assert store.counters()["session_log_errors"] >= 1


def test_a_session_log_that_could_not_be_written_is_written_later(stores, kit):
    store = stores()
    store.device.faults.add(Fault("write", name=".new", errno=errno.ENOSPC, times=2))
    store.session("s").turn([], 0)
    assert not store.flush(10)
    assert kit.wait_until(lambda: store.device.faults.struck["write"] == 2)
    assert kit.wait_until(lambda: store.flush(10))
    assert store.counters()["session_log_errors"] == 2
    store.close()
    assert [info.id for info in stores().sessions()] == ["s"]


def test_who_commits_behind_a_commit_that_hangs_gives_up(stores, kit):
    store = stores(io_timeout_s=0.15)
    store.put(kit.chain(0, 2))
    store.disk.faults.add(Fault("sync", **HANG))
    with store._commit._lock:
        began = time.monotonic()
        assert not store.flush(5)
        assert time.monotonic() - began < 2


def test_idle_and_delete_end_while_the_disk_hangs(stores, kit):
    store = stores(io_timeout_s=0.15)
    blocks = kit.chain(0, 8)
    store.disk.faults.add(Fault("put", **HANG), Fault("sync", **HANG), Fault("remove", **HANG))
    store.put(blocks)
    session = store.session("s")
    session.turn(kit.keys_of(blocks), 80)
    began = time.monotonic()
    session.idle()
    assert kit.held_by(store, "memory", blocks) == 8, "what the disk does not hold stays"
    assert not session.delete().wiped
    assert time.monotonic() - began < 5


def test_counters_tell(stores, kit):
    store = stores()
    blocks = kit.chain(0, 3)
    store.put(blocks)
    store.flush(10)
    kit.fetch(store, [*blocks, *kit.chain(50, 1)])
    store.evict(kit.keys_of(blocks))
    counters = store.counters()
    expected = {"put_stored": 3, "get_hit": 3, "get_miss": 1, "evicted_blocks": 3, "copied_to_disk_blocks": 3}
    assert expected.items() <= counters.items()
    assert 0 not in counters.values()
    assert list(counters) == sorted(counters)


def test_a_store_shows_what_it_holds(stores, kit):
    store = stores(disk_bytes=0)
    store.put(kit.chain(0, 3))
    store.session("s")
    assert repr(store).startswith("<Store 3 blocks, 1 sessions: <MemoryTier 3 blocks")
