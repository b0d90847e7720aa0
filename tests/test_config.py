"""Settings: who outweighs whom, and what is said of a name or a value that cannot be."""

import math

import pytest

from kvlake.base.errors import ConfigError
from kvlake.config import Settings, load_settings


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("KVLAKE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "kvlake.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_defaults_are_parsed_into_numbers():
    settings = load_settings()
    assert settings.memory_bytes == 256 << 20
    assert settings.disk_bytes == 32 << 30
    assert settings.commit_interval_s == 0.5
    assert settings.idle_ttl_s == 300.0
    assert settings.disk_reserve_bytes is None
    assert settings.quotas == {}
    assert settings.disk_direct is True


def test_the_call_outweighs_the_environment_that_the_file_that_the_default(file, monkeypatch):
    path = file('memory_bytes = "1 MiB"\ndisk_bytes = "1 GiB"\nidle_ttl_s = "1 h"\n')
    monkeypatch.setenv("KVLAKE_DISK_BYTES", "2 GiB")
    monkeypatch.setenv("KVLAKE_MEMORY_BYTES", "2 MiB")
    settings = load_settings(path, memory_bytes="3 MiB", rank=None)
    assert settings.memory_bytes == 3 << 20
    assert settings.disk_bytes == 2 << 30
    assert settings.idle_ttl_s == 3600.0
    assert settings.get_timeout_s == 10.0
    assert settings.rank == "tail-first-lru"


def test_the_environment_names_a_file_and_the_call_another(file, monkeypatch, tmp_path):
    monkeypatch.setenv("KVLAKE_CONFIG", str(file('memory_bytes = "5 MiB"')))
    assert load_settings().memory_bytes == 5 << 20
    other = tmp_path / "other.toml"
    other.write_text("memory_bytes = 4096")
    assert load_settings(other).memory_bytes == 4096


def test_quotas_come_as_a_table_or_as_one_line(file, monkeypatch):
    path = file('[quotas]\nalice = "1 GiB"\n"*" = "10 MiB"\n')
    assert load_settings(path).quotas == {"alice": 1 << 30, "*": 10 << 20}
    monkeypatch.setenv("KVLAKE_QUOTAS", "alice=1 KiB, bob = 2 KiB ,*=3")
    assert load_settings(path).quotas == {"alice": 1024, "bob": 2048, "*": 3}


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("on", True), ("0", False), ("FALSE", False)])
def test_truth_as_people_write_it(monkeypatch, text, value):
    monkeypatch.setenv("KVLAKE_MEMORY_PREFAULT", text)
    assert load_settings().memory_prefault is value


@pytest.mark.parametrize(
    ("name", "near"), [("memory_byte", "memory_bytes"), ("quota", "quotas"), ("idle_ttl", "idle_ttl_s")]
)
def test_an_unknown_name_is_an_error_that_suggests_the_near_one(file, name, near):
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'; did you mean '{near}'"):
        load_settings(**{name: 1})
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        load_settings(file(f"{name} = 1"))


def test_a_name_like_none_is_answered_with_all_of_them():
    with pytest.raises(ConfigError, match="known settings: memory_bytes, memory_prefault"):
        load_settings(zzzzzz=1)


def test_a_slip_in_the_environment_is_told_and_others_names_are_theirs(monkeypatch):
    monkeypatch.setenv("KVLAKE_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("KVLAKE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KVLAKE_STORE", "/somewhere")
    load_settings()
    monkeypatch.setenv("KVLAKE_MEMORY_BYTE", "1 GiB")
    with pytest.raises(ConfigError, match="KVLAKE_MEMORY_BYTE in the environment; did you mean KVLAKE_MEMORY_BYTES"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("memory_bytes", "lots", "write it like"),
        ("memory_bytes", -1, "cannot be negative"),
        ("disk_bytes", 1.5, ""),
        ("get_timeout_s", "soon", "write it like"),
        ("get_timeout_s", -2, "cannot be negative"),
        ("io_timeout_s", 0, "cannot be 0"),
        ("commit_interval_s", "0 s", "cannot be 0"),
        ("io_timeout_s", math.inf, "a time that ends"),
        ("idle_ttl_s", math.nan, "a time that ends"),
        ("rank", "random", "choose one of tail-first-lru"),
        ("rank", [], ""),
        ("high_watermark", "most", ""),
        ("high_watermark", 1.5, "above 0 and up to 1"),
        ("low_watermark", 0, "above 0 and up to 1"),
        ("memory_prefault", "perhaps", "write true or false"),
        ("quotas", "alice", "alice=1 GiB"),
        ("quotas", 7, "alice=1 GiB"),
        ("quotas", {"alice": "some"}, "write it like"),
    ],
)
def test_a_bad_value_is_told_with_its_name_the_value_and_the_cure(name, value, cure):
    with pytest.raises(ConfigError, match=f"bad value for {name}") as caught:
        load_settings(**{name: value})
    assert repr(value) in str(caught.value)
    assert cure in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the settings file .*absent\.toml: No such file"):
        load_settings(tmp_path / "absent.toml")
    path = tmp_path / "bad.toml"
    path.write_text("memory_bytes = = 1")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        load_settings(path)
    path.write_bytes(b"rank = '\xff'")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        load_settings(path)


def test_every_setting_says_what_it_is():
    from dataclasses import fields

    assert all(item.metadata["help"].endswith(".") for item in fields(Settings))
