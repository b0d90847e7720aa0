"""`kvlake ls` and `kvlake describe`."""

import json

import pytest

import kvlake
from kvlake.store.session import SessionInfo

FIELDS = set(SessionInfo.__dataclass_fields__)


def test_ls_lists_the_most_recently_used_first(run, store):
    output = run("ls", store).output
    assert output.index("007") < output.index("bob") < output.index("alice")
    assert "3 sessions in" in output
    assert "32.0 KiB" in output


def test_ls_json_is_all_that_is_known(run_json, store):
    found = {each["id"]: each for each in run_json("ls", store)}
    assert found.keys() == {"alice", "bob", "007"}
    assert all(each.keys() == FIELDS for each in found.values())
    assert found["bob"]["tokens"] == 72
    assert found["bob"]["blocks"] == found["bob"]["present_blocks"] == 4
    assert found["bob"]["bytes_by_tier"] == {"disk": 4 * 8192}
    assert found["bob"]["shared_bytes"] == 2 * 8192


def test_ls_of_one_tenant(run_json, store):
    assert [each["id"] for each in run_json("ls", store, "--tenant", "team")] == ["007", "bob"]
    assert run_json("ls", store, "--tenant", "nobody") == []


def test_ls_says_which_blocks_are_gone(run, store, tmp_path):
    with kvlake.open_store(store, memory_bytes=0) as opened:
        keys = kvlake.chain_keys(b"n" * 16, [5] * 20, 16)
        assert opened.evict(keys)
    assert "0 of 1" in run("ls", store).output


def test_ls_works_beside_the_owner(run, owner, store):
    assert "alice" in run("ls", store).output


def test_ls_of_a_directory_that_is_no_store(run, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/a.txt").write_text("dear")
    assert "no kvlake store" in run("ls", tmp_path / "letters", code=1).stderr
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["a.txt"]


def test_describe_shows_one_session(run, store):
    output = run("describe", store, "bob").output
    for words in ("bob", "team", "idle", "72", "4 of 4 present", "32.0 KiB", "16.0 KiB are in another session too"):
        assert words in output


def test_describe_json(run, store, run_json):
    assert run_json("describe", store, "alice") == next(each for each in run_json("ls", store) if each["id"] == "alice")


def test_describe_shows_what_is_out_of_the_ordinary(run, store):
    with kvlake.open_store(store, memory_bytes=0) as opened:
        session = opened.find_session("bob")
        session.pin(3600)
        session.hint(stop_reason="length", pending_tool_call=True, ttl_s=7200)
    output = run("describe", store, "bob").output
    assert "stopped by length" in output
    assert "tool call" in output
    assert output.count(" more\n") == 2


@pytest.mark.parametrize("arguments", [[], ["only-store"]])
def test_describe_needs_both_names(run, arguments):
    assert "Missing argument" in run("describe", *arguments, code=2).stderr


def test_describe_of_a_session_that_is_not_there(run, store):
    assert "no session 'eve'; `kvlake ls`" in run("describe", store, "eve", code=1).stderr
    with pytest.raises(json.JSONDecodeError):
        json.loads(run("describe", store, "eve", "--json", code=1).stdout)
