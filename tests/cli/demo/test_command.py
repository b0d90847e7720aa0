"""`kvlake demo`: its options and errors; and the whole of it, with a real model and a real kill."""

import json
import sys
from pathlib import Path

import pytest

import kvlake
from kvlake.base.errors import ConfigError, StoreBusyError, StoreFormatError
from kvlake.cli import smollm
from kvlake.cli.demo import command
from kvlake.cli.demo import run as run_module
from kvlake.cli.demo.run import DemoSettings, clear_store

CONVERTED = Path(__file__).parents[3] / "build" / "models"


@pytest.fixture
def played(monkeypatch, course):
    """The demo without its workers: the course that took place on paper."""
    pytest.importorskip("matplotlib")
    asked = []

    def play(settings, show):
        settings.store.mkdir(parents=True)
        kvlake.open_store(settings.store, disk_bytes="32 MiB", memory_bytes=0).close()
        asked.append(settings)
        return course

    monkeypatch.setattr(smollm, "find_weights", lambda: None)
    monkeypatch.setattr(run_module, "run", play)
    return asked


def test_it_prints_a_table_and_leaves_a_report(run, played, tmp_path):
    out = tmp_path / "out"
    result = run("demo", "--out", out, "--sessions", "3", "--memory", "1.5 GiB", "--seed", "7", "--tokens", "900")
    (settings,) = played
    assert (settings.out, settings.sessions, settings.memory_bytes) == (out, 3, 3 << 29)
    assert (settings.seed, settings.typical_tokens) == (7, 900)
    assert "execmodel" in result.stdout
    assert f"kvlake ls {out}/store" in result.stdout
    assert json.loads((out / "report.json").read_text())["sessions"]
    assert "<svg" in (out / "report.html").read_text()
    assert not list(out.glob("*.new"))
    assert "0 sessions" in run("ls", out / "store").stdout


def test_json_is_the_report(run, played, tmp_path):
    printed = json.loads(run("demo", "--out", tmp_path / "out", "--json").stdout)
    assert printed == json.loads((tmp_path / "out/report.json").read_text())


def test_the_store_can_be_left_out(run, played, tmp_path):
    run("demo", "--out", tmp_path / "out", "--no-keep")
    assert not list((tmp_path / "out/store").iterdir())


def test_a_wrong_answer_is_exit_1_after_the_report(run, played, course, tmp_path):
    course.returned[0]["answer"] = [1]
    result = run("demo", "--out", tmp_path / "out", code=1)
    assert "Error: execmodel: the answers differ" in result.stderr
    assert (tmp_path / "out/report.html").is_file()


@pytest.mark.parametrize(
    "arguments", [("--memory", "a lot"), ("--memory", "-1"), ("--sessions", "0"), ("--tokens", "10000")]
)
def test_what_cannot_be_is_a_usage_error(run, arguments):
    assert "Invalid value" in run("demo", *arguments, code=2).stderr


def test_without_the_model_it_says_how_to_get_it(run, monkeypatch):
    monkeypatch.setattr(smollm, "PACKAGE", "no_such_package")
    assert "make setup" in run("demo", code=1).stderr


def test_without_a_library_it_says_how_to_get_it(run, monkeypatch):
    monkeypatch.setattr(smollm, "find_weights", lambda: None)
    monkeypatch.delattr("kvlake.cli.demo.report", raising=False)
    monkeypatch.setitem(sys.modules, "kvlake.cli.demo.report", None)
    assert "kvlake[demo]" in run("demo", code=1).stderr


def test_an_earlier_store_is_cleared_and_nothing_else(store):
    (store / "notes.txt").write_text("mine")
    clear_store(store)
    assert [file.name for file in store.iterdir()] == ["notes.txt"]
    clear_store(store.parent / "nowhere")


def test_what_is_not_a_store_is_left_alone(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/a.log").write_text("dear")
    with pytest.raises(StoreFormatError):
        clear_store(tmp_path / "letters")
    assert (tmp_path / "letters/a.log").read_text() == "dear"


def test_a_store_in_use_is_left_alone(owner, store):
    with pytest.raises(StoreBusyError):
        clear_store(store)
    assert list(store.glob("*.seg"))


def test_the_disk_tier_always_has_room(tmp_path):
    settings = DemoSettings(out=tmp_path, cache_dir=tmp_path)
    assert settings.disk_bytes > 12 * 2500 * 46_080


@pytest.mark.slow
def test_conversations_go_on_after_kill_9(run, monkeypatch, tmp_path):
    """The whole of it: two short sessions of the real model, killed and taken up again."""
    try:
        smollm.find_weights()
    except ConfigError as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(command, "cache_dir", lambda: CONVERTED)
    out = tmp_path / "out"
    result = run("demo", "--out", out, "--sessions", "2", "--tokens", "128", "--memory", "64 MiB")
    report = json.loads((out / "report.json").read_text())
    assert report["restart"]["exit_code"] == -9
    assert len(report["sessions"]) == 2
    assert all(each["tokens_equal"] and each["blocks_kept"] for each in report["sessions"])
    assert all(each["cached_tokens"] >= 384 for each in report["sessions"])
    assert report["idle"]["memory_bytes"] == report["idle"]["device_bytes"] == 0
    assert report["idle"]["disk_bytes"] > 2 * 384 * 46_080 * 0.6
    assert "kill -9: the worker is gone, its exit code -9" in result.stderr
    listed = run("ls", out / "store").stdout
    assert all(each["id"] in listed for each in report["sessions"])
    assert ": ok" in run("check", out / "store").stdout


@pytest.mark.slow
def test_a_memory_too_small_is_told_by_the_worker(run, monkeypatch, tmp_path):
    try:
        smollm.find_weights()
    except ConfigError as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(command, "cache_dir", lambda: CONVERTED)
    result = run("demo", "--out", tmp_path, "--sessions", "1", "--tokens", "128", "--memory", "16 MiB", code=1)
    assert "--memory 16.0 MiB does not hold the longest session; give at least" in result.stderr
