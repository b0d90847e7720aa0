"""kvlake starts at once and drops into an engine's environment: a cheap import, few dependencies."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CPU_MS = 150
PACKAGES = 5
HEAVY = {"asyncio", "click", "fastapi", "numpy", "torch", "transformers"}

CPU = "import resource; used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"
MODULES = "import sys; print(*sys.modules)"


def run(code: str) -> str:
    """What `code` prints in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def cpu_ms(code: str) -> float:
    return 1000 * min(float(run(f"{code}; {CPU}")) for _ in range(5))


# The second asks for a lazy export, so that laziness does not hide what the first call pays.
@pytest.mark.parametrize("code", ["import kvlake", "import kvlake; kvlake.open_store"])
def test_the_import_is_cheap(code):
    assert cpu_ms(code) - cpu_ms("pass") <= CPU_MS


@pytest.mark.parametrize("code", ["import kvlake", "import kvlake; kvlake.open_store"])
def test_the_import_pulls_nothing_heavy(code):
    assert not HEAVY & set(run(f"{code}; {MODULES}").split())


def test_the_base_install_is_small():
    with (ROOT / "pyproject.toml").open("rb") as file:
        todo = tomllib.load(file)["project"]["dependencies"]
    needed = set()
    while todo:
        requirement = Requirement(todo.pop())
        package = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and package not in needed:
            needed.add(package)
            todo += metadata.requires(package) or []
    assert len(needed) <= PACKAGES, sorted(needed)
