"""Where things lie unless told: STORE, the model's cache, both by the XDG rules; and how a command opens a store."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvlake.config import load_settings
from kvlake.open import open_store
from kvlake.store.store import Store

_Command = TypeVar("_Command", bound=Callable[..., Any])


def data_store() -> Path:
    """The store of a user who names none."""
    return _xdg("XDG_DATA_HOME", ".local/share") / "kvlake" / "store"


def cache_dir() -> Path:
    """Where a converted model is kept."""
    return _xdg("XDG_CACHE_HOME", ".cache") / "kvlake"


def _xdg(variable: str, fallback: str) -> Path:
    # The XDG rules say that a relative path is to be ignored.
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / fallback


_PATH = click.Path(path_type=Path)


def store_argument(command: _Command) -> _Command:
    """The argument [STORE]."""
    return click.argument("store", type=_PATH, envvar="KVLAKE_STORE", default=data_store)(command)


def named_store_argument(command: _Command) -> _Command:
    """The argument STORE of a command that takes more names after it."""
    return click.argument("store", type=_PATH)(command)


def store_option(command: _Command) -> _Command:
    """The option --store, for a command that makes its store where there is none."""
    text = "Directory of the store; without it $KVLAKE_STORE, then kvlake/store in the user's data directory."
    return click.option("--store", type=_PATH, envvar="KVLAKE_STORE", default=data_store, help=text)(command)


def json_option(command: _Command) -> _Command:
    """The option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def tenant_option(command: _Command) -> _Command:
    """The option --tenant."""
    return click.option("--tenant", help="Only sessions of this tenant.")(command)


def look(path: Path) -> Store:
    """Open a store to look at it, beside the process that owns it if there is one."""
    return open_store(path, read_only=True, disk_bytes=_capacity_bytes(path))


def own(path: Path) -> Store:
    """Open a store to change it. Raises StoreBusyError while another process has it; makes none where there is none."""
    # Opening to write would make a store of any empty directory, a mistyped one too.
    look(path).close()
    return open_store(path, memory_bytes=0, disk_bytes=_capacity_bytes(path))


def own_or_make(path: Path) -> Store:
    """Open a store to work with it, with a memory tier; made where there is none."""
    return open_store(path, disk_bytes=_capacity_bytes(path))


def on_disk_bytes(path: Path) -> int:
    """Bytes of the disk that the files of a store take up."""
    return sum(entry.stat().st_blocks * 512 for entry in os.scandir(path) if entry.is_file())


def _capacity_bytes(path: Path) -> int:
    """The capacity that is set, or more: what lies beyond it would be given up, and a command must not cost blocks."""
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(path) if entry.is_file()} if path.is_dir() else {}
    segments = sum(size for name, size in sizes.items() if name.endswith(".seg"))
    logs = sum(sizes.values()) - segments
    # The logs have a small share of the capacity, so it is they that ask for the most of it.
    return max(load_settings().disk_bytes, 2 * segments + 64 * logs)
