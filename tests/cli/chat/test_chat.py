"""`kvlake chat` with a tiny random model: what it says is noise, what it remembers is not."""

import json

import pytest

import kvlake
from kvlake.cli import smollm
from kvlake.cli.chat import command, talk


@pytest.fixture(autouse=True)
def small(monkeypatch, tiny):
    monkeypatch.setenv("KVLAKE_DISK_BYTES", "32 MiB")


@pytest.fixture
def chat(run, tmp_path):
    """Say these lines; returns what is printed."""

    def say(*lines, session="trip", **options):
        more = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        text = "".join(line + "\n" for line in lines)
        arguments = ["--store", tmp_path / "store", "--session", session, "--max-new-tokens", 8, *more]
        return run("chat", *arguments, input=text).stdout

    return say


def messages(tmp_path, session="trip"):
    return json.loads((tmp_path / f"store-chat/{session}.json").read_text())["messages"]


def test_an_answer_and_what_it_cost(chat, tmp_path):
    output = chat("Where shall we go?", system="You are a map.")
    assert "New session 'trip'" in output
    assert "cached 0 of 59 tokens, first token" in output
    assert "'trip' rests: 1 block, " in output
    said = messages(tmp_path)
    assert [each["role"] for each in said] == ["system", "user", "assistant"]
    assert said[0]["content"] == "You are a map."
    assert said[2]["content"] in output


def test_a_session_goes_on_after_a_restart(chat, tmp_path, run_json):
    chat("x" * 200)
    output = chat("and more of it")
    assert "Session 'trip': 1 turn, " in output
    cached = int(output.partition("cached ")[2].split()[0])
    assert cached >= 192
    assert len(messages(tmp_path)) == 5
    (info,) = run_json("ls", tmp_path / "store")
    assert (info["id"], info["turns"], info["state"]) == ("trip", 2, "idle")


def test_sessions_do_not_mix(chat, tmp_path):
    chat("one thing")
    chat("another", session="work")
    output = chat("/sessions", session="work")
    assert "trip" in output
    assert "work" in output
    assert [each["content"] for each in messages(tmp_path, "work")][1] == "another"


def test_idle_frees_memory_and_the_talk_goes_on(chat):
    output = chat("y" * 150, "/idle", "go on")
    assert output.count("'trip' rests") == 2
    assert output.count("none in memory") == 2
    assert "cached 128 of" in output or "cached 192 of" in output


def test_delete_forgets_what_was_said_and_computed(chat, tmp_path, run_json):
    output = chat("a secret " * 20, "/delete", "hello")
    assert "'trip' deleted: " in output
    assert "secret" not in json.dumps(messages(tmp_path))
    assert run_json("ls", tmp_path / "store")[0]["turns"] == 1
    assert "deleted" not in chat("/delete", session="never")


def test_help_lists_what_there_is(chat):
    output = chat("/help", "/nonsense", "/quit", "not heard")
    assert all(name in output for name in ("/idle", "/sessions", "/delete", "/help", "/quit"))
    assert "There is no such command" in output
    assert "cached" not in output


def test_empty_lines_say_nothing(chat, tmp_path):
    chat("", "   ")
    assert not (tmp_path / "store-chat/trip.json").exists()


def test_a_session_that_is_full_says_so(chat, tmp_path):
    output = chat("z" * 4100, "short")
    assert "The model reads 4,096 tokens" in output
    assert [each["content"] for each in messages(tmp_path)][1] == "short"


def test_an_answer_broken_off_is_as_if_it_had_not_been_asked_for(chat, tmp_path, monkeypatch):
    generate = talk.Engine.generate
    calls = []

    def once_interrupted(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return generate(self, *arguments, **options)

    monkeypatch.setattr(talk.Engine, "generate", once_interrupted)
    assert "(broken off)" in chat("forget this", "keep this")
    assert [each["content"] for each in messages(tmp_path)][1] == "keep this"


def test_control_c_at_the_prompt_ends_it(monkeypatch, capsys):
    class Keyboard:
        def isatty(self):
            return True

        def readline(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(command.sys, "stdin", Keyboard())
    assert list(command._lines()) == []
    assert "> " in capsys.readouterr().out


def test_a_bad_name_ends_it_before_the_model_is_loaded(run, tmp_path, monkeypatch):
    monkeypatch.setattr(smollm, "load", lambda folder, note: 1 / 0)
    result = run("chat", "--session", "../x", "--store", tmp_path / "store", code=1)
    assert "a session is named with letters" in result.stderr
    assert not (tmp_path / "store").exists()


def test_a_store_in_use_is_told(run, tmp_path):
    with kvlake.open_store(tmp_path / "store", disk_bytes="32 MiB"):
        result = run("chat", "--store", tmp_path / "store", input="hi\n", code=1)
    assert "in use by process" in result.stderr


def test_without_the_model_it_says_how_to_get_it(run, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(smollm, "PACKAGE", "no_such_package")
    assert "make setup" in run("chat", "--store", tmp_path / "store", code=1).stderr
