"""Sessions: what their owner says, and what it means for blocks on every tier, across restarts too."""

import errno
import threading
import time

import pytest

from kvlake.base.errors import SessionNotFoundError
from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import Fault
from kvlake.tiers.tier import PAGE_BYTES, Get


def rss_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def test_a_session_is_told_exactly(stores, kit, talk):
    clock = FakeClock(wall_s=1000.0)
    store = stores(clock=clock)
    shared = talk(store, "a", 0, 3, nbytes=5000)
    clock.advance(5)
    talk(store, "b", 100, 2, after=shared, nbytes=1000)
    store.flush(10)
    store.evict([kit.chain(100, 2, after=shared[-1])[1].key])
    info = store.session("b").describe()
    assert (info.id, info.tenant, info.state, info.turns) == ("b", "default", "active", 1)
    assert (info.tokens, info.blocks, info.present_blocks) == (50, 5, 4)
    assert info.bytes_by_tier == {"memory": 16_000, "disk": 16_000}
    assert info.shared_bytes == 15_000
    assert (info.created_s, info.last_use_s, info.pinned_until_s, info.expires_s) == (1005.0, 1005.0, 0.0, 0.0)
    assert (info.stop_reason, info.pending_tool_call) == (None, False)
    assert "active, 50 tokens in 4/5 blocks" in repr(store.session("b"))


def test_an_edited_turn_lets_go_of_the_rest_of_the_old_one(stores, kit, talk):
    store = stores()
    blocks = talk(store, "s", 0, 6)
    branch = talk(store, "s", 50, 2, after=blocks[:3])
    session = store.session("s")
    assert session.describe().blocks == 5
    assert session.describe().turns == 2
    assert store.match(kit.keys_of(blocks)) == 6, "let go of, not thrown away"
    assert store._core.sessions.holders.keys() == set(kit.keys_of(branch))
    session.turn(kit.keys_of(blocks[:2]), 20)
    assert store._core.sessions.holders.keys() == set(kit.keys_of(blocks[:2]))


def test_sessions_are_listed_latest_first_and_by_tenant(stores):
    clock = FakeClock()
    store = stores(clock=clock)
    for name, tenant in (("a", "one"), ("b", "two"), ("c", "one")):
        clock.advance(1)
        store.session(name, tenant=tenant)
    assert [info.id for info in store.sessions()] == ["c", "b", "a"]
    assert [info.id for info in store.sessions("one")] == ["c", "a"]
    assert store.sessions("nobody") == []


def test_another_tenants_session_is_refused_and_an_unknown_one_not_found(stores):
    store = stores()
    store.session("a", tenant="one")
    with pytest.raises(ValueError, match="another tenant's"):
        store.session("a", tenant="two")
    with pytest.raises(SessionNotFoundError, match="kvlake ls"):
        store.find_session("b")
    with pytest.raises(KeyError):
        store.find_session("b")
    assert store.find_session("a").id == "a"


def test_idle_leaves_nothing_in_memory_and_all_on_disk(stores, kit, talk):
    store = stores()
    blocks = talk(store, "s", 0, 20)
    seen = []
    store.on_idle(seen.append)
    store.session("s").idle()
    assert seen == ["s"]
    assert store.usage()["memory"].used_bytes == 0
    assert store.session("s").describe().bytes_by_tier == {"memory": 0, "disk": 20 * PAGE_BYTES}
    assert set(kit.fetch(store, blocks)) == {Get.HIT}


def test_an_engine_is_told_of_a_deletion(stores, talk):
    store = stores()
    talk(store, "s", 0, 2)
    seen = []
    store.on_idle(seen.append)
    store.session("s").delete()
    assert seen == ["s"]


def test_idle_gives_the_memory_back_to_the_system(stores, kit, talk):
    nbytes = 256 << 10
    store = stores(memory_bytes=64 << 20, disk_bytes=128 << 20)
    talk(store, "s", 0, 160, nbytes=nbytes)
    store.flush(30)
    before = rss_bytes()
    store.session("s").idle()
    assert before - rss_bytes() > 100 * nbytes


def test_idle_keeps_what_another_active_session_needs(stores, kit, talk):
    store = stores()
    shared = talk(store, "a", 0, 4)
    blocks = talk(store, "b", 50, 4, after=shared)
    store.session("b").idle()
    assert kit.held_by(store, "memory", shared) == 4
    assert kit.held_by(store, "memory", blocks) == 4
    store.session("a").idle()
    assert store.usage()["memory"].blocks == 0


def test_what_the_disk_will_not_take_stays_in_memory_when_idle(stores, kit, talk):
    store = stores()
    store.disk.faults.add(Fault("put", errno=errno.EIO, times=100))
    blocks = talk(store, "s", 0, 4)
    store.session("s").idle()
    assert kit.held_by(store, "memory", blocks) == 4
    assert set(kit.fetch(store, blocks)) == {Get.HIT}


def test_idle_in_a_while_unless_a_turn_comes(stores, kit, talk):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=None)
    seen = []
    store.on_idle(seen.append)
    for name, first in (("quiet", 0), ("busy", 100), ("tool", 200)):
        talk(store, name, first, 2)
        store.session(name).hint(pending_tool_call=True)
        clock.advance(3)
        store.session(name).idle(ttl_s=10)
    clock.advance(1)
    talk(store, "busy", 100, 3)
    clock.advance(9.5)
    assert kit.wait_until(lambda: set(seen) == {"quiet", "tool"})
    clock.advance(1000)
    time.sleep(0.1)
    assert set(seen) == {"quiet", "tool"}, "after a turn the store's own TTL holds, which is none here"


def test_a_session_that_waits_for_a_tool_is_left_longer(stores, talk, kit):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=10.0)
    seen = []
    store.on_idle(seen.append)
    talk(store, "s", 0, 2)
    store.session("s").hint(pending_tool_call=True)
    clock.advance(39)
    time.sleep(0.1)
    assert seen == []
    clock.advance(2)
    assert kit.wait_until(lambda: seen == ["s"])


def test_resume_brings_the_blocks_and_the_usual_time_back(stores, kit, talk):
    clock = FakeClock()
    store = stores(clock=clock, idle_ttl_s=100.0)
    blocks = talk(store, "s", 0, 20)
    session = store.session("s")
    session.idle(ttl_s=5)
    clock.advance(6)
    assert kit.wait_until(lambda: kit.held_by(store, "memory", blocks) == 0)
    assert session.resume().result(10) == 20
    assert session.describe().state == "active"
    assert kit.held_by(store, "memory", blocks) == 20
    clock.advance(50)
    time.sleep(0.1)
    assert session.describe().state == "active"
    clock.advance(51)
    assert kit.wait_until(lambda: session.describe().state == "idle")


def test_idle_and_resume_at_once_leave_the_blocks_somewhere(stores, kit, talk):
    store = stores()
    blocks = talk(store, "s", 0, 12)
    session = store.session("s")
    for _ in range(10):
        thread = threading.Thread(target=session.idle)
        thread.start()
        session.resume().result(10)
        thread.join()
        assert set(kit.fetch(store, blocks)) == {Get.HIT}


def test_a_pin_holds_by_the_wall_clock_and_across_a_restart(stores, kit, talk):
    clock = FakeClock()
    store = stores(clock=clock)
    blocks = talk(store, "s", 0, 4)
    store.session("s").pin(100)
    store.session("s").idle()
    store.close()
    store = stores(clock=clock)
    assert store.session("s").describe().pinned_until_s == clock.wall() + 100
    assert store.evict(kit.keys_of(blocks)) == 0
    clock.set_wall(clock.wall() + 101)
    assert store.evict(kit.keys_of(blocks)) == 4 * PAGE_BYTES


def test_a_pinned_session_is_no_victim(stores, kit, talk):
    clock = FakeClock()
    store = stores(clock=clock, disk_bytes=0)
    pinned, other = talk(store, "pinned", 0, 30), talk(store, "other", 100, 30)
    store.session("pinned").pin(1000)
    clock.advance(1)
    store.put(kit.chain(200, 30))
    assert store.match(kit.keys_of(pinned)) == 30
    assert store.match(kit.keys_of(other)) < 30
    store.session("pinned").pin(0)
    clock.advance(1)
    store.put(kit.chain(300, 60))
    assert store.match(kit.keys_of(pinned)) < 30


def test_a_fork_shares_every_block_once(stores, kit, talk):
    store = stores()
    blocks = talk(store, "a", 0, 5)
    used = store.usage()["memory"].used_bytes
    fork = store.session("a").fork("b")
    assert store.usage()["memory"].used_bytes == used
    assert fork.describe().shared_bytes == store.session("a").describe().shared_bytes == 5 * PAGE_BYTES
    assert (fork.describe().state, fork.describe().tokens) == ("idle", 50)
    talk(store, "b", 50, 2, after=blocks[:3])
    assert store.session("a").describe().shared_bytes == 3 * PAGE_BYTES
    assert store.session("a").describe().blocks == 5
    with pytest.raises(ValueError, match="there already"):
        fork.fork("a")


def test_blocks_of_ended_sessions_go_first(stores, kit, talk):
    clock = FakeClock()
    store = stores(clock=clock, disk_bytes=0)
    old = talk(store, "old", 0, 20)
    clock.advance(10)
    ended = talk(store, "ended", 100, 20)
    both = talk(store, "half", 200, 10)
    store.session("half").fork("alive")
    store.session("half").hint(end=True)
    store.session("ended").hint(end=True, stop_reason="stop")
    assert store.session("ended").describe().state == "ended"
    assert store.session("ended").describe().stop_reason == "stop"
    store.put(kit.chain(300, 20))
    assert store.match(kit.keys_of(ended)) < 20
    assert store.match(kit.keys_of(old)) == 20
    assert store.match(kit.keys_of(both)) == 10


def test_a_turn_brings_an_ended_session_back(stores, kit, talk):
    store = stores()
    blocks = talk(store, "s", 0, 2)
    store.session("s").hint(end=True)
    store.session("s").idle()
    assert store.session("s").resume().result(10) == 2
    assert store.session("s").describe().state == "ended"
    assert talk(store, "s", 10, 1, after=blocks)
    assert store.session("s").describe().state == "active"
    assert store.match(kit.keys_of(blocks)) == 2


def test_a_hint_that_says_nothing_changes_nothing_but_the_tool_call(stores, talk):
    store = stores()
    talk(store, "s", 0, 1)
    store.session("s").hint(stop_reason="length", pending_tool_call=True)
    store.session("s").hint()
    info = store.session("s").describe()
    assert (info.state, info.stop_reason, info.pending_tool_call) == ("active", "length", False)


def test_a_session_of_whose_blocks_nothing_is_left_is_still_a_session(stores, kit, talk):
    store = stores()
    blocks = talk(store, "s", 0, 3)
    store.evict(kit.keys_of(blocks))
    info = store.session("s").describe()
    assert (info.blocks, info.present_blocks, info.bytes_by_tier) == (3, 0, {"memory": 0, "disk": 0})
    assert store.session("s").resume().result(10) == 0
    assert store.session("s").delete().blocks == 0


def test_many_rounds_of_everything_leave_the_counts_right(stores, kit, talk):
    store = stores()
    blocks = talk(store, "s", 0, 5)
    for step in range(12):
        blocks = talk(store, "s", 100 + 10 * step, 2, after=blocks[: 1 + step % 4])
        store.session("s").fork(f"f{step}")
        (store.session("s").idle, store.session("s").resume, store.session("s").describe)[step % 3]()
        if step % 2:
            store.session(f"f{step - 1}").hint(end=True)
        if step % 4 == 3:
            store.session(f"f{step - 2}").delete()
    assert kit.audit(store) == []
