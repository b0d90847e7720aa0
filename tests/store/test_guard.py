"""A tier behind its guard: nothing is raised, nothing hangs, and a sick tier is left alone for a while."""

import errno
import gc
import threading
import time
import weakref

import pytest

from kvlake.base.clock import SystemClock
from kvlake.base.errors import BufferSizeError
from kvlake.store.guard import Breaker, Guard
from kvlake.store.lanes import Lanes
from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import FOREVER, Fault
from kvlake.tiers.memory import MemoryTier
from kvlake.tiers.tier import PAGE_BYTES, Get, Put, Read

HANG = {"delay_s": FOREVER, "times": FOREVER}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def guard(clock, kit):
    """Around a tier that fails on demand; it is in memory, and the guard does not know that."""
    sick = kit.SickTier(MemoryTier(1 << 20))
    guard = Guard(sick, clock, 0.15)
    yield guard
    sick.faults.clear()
    guard.close(5)


def read(guard, block, timeout_s=1.0):
    return guard.get([Read(block.key, memoryview(bytearray(len(block.data))))], timeout_s)


def test_a_breaker_opens_after_five_failures_in_a_row(clock):
    breaker = Breaker(clock)
    for _ in range(4):
        breaker.fail()
    breaker.succeed()
    for _ in range(4):
        breaker.fail()
        assert breaker.admits()
    breaker.fail()
    assert breaker.is_open
    assert not breaker.admits()


def test_a_breaker_admits_one_trial_and_doubles_its_back_off(clock):
    breaker = Breaker(clock)
    for _ in range(5):
        breaker.fail()
    for backoff_s in (1, 2, 4, 8, 16, 32, 60, 60):
        clock.advance(backoff_s - 0.01)
        assert not breaker.admits()
        clock.advance(0.02)
        assert breaker.admits(), "the trial"
        assert not breaker.admits(), "the others wait for how it ends"
        assert breaker.is_open
        breaker.fail()
    breaker.succeed()
    assert breaker.admits()
    assert not breaker.is_open


def test_a_trial_that_never_reports_is_followed_by_another(clock):
    breaker = Breaker(clock)
    for _ in range(5):
        breaker.fail()
    clock.advance(1)
    assert breaker.admits()
    clock.advance(1)
    assert breaker.admits()


def test_an_error_is_an_outcome_and_counts_once(guard, kit):
    block = kit.chain(0, 1)[0]
    guard.tier.faults.add(
        Fault("put", errno=errno.EIO), Fault("get", errno=errno.EIO), Fault("remove", errno=errno.EIO)
    )
    assert guard.put([block]) == [Put.ERROR]
    assert read(guard, block) == [Get.ERROR]
    assert not guard.remove([block.key])
    assert guard.counters()["memory_errors"] == 3
    assert not guard.breaker.is_open
    assert guard.put([block]) == [Put.STORED]
    assert read(guard, block) == [Get.HIT]


def test_an_open_breaker_answers_at_once_and_a_trial_closes_it(guard, kit, clock):
    block = kit.chain(0, 1)[0]
    guard.tier.faults.add(Fault("put", errno=errno.EIO, times=5))
    for _ in range(5):
        assert guard.put([block]) == [Put.ERROR]
    asked = guard.tier.asked["put"]
    assert guard.put([block]) == [Put.ERROR]
    assert read(guard, block) == [Get.ERROR]
    assert guard.tier.asked["put"] == asked
    assert guard.counters()["memory_refused_while_broken"] == 2
    clock.advance(1)
    assert guard.put([block]) == [Put.STORED]
    assert read(guard, block) == [Get.HIT]


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("shut down"), KeyError("segment")])
def test_what_a_tier_should_never_raise_is_an_error_of_the_tier(guard, kit, error, caplog):
    def fail(*_, **__):
        raise error

    block = kit.chain(0, 1)[0]
    guard.tier.put = guard.tier.get = guard.tier.remove = fail
    assert guard.put([block]) == [Put.ERROR]
    assert read(guard, block) == [Get.ERROR]
    assert not guard.remove([block.key])
    assert "unexpected error in the memory tier" in caplog.text


def test_a_callers_mistake_is_his(guard, kit):
    block = kit.chain(0, 1)[0]
    guard.put([block])
    with pytest.raises(BufferSizeError):
        guard.get([Read(block.key, memoryview(bytearray(1)))], 1.0)


def test_every_call_ends_in_time_while_the_tier_hangs(guard, kit):
    block, other = kit.chain(0, 1)[0], kit.chain(9, 1)[0]
    guard.put([other])
    guard.tier.faults.add(*(Fault(on, **HANG) for on in ("put", "get", "remove", "sync")))
    began = time.monotonic()
    assert guard.put([block]) == [Put.ERROR]
    assert read(guard, other, 0.1) == [Get.TIMEOUT]
    assert not guard.remove([other.key], wipe=True)
    assert not guard.sync()
    assert time.monotonic() - began < 2
    assert guard.counters()["memory_timeouts"] == 4


def test_a_late_put_is_taken_back(guard, kit):
    block = kit.chain(0, 1)[0]
    guard.tier.faults.add(Fault("put", delay_s=FOREVER))
    assert guard.put([block]) == [Put.ERROR]
    assert guard.put([block]) == [Put.ERROR], "not before the first has ended"
    assert not guard.remove([block.key], wipe=True), "nor can anyone say that its bytes are gone"
    guard.tier.faults.clear()
    assert kit.wait_until(lambda: not guard._late)
    assert guard.usage().blocks == 0
    assert guard.put([block]) == [Put.STORED]


def test_a_put_that_never_began_never_does(guard, kit):
    blocks = kit.chain(0, 9)
    guard.tier.faults.add(Fault("get", **HANG))
    for block in blocks[:8]:
        read(guard, block, 0.02)
    assert guard.put([blocks[8]]) == [Put.ERROR]
    assert not guard._late
    guard.tier.faults.clear()
    assert kit.wait_until(lambda: not guard._under_way)
    assert guard.usage().blocks == 0


def test_errors_that_a_tier_answers_with_open_the_breaker_too(guard, kit):
    blocks = kit.chain(0, 2)
    guard.tier.put = lambda blocks: [Put.ERROR] * len(blocks)
    for _ in range(5):
        assert guard.put(blocks) == [Put.ERROR] * 2
    assert guard.breaker.is_open
    assert guard.counters()["memory_errors"] == 5


def test_a_late_put_that_found_the_block_there_takes_nothing_back(guard, kit):
    block = kit.chain(0, 1)[0]
    guard.put([block])
    guard.tier.faults.add(Fault("put", delay_s=FOREVER))
    guard.put([block])
    guard.tier.faults.clear()
    assert kit.wait_until(lambda: not guard._late)
    assert guard.usage().blocks == 1


def test_a_late_put_whose_bytes_cannot_be_removed_is_counted(guard, kit):
    block = kit.chain(0, 1)[0]
    guard.tier.faults.add(Fault("put", delay_s=0.4), Fault("remove", errno=errno.EIO))
    guard.put([block])
    assert kit.wait_until(lambda: guard.counters().get("memory_errors"))
    assert kit.wait_until(lambda: not guard._late)


def test_a_removal_is_carried_out_however_late(guard, kit, clock):
    blocks = kit.chain(0, 20)
    guard.put(blocks)
    guard.tier.faults.add(Fault("remove", **HANG))
    for block in blocks[:12]:
        assert not guard.remove([block.key])
    assert guard.put(blocks[:1]) == [Put.ERROR], "it could be removed again right after"
    guard.tier.faults.clear()
    assert kit.wait_until(lambda: guard.usage().blocks == 8)
    assert kit.wait_until(lambda: not guard._late)
    clock.advance(60)
    assert guard.put(blocks[:1]) == [Put.STORED]


def test_an_impatient_reader_does_not_make_the_tier_sick(guard, kit):
    block = kit.chain(0, 1)[0]
    guard.put([block])
    guard.tier.faults.add(Fault("get", delay_s=0.05, times=FOREVER))
    for _ in range(8):
        assert read(guard, block, 0.001) == [Get.TIMEOUT]
    assert not guard.breaker.is_open


def test_a_guard_does_not_close_a_tier_under_its_calls(guard, kit):
    block = kit.chain(0, 1)[0]
    guard.tier.faults.add(Fault("put", delay_s=0.3))
    writer = threading.Thread(target=guard.put, args=([block],))
    writer.start()
    kit.wait_until(lambda: guard.tier.asked["put"])
    guard.close(5)
    writer.join()
    assert guard.put([block]) == [Put.ERROR]
    assert read(guard, block) == [Get.ERROR]
    assert not guard.remove([block.key])
    guard.close(5)


def test_a_tier_that_hangs_is_left_open(guard, kit, caplog):
    closed = []
    guard.tier.close = lambda: closed.append(True)
    guard.tier.faults.add(Fault("put", **HANG))
    guard.put(kit.chain(0, 1))
    guard.close(0.1)
    assert not closed
    assert "is left open" in caplog.text


@pytest.mark.parametrize("fault", [{"errno": errno.EIO}, {"delay_s": FOREVER}])
def test_a_close_that_fails_or_hangs_is_logged(guard, fault, caplog):
    guard.tier.faults.add(Fault("close", **fault))
    guard.close(0.1)
    assert "close failed" in caplog.text


def test_a_tier_in_memory_is_asked_on_the_callers_thread(kit, clock):
    threads = []
    tier = MemoryTier(PAGE_BYTES)
    put = tier.put
    tier.put = lambda blocks: threads.append(threading.current_thread()) or put(blocks)
    guard = Guard(tier, clock, float("inf"))
    guard.put(kit.chain(0, 1))
    assert threads == [threading.current_thread()]
    assert guard.sync()
    assert guard.view(kit.chain(0, 1)[0].key) == kit.chain(0, 1)[0].data
    guard.close(1)


def test_lanes_run_side_by_side_up_to_their_width():
    lanes, gate, seen = Lanes(3, "test"), threading.Event(), []
    waiting = [lanes.submit(lambda number=number: seen.append(number) or gate.wait(5)) for number in range(4)]
    time.sleep(0.1)
    assert len(seen) == 3
    gate.set()
    assert all(future.result(5) for future in waiting)
    lanes.close()


def test_behind_stuck_lanes_the_buffers_of_those_who_gave_up_are_let_go():
    class Bytes(bytearray):
        """Can be weakly referenced."""

    lanes, gate = Lanes(1, "test"), threading.Event()
    stuck = lanes.submit(gate.wait)
    buffer = Bytes(10)
    seen = weakref.ref(buffer)
    future = lanes.submit(lambda buffer=buffer: buffer.clear())
    del buffer
    assert future.cancel()
    lanes.submit(int)
    del future
    gc.collect()
    assert seen() is None
    gate.set()
    assert stuck.result(5)
    lanes.close()


def test_where_no_thread_can_be_had_the_call_fails(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    lanes = Lanes(2, "test")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="no thread"):
        lanes.submit(int).result(1)
    monkeypatch.undo()
    assert lanes.submit(int).result(5) == 0
    lanes.close()


def test_an_error_on_a_lane_is_raised_where_the_result_is_asked_for():
    lanes = Lanes(1, "test")
    with pytest.raises(ZeroDivisionError):
        lanes.submit(lambda: 1 // 0).result(5)
    assert lanes.submit(int).result(5) == 0
    lanes.close()
    assert isinstance(SystemClock().monotonic(), float)
