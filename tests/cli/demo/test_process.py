"""A worker's process, played by a few lines of Python; progress on and off a terminal; the machine."""

import sys
from pathlib import Path

import pytest

from kvlake.cli.demo import process as process_module
from kvlake.cli.demo.machine import machine, versions
from kvlake.cli.demo.process import WorkerError, WorkerProcess
from kvlake.cli.demo.progress import Bars, Lines, progress_for_terminal


@pytest.fixture
def play(monkeypatch, tmp_path):
    """A worker that runs `body` after it has read its job."""
    opened = []

    def start(body, note=lambda text: None):
        (tmp_path / "played.py").write_text(
            "import sys, json, time\njob = json.loads(sys.stdin.readline())\n"
            "def send(event, **more): print(json.dumps({'event': event, **more}), flush=True)\n" + body
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(process_module, "_WORKER", "played")
        opened.append(WorkerProcess({"name": "x"}, tmp_path / "worker.log", note))
        return opened[-1]

    yield start
    for worker in opened:
        worker.__exit__(None, None, None)


def test_events_come_in_order_and_samples_are_kept(play):
    notes = []
    worker = play("send('note', text='hello'); send('sample', a=1); send('ready', name=job['name'])", notes.append)
    assert worker.next("ready")["name"] == "x"
    assert notes == ["hello"]
    assert worker.samples == [{"event": "sample", "a": 1}]
    assert worker.end() == 0


def test_what_the_worker_says_went_wrong(play):
    with pytest.raises(WorkerError, match="no room for the model"):
        play("send('failed', text='no room for the model')").next("ready")


def test_an_event_out_of_turn(play):
    with pytest.raises(WorkerError, match="'idle' where 'ready' was due"):
        play("send('idle')").next("ready")


def test_a_worker_that_just_ends(play):
    with pytest.raises(WorkerError, match=r"code 3; the last of .*worker.log:\nwhat a pity"):
        play("print('what a pity', file=sys.stderr); sys.exit(3)").next("ready")


def test_a_kill_leaves_no_time(play):
    worker = play("send('ready')\ntry: time.sleep(60)\nfinally: send('tidied')")
    worker.next("ready")
    assert worker.kill() == -9
    with pytest.raises(WorkerError, match="code -9"):
        worker.next("tidied")


def test_it_is_gone_after_the_with_block(play):
    with pytest.raises(KeyboardInterrupt), play("time.sleep(60)") as worker:
        raise KeyboardInterrupt
    assert worker.end() == -9


def test_lines_tell_a_stage_when_it_is_done(capsys):
    show = Lines()
    show.note("a note")
    with show.stage("reading", 2) as advance:
        advance()
        advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "a note"
    assert lines[1].startswith("reading ")
    assert lines[1].endswith(" ms")


def test_bars_draw(capsys):
    pytest.importorskip("rich")
    show = Bars()
    show.note("[not markup]")
    with show.stage("reading [a]", 2) as advance:
        advance()
        advance()
    error = capsys.readouterr().err
    assert "[not markup]" in error
    assert "2/2" in error


def test_bars_for_a_terminal_lines_for_the_rest(monkeypatch):
    assert isinstance(progress_for_terminal(), Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(progress_for_terminal(), Lines)


def test_bars_where_rich_is_installed(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(progress_for_terminal(), Bars)


def test_the_machine_is_told(tmp_path):
    found = machine(tmp_path)
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 1 << 28
    assert found["processor"]
    assert found["file_system"] not in ("", "unknown")
    assert machine(Path("/proc"))["file_system"] == "proc"
    assert versions().keys() == {"kvlake", "python"}
