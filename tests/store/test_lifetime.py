"""What outlives a session, and what must not: deletions, restarts and kills."""

import errno
import os
import random
import signal

import pytest

from kvlake.base.errors import SessionNotFoundError
from kvlake.testing.blocks import traces_of
from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import Fault
from kvlake.testing.powerloss import PowerLossDevice
from kvlake.tiers.tier import PAGE_BYTES, Get, Put


def on_disk(folder, blocks):
    """How many pieces of the blocks' payloads lie anywhere in the segments."""
    raw = b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.seg")))
    return sum(traces_of(block.data, raw) for block in blocks)


def test_delete_removes_all_that_no_other_session_holds_everywhere(stores, kit, talk, tmp_path):
    store = stores()
    shared = talk(store, "keeps", 0, 3)
    mine = talk(store, "goes", 50, 6, after=shared)[3:]
    loose = kit.chain(80, 2, after=mine[-1])
    store.put(loose)
    store.flush(10)
    assert on_disk(tmp_path / "kv", mine + loose) > 0
    gone = store.session("goes").delete()
    assert (gone.blocks, gone.nbytes, gone.wiped) == (8, 8 * PAGE_BYTES, True)
    assert on_disk(tmp_path / "kv", mine + loose) == 0
    arena = bytes(store.tiers()[0]._bytes)
    assert sum(traces_of(block.data, arena) for block in mine + loose) == 0
    assert store.match(kit.keys_of(shared)) == 3
    assert set(kit.fetch(store, shared)) == {Get.HIT}
    with pytest.raises(SessionNotFoundError):
        store.find_session("goes")
    with pytest.raises(SessionNotFoundError):
        store.session("keeps").fork("goes").delete() and store.find_session("goes").describe()


@pytest.mark.parametrize("restart", [False, True])
def test_what_an_edited_turn_let_go_of_is_deleted_with_the_session(stores, kit, talk, tmp_path, restart):
    store = stores()
    shared = talk(store, "keeps", 0, 3)
    old = talk(store, "goes", 50, 4, after=shared)[3:]
    again = talk(store, "goes", 80, 3, after=shared)[3:]
    talk(store, "goes", 90, 1, after=shared)
    talk(store, "other", 80, 3, after=shared)
    store.flush(10)
    if restart:
        store.close()
        store = stores()
    gone = store.session("goes").delete()
    assert (gone.blocks, gone.wiped) == (5, True)
    assert on_disk(tmp_path / "kv", old) == 0
    assert store.match(kit.keys_of(shared + again)) == 6, "another session holds what this one let go of"


@pytest.mark.parametrize("lost_journal", [False, True])
def test_a_deletion_outlives_the_process_and_the_journal(stores, kit, talk, tmp_path, lost_journal):
    store = stores()
    shared = talk(store, "keeps", 0, 3)
    mine = talk(store, "goes", 50, 6, after=shared)[3:]
    store.flush(10)
    assert store.session("goes").delete().wiped
    store.close()
    if lost_journal:
        (tmp_path / "kv" / "blocks.log").unlink()
    store = stores()
    assert [info.id for info in store.sessions()] == ["keeps"]
    assert kit.held_by(store, "disk", mine) == 0
    assert store.match(kit.keys_of(shared + mine)) == 3
    assert on_disk(tmp_path / "kv", mine) == 0
    assert set(kit.fetch(store, shared)) == {Get.HIT}


def test_delete_waits_for_a_copy_under_way_and_takes_that_too(stores, kit, talk, tmp_path):
    store = stores()
    store.disk.faults.add(Fault("put", delay_s=0.2, times=3))
    mine = talk(store, "s", 0, 8)
    assert store.session("s").delete().wiped
    assert on_disk(tmp_path / "kv", mine) == 0
    kit.settle(store)
    assert on_disk(tmp_path / "kv", mine) == 0
    assert not len(store._core.index)


@pytest.mark.parametrize("operation", ["remove", "sync"])
def test_a_deletion_that_the_disk_fails_is_not_said_to_be_done(stores, talk, kit, operation):
    store = stores()
    talk(store, "s", 0, 4)
    store.flush(10)
    store.disk.faults.add(Fault(operation, errno=errno.EIO, times=2))
    assert not store.session("s").delete().wiped
    store.disk.faults.clear()
    store.check(fix=True)


def test_a_pin_of_others_does_not_keep_an_owner_from_deleting(stores, kit, talk):
    store = stores()
    blocks = talk(store, "s", 0, 4)
    store.session("s").pin(1000)
    with store.pin(kit.keys_of(blocks)):
        assert store.session("s").delete().blocks == 4


def test_a_block_that_another_session_continues_stays(stores, kit, talk):
    store = stores()
    blocks = talk(store, "a", 0, 3)
    longer = talk(store, "b", 50, 2, after=blocks)
    store.session("b").turn(kit.keys_of(longer), 50)
    assert store.session("a").delete().blocks == 0
    assert store.match(kit.keys_of(longer)) == 5
    assert store.session("b").delete().blocks == 5


def test_sessions_and_their_order_survive_a_restart(stores, kit, talk):
    clock = FakeClock()
    store = stores(clock=clock)
    old = talk(store, "old", 0, 4)
    clock.advance(5)
    new = talk(store, "new", 100, 4)
    store.session("new").hint(stop_reason="length", pending_tool_call=True)
    before = {info.id: info for info in store.sessions()}
    store.close()
    clock.advance(100)
    store = stores(clock=clock)
    for info in store.sessions():
        was = before[info.id]
        assert info.state == "idle"
        assert (info.turns, info.tokens, info.blocks, info.last_use_s, info.created_s, info.stop_reason) == (
            was.turns, was.tokens, was.blocks, was.last_use_s, was.created_s, was.stop_reason
        )  # fmt: skip
        assert info.present_blocks == 4
    uses = [{store._core.index.get(block.key).last_use_s for block in blocks} for blocks in (old, new)]
    assert uses == [{before["old"].last_use_s}, {before["new"].last_use_s}]


def test_orphans_and_the_expired_are_dropped_at_the_next_opening(stores, kit, talk):
    clock = FakeClock(wall_s=1000.0)
    store = stores(clock=clock)
    blocks = talk(store, "s", 0, 4)
    expiring = kit.chain(100, 2, expires_s=1100)
    store.put(expiring)
    store.flush(10)
    store.disk.tier.remove([blocks[1].key])
    store.disk.tier.sync()
    with store._core.lock:
        store._core.index.entries.clear()  # so that closing does not notice
        store._core.index.tenant_bytes.clear()
        store._core.index.expiring = 0
    store.close()
    clock.advance(200)
    store = stores(clock=clock)
    assert store.match(kit.keys_of(blocks)) == 1
    assert store.match(kit.keys_of(expiring)) == 0
    assert kit.held_by(store, "disk", blocks + expiring) == 1
    assert store.counters()["orphans_dropped"] == 4
    assert store.session("s").describe().present_blocks == 1
    assert set(store.put(blocks)) == {Put.PRESENT, Put.STORED}


@pytest.mark.parametrize("seed", range(8))
def test_what_was_flushed_survives_a_power_cut(tmp_path, kit, seed):
    (tmp_path / "kv").mkdir()
    device = PowerLossDevice(tmp_path / "kv")
    store = kit.make_store(tmp_path / "kv", device=device, commit_interval_s=0.005)
    kept, gone = kit.chain(0, 6), kit.chain(100, 6)
    for name, blocks in (("kept", kept), ("gone", gone)):
        store.put(blocks)
        store.session(name).turn(kit.keys_of(blocks), 60)
    assert store.flush(20)
    assert store.session("gone").delete().wiped
    for step in range(4):
        unsure = kit.chain(1000 + 10 * step, 4)
        store.put(unsure)
        store.session(f"s{step}").turn(kit.keys_of(unsure), 40)
    device.lose_power(random.Random(seed), tmp_path / "after")
    store.close()
    again = kit.make_store(tmp_path / "after")
    assert {"kept"} <= {info.id for info in again.sessions()} <= {"kept", "s0", "s1", "s2", "s3"}
    assert again.match(kit.keys_of(kept)) == 6
    assert again.match(kit.keys_of(gone)) == 0
    assert on_disk(tmp_path / "after", gone) == 0
    assert set(kit.fetch(again, kept)) == {Get.HIT}
    assert kit.audit(again) == []
    again.close()


def test_what_was_flushed_survives_a_kill(tmp_path, kit):
    folder = tmp_path / "kv"
    for round_number in range(20):
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                store = kit.make_store(folder)
                blocks = kit.chain(1000 * round_number, 6)
                store.put(blocks)
                session = store.session(f"s{round_number}")
                session.turn(kit.keys_of(blocks), 60)
                if round_number % 3 == 2:
                    store.find_session(f"s{round_number - 1}").delete()
                if store.flush(20):
                    os.write(told, b"y")
                while True:  # the kill comes in the middle of something
                    store.put(kit.chain(500_000 + round_number, 20))
                    session.turn(kit.keys_of(blocks), 60)
            finally:
                os._exit(1)
        os.close(told)
        assert os.read(ready, 1) == b"y"
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        store = kit.make_store(folder)
        expected = [at for at in range(round_number + 1) if at % 3 != 1 or at == round_number]
        assert sorted(info.id for info in store.sessions()) == sorted(f"s{at}" for at in expected)
        for at in range(round_number + 1):
            blocks = kit.chain(1000 * at, 6)
            assert store.match(kit.keys_of(blocks)) == (6 if at in expected else 0)
        assert set(kit.fetch(store, kit.chain(1000 * round_number, 6))) == {Get.HIT}
        assert kit.audit(store) == []
        store.close()
