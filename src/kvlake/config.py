"""The settings of a store: the only place that reads a settings file or the environment.

A setting comes, in falling order of weight, from the call, from the environment (`KVLAKE_DISK_BYTES`, ...), from the
TOML file that `KVLAKE_CONFIG` or the call names, from the default. An unknown name or a bad value is an error that
says so.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from kvlake.base.errors import ConfigError
from kvlake.base.units import GIB, MIB, parse_bytes, parse_seconds
from kvlake.policy.rank import RANKS

_PREFIX = "KVLAKE_"
_MAY_BE_ZERO = {"idle_ttl_s", "get_timeout_s"}


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set about a store. Sizes and times are written as people write them."""

    memory_bytes: int = _setting(256 * MIB, "Size of the memory tier; 0 for none.")
    memory_prefault: bool = _setting(False, "Take the memory tier's pages at start and keep them.")
    disk_bytes: int = _setting(
        32 * GIB, "Most that the store's directory may take up, logs included; 0 for no disk tier."
    )
    disk_reserve_bytes: int | None = _setting(
        None, "Part of the file system left free for others; by default 5 % of it, at most 16 GiB."
    )
    disk_direct: bool = _setting(True, "Read and write past the page cache (O_DIRECT) where the disk allows it.")
    get_timeout_s: float = _setting(10.0, "Deadline of a get; what comes later is a miss.")
    io_timeout_s: float = _setting(30.0, "Deadline of every other request to a slow tier.")
    commit_interval_s: float = _setting(0.5, "Longest time that a written block waits to be made durable.")
    idle_ttl_s: float = _setting(300.0, "Time without a turn after which a session goes idle; 0 for never.")
    rank: str = _setting("tail-first-lru", f"Which blocks go first: {', '.join(RANKS)}.")
    high_watermark: float = _setting(0.95, "Fraction of a tier at which it is relieved.")
    low_watermark: float = _setting(0.90, "Fraction of a tier down to which it is relieved.")
    quotas: dict[str, int] = field(
        default_factory=dict, metadata={"help": "Bytes that a tenant may hold, by tenant; `*` for those not named."}
    )


def load_settings(file: str | os.PathLike[str] | None = None, /, **given: Any) -> Settings:
    """Settings from the call, the environment, a TOML file and the defaults. Raises ConfigError."""
    file = file or os.environ.get(_PREFIX + "CONFIG")
    merged: dict[str, Any] = dict(_read(Path(file))) if file else {}
    merged |= _from_environment()
    merged |= {name: value for name, value in given.items() if value is not None}
    for name in merged:
        if name not in _names():
            near = get_close_matches(name, _names(), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known settings: {', '.join(_names())}"
            raise ConfigError(f"unknown setting {name!r}; {hint}")
    defaults: dict[str, Any] = {item.name: item.default if item.name != "quotas" else {} for item in fields(Settings)}
    return Settings(**{name: _convert(name, value) for name, value in (defaults | merged).items()})


def _from_environment() -> dict[str, str]:
    found: dict[str, str] = {}
    for variable, value in os.environ.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name in _names():
            found[name] = value
            continue
        # Other such names may be others' own (an orchestrator makes KVLAKE_PORT of a service); a slip is ours to tell.
        near = get_close_matches(name, _names(), 1, cutoff=0.8)
        if near:
            raise ConfigError(
                f"unknown setting {variable} in the environment; did you mean {_PREFIX}{near[0].upper()}?"
            )
    return found


def _names() -> list[str]:
    return [item.name for item in fields(Settings)]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _convert(name: str, value: Any) -> Any:
    try:
        return _parse(name, value)
    except (ConfigError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"bad value for {name}: {value!r} ({error})") from error


def _parse(name: str, value: Any) -> Any:
    if name == "quotas":
        return {str(tenant): parse_bytes(size) for tenant, size in _mapping(value).items()}
    if value is None:
        return None
    if name.endswith("_bytes"):
        return parse_bytes(value)
    if name.endswith("_s"):
        return _seconds(name, value)
    if name.endswith("_watermark"):
        fraction = float(value)
        if not 0 < fraction <= 1:
            raise ConfigError("write a fraction above 0 and up to 1")
        return fraction
    if name == "rank":
        if value not in RANKS:
            raise ConfigError(f"choose one of {', '.join(RANKS)}")
        return value
    return _boolean(value)


def _seconds(name: str, value: Any) -> float:
    seconds = parse_seconds(value)
    if not seconds <= TIMEOUT_MAX:
        raise ConfigError("write a time that ends")
    if not seconds and name not in _MAY_BE_ZERO:
        raise ConfigError("it cannot be 0; write a time like '10 s'")
    return seconds


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    pairs = [item.partition("=") for item in str(value).split(",") if item.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ConfigError("write tenants and sizes like 'alice=1 GiB,*=100 MiB'")
    return {tenant.strip(): size for tenant, _, size in pairs}


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if str(value).lower() not in known:
        raise ConfigError("write true or false")
    return known[str(value).lower()]
