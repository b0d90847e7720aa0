"""What the figures were measured on."""

import os
import platform
import sys
from pathlib import Path

import kvlake


def machine(store: Path) -> dict[str, object]:
    """Processor, cores that this process may use, memory, kernel, and the file system under `store`."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        # Others on the machine make every figure larger; whoever reads the figures should know of them.
        "load_average": os.getloadavg()[1],
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(store.resolve()),
    }


def versions() -> dict[str, str]:
    """What ran, but for what only the worker knows."""
    return {"kvlake": kvlake.__version__, "python": ".".join(map(str, sys.version_info[:3]))}


def _field(file: str, name: str) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _file_system(path: Path) -> str:
    """Type of the mount that holds `path`: the longest mount point above it."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    # /proc/self/mounts has a line per mount: device, where, kind, options.
    above = [(len(at), kind) for _, at, kind, *_ in mounts if path.is_relative_to(at)]
    return max(above)[1] if above else "unknown"
