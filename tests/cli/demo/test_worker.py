"""The worker in this process, with a tiny model: what it tells, and what it leaves in the store."""

import io
import json
import time

import pytest

import kvlake
from kvlake.base.errors import CapacityError
from kvlake.cli.demo.texts import QUESTIONS

worker_module = pytest.importorskip("kvlake.cli.demo.worker")


class Told:
    """Events, kept."""

    def __init__(self):
        self.events = []

    def send(self, event, **fields):
        self.events.append({"event": event, "at_s": 0.0, **fields})

    def of(self, kind):
        return [each for each in self.events if each["event"] == kind]


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def job(tmp_path):
    def make(phase="fill", memory_bytes=8 << 20, prompts=None):
        return worker_module.Job(
            phase=phase, store=str(tmp_path / "store"), cache_dir=str(tmp_path), memory_bytes=memory_bytes,
            disk_bytes=64 << 20, sessions=3, typical_tokens=300, new_tokens=4, prompts=prompts or {},
        )  # fmt: skip

    return make


@pytest.fixture
def filled(tiny, job, told):
    worker = worker_module.Worker(job(), told)
    yield worker
    worker.close()


def test_it_says_what_it_is_before_it_begins(filled, told):
    (ready,) = told.of("ready")
    assert ready["bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert ready["block_tokens"] == 64
    assert ready["dtype"] == "float32"
    assert ready["rss_bytes"] > 10 << 20
    assert ready["versions"].keys() == {"torch", "transformers"}


def test_fill_tells_every_turn_and_every_measurement(filled, told):
    filled.fill()
    assert [each["turn"] for each in told.of("turn")] == [1, 1, 1, 2, 2, 2]
    first, second, *_ = told.of("turn")
    assert (first["source"], first["cached_tokens"]) == ("none", 0)
    # The system prompt was there; the text was not.
    assert second["source"] == "store"
    assert 64 <= second["cached_tokens"] < second["prompt_tokens"] - 250
    for each in told.of("measured"):
        assert each["cold"] == each["memory"]
        assert len(each["cold"]) == 4
        assert each["in_memory"]
        assert 0 < len(each["prompt"]) - each["cached_tokens"] < 200
    assert QUESTIONS[-1].encode() in bytes(told.of("measured")[0]["prompt"])


def test_measuring_leaves_no_trace(filled, told):
    filled.fill()
    for each in told.of("measured"):
        keys = filled._engine.keys(each["prompt"])
        assert filled._store.match(keys) == each["cached_tokens"] // 64
        info = filled._store.find_session(each["id"]).describe()
        assert info.turns == 2
        assert info.present_blocks == info.blocks


def test_at_rest_only_the_disk_holds_anything(filled, told):
    filled.fill()
    (active,), (idle,) = told.of("active"), told.of("idle")
    assert active["tiers"]["memory"]["used_bytes"] > 0
    assert active["device_bytes"] > 0
    assert idle["tiers"]["memory"]["used_bytes"] == 0
    assert idle["device_bytes"] == 0
    assert idle["tiers"]["disk"]["used_bytes"] <= idle["on_disk_bytes"]


def test_they_come_back_in_another_process(tiny, job, told):
    first = worker_module.Worker(job(), told)
    first.fill()
    first.close()
    prompts = {each["id"]: each["prompt"] for each in reversed(told.of("measured"))}
    second = worker_module.Worker(job("return", prompts=prompts), told)
    second.come_back()
    second.close()
    measured = {each["id"]: each for each in told.of("measured")}
    returned = told.of("returned")
    assert [each["id"] for each in returned] == list(prompts)
    for each in returned:
        assert each["answer"] == measured[each["id"]]["cold"]
        assert each["cached_tokens"] == measured[each["id"]]["cached_tokens"]
        assert each["source"] == "store"
    assert returned[0]["in_memory_bytes"] == 0
    assert told.of("end")[0]["counters"]["disk_read_bytes"] > 0
    with kvlake.open_store(job().store, read_only=True) as store:
        assert {info.turns for info in store.sessions()} == {3}


def test_a_memory_that_does_not_hold_a_session_is_refused(tiny, job, told):
    worker = worker_module.Worker(job(memory_bytes=64 << 10), told)
    with pytest.raises(CapacityError, match="does not hold the longest session; give at least"):
        worker.fill()
    worker.close()


def test_samples_come_until_it_is_done(filled, told, monkeypatch):
    monkeypatch.setattr(worker_module, "_SAMPLE_S", 0.01)
    with worker_module._watched(filled, told):
        while len(told.of("sample")) < 3:
            time.sleep(0.01)
    seen = len(told.of("sample"))
    time.sleep(0.05)
    assert len(told.of("sample")) == seen
    assert told.of("sample")[0].keys() >= {"tiers", "device_bytes", "rss_bytes"}


def main_with(monkeypatch, job):
    monkeypatch.setattr(
        "sys.stdin", io.StringIO(json.dumps({name: getattr(job, name) for name in job.__slots__}) + "\n")
    )
    worker_module.main()


def test_main_speaks_json_lines(tiny, job, monkeypatch, capsys):
    main_with(monkeypatch, job())
    kinds = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert kinds[0] == "ready"
    assert [kind for kind in kinds if kind != "sample"][-1] == "idle"


def test_main_says_why_it_cannot_go_on(tiny, job, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main_with(monkeypatch, job(memory_bytes=64 << 10))
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["event"] == "failed"
    assert "--memory 64.0 KiB" in last["text"]
