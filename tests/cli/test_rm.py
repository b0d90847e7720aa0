"""`kvlake rm`: what goes is said first, what is shared stays, and nothing goes by half."""

import pytest

from kvlake.store.handle import Session
from kvlake.store.session import Deleted


def names(run_json, store):
    return {each["id"] for each in run_json("ls", store)}


def test_a_session_goes_with_what_only_it_holds(run, run_json, store):
    output = run("rm", store, "bob", "--yes").output
    assert "bob: 2 blocks, 16.0 KiB overwritten" in output
    assert "1 session deleted: 2 blocks, 16.0 KiB" in output
    assert names(run_json, store) == {"alice", "007"}
    assert run_json("describe", store, "alice")["present_blocks"] == 4


def test_rm_json(run_json, store):
    assert run_json("rm", store, "bob", "alice", "--yes") == [
        {"id": "bob", "blocks": 2, "bytes": 16384, "wiped": True},
        {"id": "alice", "blocks": 4, "bytes": 32768, "wiped": True},
    ]


def test_it_says_what_goes_and_asks(run, run_json, store):
    result = run("rm", store, "bob", input="n\n", code=1)
    assert "bob: 72 tokens, 32.0 KiB, 16.0 KiB of it shared" in result.stderr
    assert "Delete 1 session?" in result.stderr
    assert names(run_json, store) == {"alice", "bob", "007"}
    run("rm", store, "bob", input="y\n")
    assert names(run_json, store) == {"alice", "007"}


def test_without_an_answer_nothing_goes(run, run_json, store):
    run("rm", store, "bob", input="", code=1)
    assert "bob" in names(run_json, store)


def test_all_of_them(run, run_json, store):
    assert "3 sessions deleted: 7 blocks" in run("rm", store, "--all", "--yes").output
    assert run_json("du", store)["tiers"]["disk"]["blocks"] == 0
    assert "0 sessions deleted" in run("rm", store, "--all").output


def test_all_of_one_tenant(run, run_json, store):
    run("rm", store, "--all", "--tenant", "team", "--yes")
    assert names(run_json, store) == {"alice"}


def test_a_name_that_is_not_there_stops_it_before_anything_goes(run, run_json, store):
    assert "no session 'eve'" in run("rm", store, "bob", "eve", "--yes", code=1).stderr
    assert names(run_json, store) == {"alice", "bob", "007"}


def test_a_session_of_another_tenant_is_not_there(run, run_json, store):
    result = run("rm", store, "alice", "--tenant", "team", "--yes", code=1)
    assert "no session 'alice' of tenant 'team'" in result.stderr
    assert "alice" in names(run_json, store)


def test_a_name_given_twice_is_one(run_json, store):
    assert len(run_json("rm", store, "bob", "bob", "--yes")) == 1


@pytest.mark.parametrize("arguments", [[], ["bob", "--all"]])
def test_names_or_all(run, store, arguments):
    assert "name the sessions to delete, or give --all" in run("rm", store, *arguments, code=2).stderr


def test_not_while_another_process_has_the_store(run, owner, store):
    assert "in use by process" in run("rm", store, "bob", "--yes", code=1).stderr


def test_no_store_is_made_where_there_is_none(run, tmp_path):
    assert "no store" in run("rm", tmp_path / "new", "bob", "--yes", code=1).stderr
    assert not (tmp_path / "new").exists()


def test_what_the_disk_did_not_confirm_is_said_loudly(run, store, monkeypatch):
    monkeypatch.setattr(Session, "delete", lambda self: Deleted(blocks=1, nbytes=10, wiped=False))
    assert "NOT confirmed as overwritten" in run("rm", store, "bob", "--yes", code=1).output


def test_the_text_is_gone_from_the_segments(run, store):
    before = b"".join(file.read_bytes() for file in store.glob("*.seg"))
    run("rm", store, "--all", "--yes")
    after = b"".join(file.read_bytes() for file in store.glob("*.seg"))
    # Payloads are random bytes: nothing of them may be left but headers and descriptors.
    assert sum(map(bool, before)) > 7 * 8000
    assert sum(map(bool, after)) < 8192
