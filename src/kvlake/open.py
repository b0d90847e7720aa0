"""The only place where a name becomes a class: settings -> a store over its tiers."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kvlake.base.errors import ConfigError
from kvlake.config import Settings, load_settings
from kvlake.policy.rank import RANKS
from kvlake.policy.watermark import Watermarks
from kvlake.store.core import StoreOptions
from kvlake.store.sessionlog import SessionLog
from kvlake.store.store import Store
from kvlake.tiers.disk.device import Device
from kvlake.tiers.disk.recover import DiskOptions
from kvlake.tiers.disk.tier import DiskTier
from kvlake.tiers.memory import MemoryTier
from kvlake.tiers.tier import Tier


def open_store(
    path: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    config: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Store:
    """Open the store in the directory `path`, or make one there; without a path it lives in memory alone.

    `settings` are those of `kvlake.config.Settings`, as text or numbers: `open_store("kv", memory_bytes="1 GiB",
    disk_bytes="100 GiB")`. With `read_only` it can be looked at beside the process that owns it. Raises ConfigError,
    StoreBusyError, StoreFormatError, CapacityError, or OSError when the directory cannot be used at all.
    """
    chosen = load_settings(config, **settings)
    options = _options(chosen, read_only=read_only)
    tiers: list[Tier] = []
    session_log = None
    with ExitStack() as opened:
        if chosen.memory_bytes and not read_only:
            tiers.append(MemoryTier(chosen.memory_bytes, prefault=chosen.memory_prefault))
        if path is not None and chosen.disk_bytes:
            disk, session_log = _open_disk(Path(path), chosen, opened, read_only=read_only)
            tiers.append(disk)
        if not tiers:
            raise ConfigError(
                "a store needs a memory tier (memory_bytes) or a directory with a disk tier (path, disk_bytes)"
            )
        store = Store(tiers, options, session_log=session_log)
        opened.pop_all()
    return store


def _open_disk(path: Path, chosen: Settings, opened: ExitStack, *, read_only: bool) -> tuple[DiskTier, SessionLog]:
    """The tier and the log; `opened` closes what of them is there should the rest fail."""
    if read_only and not path.is_dir():
        raise ConfigError(f"there is no store at {path}; give its directory")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = DiskOptions(
        capacity_bytes=_capacity_bytes(path, chosen), reserve_bytes=chosen.disk_reserve_bytes, read_only=read_only
    )
    device = Device(path, direct=chosen.disk_direct and not read_only)
    disk = DiskTier.open(path, options, device=device)
    opened.callback(disk.close)
    session_log = SessionLog(device, options.log_bytes // 2, read_only=read_only)
    opened.callback(session_log.close)
    return disk, session_log


def _capacity_bytes(path: Path, chosen: Settings) -> int:
    """The capacity that was set; where that is the default, at least what a larger store takes up already.

    A capacity lowered on purpose gives up the segments beyond it. Nobody means that who leaves it out.
    """
    if chosen.disk_bytes != Settings().disk_bytes:
        return chosen.disk_bytes
    there = sum(segment.stat().st_size for segment in path.glob("*.seg"))
    return max(chosen.disk_bytes, there * 17 // 16)  # with the share that is kept for logs


def _options(chosen: Settings, *, read_only: bool) -> StoreOptions:
    return StoreOptions(
        read_only=read_only,
        get_timeout_s=chosen.get_timeout_s,
        io_timeout_s=chosen.io_timeout_s,
        idle_ttl_s=chosen.idle_ttl_s or None,
        commit_interval_s=chosen.commit_interval_s,
        watermarks=Watermarks(high=chosen.high_watermark, low=chosen.low_watermark),
        rank=RANKS[chosen.rank],
        quotas=chosen.quotas,
    )
