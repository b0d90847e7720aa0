"""Where things lie unless told, and that a look never costs a block."""

from pathlib import Path

import pytest

import kvlake
from kvlake.base.errors import ConfigError, StoreBusyError
from kvlake.cli import places


def test_the_users_directories(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert places.data_store() == tmp_path / "data/kvlake/store"
    assert places.cache_dir() == tmp_path / "cache/kvlake"


@pytest.mark.parametrize("value", ["", "relative/path", None])
def test_without_xdg_it_is_the_home(monkeypatch, tmp_path, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_DATA_HOME", value)
    assert places.data_store() == tmp_path / ".local/share/kvlake/store"
    assert places.cache_dir().is_relative_to(Path.home())


def test_the_store_may_come_from_the_environment(run, store, monkeypatch):
    monkeypatch.setenv("KVLAKE_STORE", str(store))
    assert "alice" in run("ls").output
    assert "ok" in run("check").output


def test_the_store_may_be_the_users_own(run, store, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "kvlake").mkdir()
    store.rename(tmp_path / "kvlake/store")
    assert "alice" in run("ls").output


def test_no_command_gives_up_blocks_beyond_the_capacity_that_is_set(store, monkeypatch):
    with kvlake.open_store(store, memory_bytes=0) as opened:
        blocks = opened.usage()["disk"].blocks
    monkeypatch.setenv("KVLAKE_DISK_BYTES", "16 MiB")
    for open_it in (places.look, places.own, places.own_or_make):
        with open_it(store) as opened:
            assert opened.usage()["disk"].blocks == blocks


def test_to_own_a_store_it_must_be_there_and_free(store, owner, tmp_path):
    with pytest.raises(ConfigError, match="no store"):
        places.own(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StoreBusyError, match="in use by process"):
        places.own(store)


def test_on_disk_bytes_counts_what_files_take_up(tmp_path):
    (tmp_path / "file").write_bytes(bytes(10_000))
    (tmp_path / "sparse").touch()
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(1 << 20)
    assert 10_000 <= places.on_disk_bytes(tmp_path) < 1 << 20
