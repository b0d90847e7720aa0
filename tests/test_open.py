"""Opening a store by its settings: in memory, on disk, beside its owner; and what a failed opening leaves."""

import os
import subprocess
import sys
import time

import pytest

import kvlake
from kvlake.base.errors import CapacityError, ConfigError, StoreBusyError, StoreFormatError
from kvlake.config import Settings
from kvlake.open import _capacity_bytes
from kvlake.testing.blocks import block_of, key_of, payload_of
from kvlake.tiers.disk.recover import DiskOptions
from kvlake.tiers.tier import Get, Put

SMALL = {"memory_bytes": "256 KiB", "disk_bytes": "16 MiB", "disk_reserve_bytes": 0, "disk_direct": False}
BLOCKS = [block_of(0, 5000), block_of(1, 5000, key_of(0), 1)]
KEYS = [block.key for block in BLOCKS]


def fetched(store):
    buffers = [bytearray(5000) for _ in KEYS]
    outcomes = store.get(KEYS, buffers)
    return [
        outcome for outcome, buffer, key in zip(outcomes, buffers, KEYS, strict=True) if buffer == payload_of(key, 5000)
    ]


def test_a_store_without_a_path_is_in_memory_alone():
    with kvlake.open_store(memory_bytes="64 KiB") as store:
        assert list(store.usage()) == ["memory"]
        assert store.put(BLOCKS) == [Put.STORED] * 2
        assert store.flush()
        assert fetched(store) == [Get.HIT] * 2


def test_a_store_without_memory_is_on_disk_alone(tmp_path):
    with kvlake.open_store(tmp_path / "kv", **SMALL | {"memory_bytes": 0}) as store:
        assert list(store.usage()) == ["disk"]
        assert store.put(BLOCKS) == [Put.STORED] * 2
    with kvlake.open_store(tmp_path / "kv", **SMALL) as store:
        assert list(store.usage()) == ["memory", "disk"]
        assert fetched(store) == [Get.HIT] * 2


def test_a_store_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="needs a memory tier"):
        kvlake.open_store(memory_bytes=0)
    with pytest.raises(ConfigError, match="needs a memory tier"):
        kvlake.open_store(tmp_path / "kv", memory_bytes=0, disk_bytes=0)
    with pytest.raises(ValueError, match="at least one tier"):
        kvlake.Store([])


def test_settings_reach_the_store(tmp_path):
    settings = SMALL | {
        "idle_ttl_s": 0,
        "quotas": {"a": 5},
        "io_timeout_s": "3 s",
        "high_watermark": 0.8,
        "low_watermark": 0.7,
    }
    with kvlake.open_store(tmp_path / "kv", **settings) as store:
        options = store._core.options
        assert options.idle_ttl_s is None
        assert options.quotas == {"a": 5}
        assert options.io_timeout_s == 3.0
        assert (options.watermarks.high, options.watermarks.low) == (0.8, 0.7)


def test_one_writer_at_a_time(tmp_path):
    with kvlake.open_store(tmp_path / "kv", **SMALL), pytest.raises(StoreBusyError, match="is in use by process"):
        kvlake.open_store(tmp_path / "kv", **SMALL)
    kvlake.open_store(tmp_path / "kv", **SMALL).close()


def test_a_writer_in_another_process_is_busy_too(tmp_path):
    path = str(tmp_path / "kv")
    program = f"import kvlake; kvlake.open_store({path!r}, **{SMALL!r})"
    with kvlake.open_store(path, **SMALL):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        there = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert there.returncode == 1
    assert f"StoreBusyError: {path} is in use by process {os.getpid()}" in there.stderr


def test_a_reader_looks_beside_the_owner_and_changes_nothing(tmp_path):
    path = tmp_path / "kv"
    with kvlake.open_store(path, **SMALL) as owner:
        owner.put(BLOCKS)
        owner.session("s", tenant="t").turn(KEYS, 20)
        assert owner.flush()
        before = {file.name: file.read_bytes() for file in path.iterdir()}
        full = {"high_watermark": 1e-9, "low_watermark": 1e-9}
        with kvlake.open_store(path, read_only=True, **SMALL | full) as reader:
            assert list(reader.usage()) == ["disk"]
            assert [info.id for info in reader.sessions()] == ["s"]
            assert fetched(reader) == [Get.HIT] * 2
            assert reader.put([block_of(7, 100)]) == [Put.REFUSED]
            with pytest.raises(StoreBusyError, match="without read_only"):
                reader.find_session("s").delete()
            with pytest.raises(StoreBusyError, match="without read_only"):
                reader.evict(KEYS)
            reader.find_session("s").turn(KEYS, 99)
            reader.find_session("s").idle()
            assert reader.flush()
            assert all(report.ok for report in reader.check())
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before
        assert fetched(owner) == [Get.HIT] * 2


def test_a_reader_leaves_it_to_the_owner_to_delete_what_has_expired(tmp_path):
    path = tmp_path / "kv"
    with kvlake.open_store(path, **SMALL) as owner:
        owner.put(BLOCKS)
        owner.session("s").turn(KEYS, 20)
        owner.session("s").hint(ttl_s=0.5)
    time.sleep(0.6)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with kvlake.open_store(path, read_only=True, **SMALL) as reader:
        time.sleep(1.2)
        assert [info.id for info in reader.sessions()] == ["s"]
        assert reader.match(KEYS) == 2
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_reader_needs_a_store_to_read(tmp_path):
    with pytest.raises(ConfigError, match="there is no store at"):
        kvlake.open_store(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreFormatError):
        kvlake.open_store(tmp_path / "empty", read_only=True)
    with pytest.raises(ConfigError):
        kvlake.open_store(read_only=True)


def test_a_foreign_directory_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreFormatError, match=r"letter\.txt"):
        kvlake.open_store(tmp_path, **SMALL)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_sizes_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(CapacityError, match="raise disk_bytes"):
        kvlake.open_store(tmp_path / "kv", memory_bytes=0, disk_bytes="1 MiB")
    with pytest.raises(CapacityError):
        kvlake.open_store(memory_bytes=100)
    with pytest.raises(ConfigError, match="low <= high"):
        kvlake.open_store(tmp_path / "other", high_watermark=0.5, low_watermark=0.6)
    assert not (tmp_path / "other").exists(), "nothing is opened before all settings are right"


def test_an_opening_that_fails_half_way_gives_the_directory_back(tmp_path, monkeypatch):
    path = tmp_path / "kv"
    kvlake.open_store(path, **SMALL).close()

    def fail(*_, **__):
        raise OSError(5, "cannot be read")

    for name in ("kvlake.open.SessionLog", "kvlake.open.Store"):
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with pytest.raises(OSError, match="cannot be read"):
                kvlake.open_store(path, **SMALL)
        kvlake.open_store(path, **SMALL).close()


def test_names_are_loaded_when_they_are_used():
    assert "open_store" in kvlake.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        kvlake.nonsense  # noqa: B018


def test_a_store_larger_than_the_default_is_not_shrunk_by_leaving_the_size_out(tmp_path):
    with (tmp_path / "00000.seg").open("wb") as segment:
        segment.truncate(40 << 30)  # sparse
    options = DiskOptions(capacity_bytes=_capacity_bytes(tmp_path, Settings()))
    assert options.capacity_bytes - options.log_bytes >= 40 << 30
    assert _capacity_bytes(tmp_path, Settings(disk_bytes=1 << 30)) == 1 << 30
