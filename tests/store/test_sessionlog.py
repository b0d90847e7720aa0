"""Sessions on disk: what a log tells, how it grows and is written anew, and what a failing disk makes of it."""

import errno
import os

import pytest

from kvlake.keys.block import KEY_BYTES
from kvlake.store.session import SessionState, SessionTable, State
from kvlake.store.sessionlog import NAME, SessionLog
from kvlake.testing.blocks import key_of
from kvlake.testing.faults import Fault, FaultyDevice

BUDGET_BYTES = 4 << 20


@pytest.fixture
def device(tmp_path):
    device = FaultyDevice(tmp_path, direct=False)
    yield device
    device.faults.clear()
    device.close()


@pytest.fixture
def logs(device):
    """() -> the log as a new process finds it; the one before is closed."""
    opened = []

    def make(budget_bytes=BUDGET_BYTES, **arguments):
        if opened:
            opened.pop().close()
        opened.append(SessionLog(device, budget_bytes, **arguments))
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def table_of(count, keys=8):
    table = SessionTable()
    for at in range(count):
        state = SessionState(f"s{at}", "tenant", b"n" * 8, 10.0, 20.0 + at)
        table.add(state)
        table.set_keys(state, [key_of(1000 * at + number) for number in range(keys)])
    return table


def write(log, table):
    draft = log.draft(table)
    if draft is not None:
        log.write(draft)
    return draft


def shape(table):
    """All that a log keeps of a table; a session that was active comes back idle."""
    return {
        state.id: (
            state.tenant, state.namespace, state.created_s, state.last_use_s, state.keys, state.tokens, state.turns,
            state.branches, state.idle_ttl_s, state.pinned_until_s, state.expires_s, state.stop_reason,
            state.pending_tool_call,
            State.IDLE if state.state is State.ACTIVE else state.state,
        )
        for state in table.by_id.values()
    }  # fmt: skip


def test_what_was_written_is_told_again(logs):
    log, table = logs(), table_of(3)
    state = table.by_id["s1"]
    state.tokens, state.turns, state.idle_ttl_s, state.pinned_until_s = 80, 2, 5.0, 99.5
    state.expires_s, state.stop_reason, state.pending_tool_call = 123.0, "length", True
    table.set_state(state, State.ACTIVE)
    table.set_state(table.by_id["s2"], State.ENDED)
    write(log, table)
    again = logs().replay()
    assert shape(again) == shape(table)
    assert again.holders[state.keys[0]] == 1
    assert not again.changed
    assert again.ended[table.by_id["s2"].keys[0]] == 1
    assert not again.active


def test_nothing_changed_is_nothing_written(logs):
    log, table = logs(), table_of(1)
    assert write(log, table) is not None
    assert log.draft(table) is None


def test_a_turn_writes_its_new_keys_only(logs, tmp_path):
    log, table = logs(), table_of(1, keys=2000)
    write(log, table)
    state = table.by_id["s0"]
    size = os.path.getsize(tmp_path / NAME)
    for step in range(5):
        table.set_keys(state, [*state.keys, key_of(10**6 + step)])
        write(log, table)
    assert os.path.getsize(tmp_path / NAME) - size < 5 * 600
    assert logs().replay().by_id["s0"].keys == state.keys


def test_an_edited_turn_and_a_shorter_one_are_told_right(logs):
    log, table = logs(), table_of(1)
    state = table.by_id["s0"]
    write(log, table)
    table.set_keys(state, [*state.keys[:3], key_of(77)])
    table.set_keys(state, [*state.keys[:2], key_of(78), key_of(79)])
    write(log, table)
    table.set_keys(state, state.keys[:1])
    write(log, table)
    assert logs().replay().by_id["s0"].keys == state.keys == [key_of(0)]


def test_a_deleted_session_is_gone_and_a_new_one_of_its_name_is_new(logs):
    log, table = logs(), table_of(2)
    write(log, table)
    table.remove(table.by_id["s0"])
    write(log, table)
    assert set(logs().replay().by_id) == {"s1"}
    log = logs()
    table = log.replay()
    table.remove(table.by_id["s1"])
    fresh = SessionState("s1", "other", b"", 1.0, 2.0)
    table.add(fresh)
    table.set_keys(fresh, [key_of(5)])
    write(log, table)
    assert shape(logs().replay()) == shape(table)


def test_a_log_of_old_lines_is_written_anew(logs, tmp_path):
    log, table = logs(), table_of(1, keys=400)
    state = table.by_id["s0"]
    for step in range(300):
        table.set_keys(state, [key_of(step), *state.keys[1:]])
        write(log, table)
    assert os.path.getsize(tmp_path / NAME) < 400 << 10
    assert logs().replay().by_id["s0"].keys == state.keys


def test_a_log_that_is_full_forgets_the_sessions_longest_unused(logs, tmp_path, caplog):
    budget = 256 << 10
    log, table = logs(budget), table_of(40, keys=200)
    held = sum(table.holders.values())
    write(log, table)
    kept = set(table.by_id)
    assert kept == {f"s{at}" for at in range(40 - len(kept), 40)}
    assert 0 < len(kept) < 40
    assert sum(table.holders.values()) == held * len(kept) // 40
    assert "longest unused are forgotten" in caplog.text
    assert set(logs(budget).replay().by_id) == kept
    assert os.path.getsize(tmp_path / NAME) < budget // 2


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_draft_that_could_not_be_written_is_drafted_again(logs, device, operation):
    log, table = logs(), table_of(2)
    write(log, table)
    state = table.by_id["s0"]
    table.set_keys(state, [*state.keys, key_of(70)])
    device.faults.add(Fault(operation, errno=errno.ENOSPC, moved_bytes=20))
    draft = log.draft(table)
    with pytest.raises(OSError, match="injected"):
        log.write(draft)
    table.set_keys(state, [*state.keys[:4], key_of(71)])
    draft.restore(table)
    assert table.changed["s0"] == 4
    write(log, table)
    assert shape(logs().replay()) == shape(table)


@pytest.mark.parametrize("fault", [Fault("names", errno=errno.EIO), Fault("sync", errno=errno.EIO)])
def test_after_a_failed_rewriting_the_next_is_whole_too(logs, device, fault):
    """The new log may have taken the name or not: what is added to the old one could be lost with it."""
    log, table = logs(), table_of(2)
    device.faults.add(fault)
    draft = log.draft(table)
    with pytest.raises(OSError, match="injected"):
        log.write(draft)
    draft.restore(table)
    table.remove(table.by_id["s0"])
    assert write(log, table).whole
    assert shape(logs().replay()) == shape(table)


def test_a_torn_end_costs_the_last_line_only(logs, tmp_path):
    log, table = logs(), table_of(1)
    write(log, table)
    before = shape(table)
    table.by_id["s0"].tokens = 999
    table.note(table.by_id["s0"], 8)
    write(log, table)
    with open(tmp_path / NAME, "r+b") as file:
        file.truncate(os.path.getsize(tmp_path / NAME) - 3)
    log = logs()
    table = log.replay()
    assert shape(table) == before
    table.by_id["s0"].tokens = 5
    table.note(table.by_id["s0"], 8)
    write(log, table)
    assert logs().replay().by_id["s0"].tokens == 5


def test_a_log_that_cannot_be_read_at_all_is_begun_again(logs, tmp_path):
    (tmp_path / NAME).write_bytes(b"nothing of ours")
    log, table = logs(), table_of(1)
    assert not log.replay().by_id
    write(log, table)
    assert shape(logs().replay()) == shape(table)


def test_a_reader_writes_nothing(logs, tmp_path):
    log, table = logs(), table_of(1)
    write(log, table)
    raw = (tmp_path / NAME).read_bytes()
    log = logs(read_only=True)
    table = log.replay()
    table.note(table.by_id["s0"], 0)
    assert log.draft(table) is None
    assert (tmp_path / NAME).read_bytes() == raw
    assert len(key_of(0)) == KEY_BYTES
