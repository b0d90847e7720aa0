"""The examples run as they are shown, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlake.base.errors import ConfigError
from kvlake.cli import smollm

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONVERTED = ROOT / "build" / "models"


def run(name, environment):
    file = next(file for file in EXAMPLES if file.name.startswith(name))
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, cwd=ROOT, env=os.environ | environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_here():
    assert [file.name[:2] for file in EXAMPLES] == ["01", "02"]


def test_sessions(tmp_path):
    output = run("01", {"TMPDIR": str(tmp_path)})
    assert "bob: 4 of 7 blocks were there, 3 computed" in output
    assert "alice: 8 of 11 blocks were there, 3 computed" in output
    # What bob shares stays in memory: he is still active.
    assert "idle: {'memory': 1048576, 'disk': 2883584}" in output
    assert "resumed: 11 blocks in memory: <Session 'alice' active, 706 tokens in 11/11 blocks>" in output
    assert "get: {'HIT'}" in output
    assert "left: ['bob']" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_transformers(tmp_path):
    try:
        smollm.find_weights()
    except ConfigError as missing:
        pytest.skip(str(missing))
    # The converted model is shared with the other tests: a link stands where the example looks for it.
    CONVERTED.mkdir(parents=True, exist_ok=True)
    (tmp_path / "kvlake").symlink_to(CONVERTED)
    output = run("02", {"XDG_CACHE_HOME": str(tmp_path)})
    assert output.count("from none") == 1
    assert "from device" in output
    assert "from store" in output
    assert "idle: 0 bytes on the device" in output
