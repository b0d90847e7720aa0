"""What the figures were measured on."""

import os
import platform
import shutil
import subprocess
from pathlib import Path


def machine_facts(directory: Path) -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system(directory),
        "fio": _fio(),
        "load_before": load(),
    }


def load() -> float:
    """Processes that wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def file_system(directory: Path) -> str:
    """Type and device of the mount that holds `directory`."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    here = str(directory.resolve())
    holding = [mount for mount in mounts if here == mount[1] or here.startswith(mount[1].rstrip("/") + "/")]
    device, _, kind = max(holding, key=lambda mount: len(mount[1]))[:3]
    return f"{kind} on {device}"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fio() -> str:
    if shutil.which("fio") is None:
        return "not installed"
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=False).stdout.strip()
