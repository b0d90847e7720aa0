"""Killed, or without power, at any moment: the store opens, no byte is wrong, and what was synced is there."""

import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from kvlake.testing.blocks import accounting_faults, block_of, key_of, wrong_keys
from kvlake.testing.powerloss import PowerLossDevice
from kvlake.tiers.disk import Device, DiskTier, commits
from kvlake.tiers.disk.recover import DiskOptions
from kvlake.tiers.tier import Put

KILL_ROUNDS, KILL_ROUNDS_PER_STORE = 300, 20
KILL_WITHIN_S = 0.03
POWER_ROUNDS, POWER_ROUNDS_PER_STORE = 320, 8
POWER_OPERATIONS = 60
OPTIONS = DiskOptions(capacity_bytes=16 << 20, reserve_bytes=0)
BLOCKS = 160
KEY_BYTES = 16
OPENED = b"open"
SIZES = (1, 700, 4096, 5000, 20_000, 65_536, 131_072)


@pytest.fixture(autouse=True)
def compacts_often(monkeypatch):
    monkeypatch.setattr(commits, "_SLACK_BYTES", 2048)


@pytest.fixture
def quick_path(tmp_path):
    """A directory in RAM where there is room; the power is cut in the mind only."""
    ram = Path("/dev/shm")
    if not os.access(ram, os.W_OK) or shutil.disk_usage(ram).free < 48 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="kvlake-test-", dir=ram) as path:
        yield Path(path)


def nbytes_of(number):
    return SIZES[number % len(SIZES)]


def work(tier, rng, tell):
    """Put, remove and sync at random, for ever; `tell` what is durable, and what may no longer be, as it becomes so."""
    fresh = []
    while True:
        what = rng.random()
        if what < 0.6:
            blocks = [block_of(n, nbytes_of(n)) for n in rng.sample(range(BLOCKS), rng.randrange(1, 9))]
            outcomes = tier.put(blocks)
            fresh += [block.key for block, outcome in zip(blocks, outcomes, strict=True) if outcome is Put.STORED]
        elif what < 0.8:
            held = sorted(record.key for record in tier.records())
            gone = rng.sample(held, min(len(held), rng.randrange(1, 9)))
            wipe = rng.random() < 0.2
            tell(b"w" if wipe else b"-", gone)
            fresh = [key for key in fresh if key not in gone]
            tier.remove(gone, wipe=wipe)
        else:
            tier.sync()
            tell(b"+", fresh)
            fresh = []


class Promises:
    """Keys that must be there after a crash, and those that may be there with their bytes already wiped."""

    def __init__(self):
        self.keys, self.wiped = set(), set()

    def hear(self, sign, keys):
        self.keys = self.keys | set(keys) if sign == b"+" else self.keys - set(keys)
        self.wiped = self.wiped | set(keys) if sign == b"w" else self.wiped - set(keys)

    def broken(self, tier):
        """What is wrong with the tier after a crash; from then on, all that it has counts as promised."""
        lost = self.keys - {record.key for record in tier.records()}
        wrong = {key: what for key, what in wrong_keys(tier).items() if what != "corrupt" or key not in self.wiped}
        self.keys, self.wiped = {record.key for record in tier.records()}, set()
        return lost, wrong, accounting_faults(tier)


NOTHING = (set(), {}, [])


def child(root, seed, pipe):
    """The process that is going to be killed; never returns."""
    try:
        tier = open_tier(root, direct=seed % 4 == 0)
        os.write(pipe, OPENED)
        work(tier, random.Random(seed), lambda sign, keys: os.write(pipe, b"".join(sign + key for key in keys)))
    finally:
        os._exit(1)


def killed(root, seed, rng):
    """Run a child and kill it, in every third round while it is still opening; what it told until then."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        child(root, seed, writing)
    os.close(writing)
    told = b"" if seed % 3 == 0 else os.read(reading, len(OPENED))
    time.sleep(rng.random() * KILL_WITHIN_S)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with os.fdopen(reading, "rb") as pipe:
        told += pipe.read()
    told = told.removeprefix(OPENED)
    return [(told[at : at + 1], told[at + 1 : at + 1 + KEY_BYTES]) for at in range(0, len(told), 1 + KEY_BYTES)]


def open_tier(root, *, direct=False):
    root.mkdir(exist_ok=True)
    return DiskTier.open(root, OPTIONS, device=Device(root, direct=direct))


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path):
    rng, kept = random.Random(1), 0
    for number in range(KILL_ROUNDS):
        if number % KILL_ROUNDS_PER_STORE == 0:
            root, promises = tmp_path / f"store{number}", Promises()
        for sign, key in killed(root, number, rng):
            promises.hear(sign, [key])
        kept += len(promises.keys)
        with closing(open_tier(root)) as tier:
            assert promises.broken(tier) == NOTHING, f"round {number}"
    assert kept > KILL_ROUNDS, "the children did not live long enough to prove anything"


class PowerLostError(BaseException):
    """Ends the work of a round; nothing in a tier catches it."""


def lose_power(root, into, seed, promises):
    """Work on a device until it has lost its power; `promises` hears what was durable before."""
    rng = random.Random(seed)
    device = PowerLossDevice(root)
    device.lose_power_at(rng.randrange(POWER_OPERATIONS), random.Random(seed), into)

    def tell(sign, keys):
        if device.lost:
            raise PowerLostError
        promises.hear(sign, keys)

    tier = DiskTier.open(root, OPTIONS, device=device)
    with closing(tier), pytest.raises(PowerLostError):
        work(tier, rng, tell)


@pytest.mark.slow
def test_power_lost_at_any_moment(quick_path):
    kept = 0
    for number in range(POWER_ROUNDS):
        if number % POWER_ROUNDS_PER_STORE == 0:
            shutil.rmtree(quick_path)
            root, promises = quick_path / f"store{number}", Promises()
            root.mkdir(parents=True)
        into = quick_path / f"after{number}"
        lose_power(root, into, number, promises)
        kept += len(promises.keys)
        shutil.rmtree(root)
        root = into
        with closing(open_tier(root)) as tier:
            assert promises.broken(tier) == NOTHING, f"round {number}"
    assert kept > POWER_ROUNDS, "the power went too early to prove anything"


def test_the_power_loss_device_forgets_what_was_not_synced(tmp_path):
    """A test of the test: without a sync blocks do get lost, torn journals do come about."""
    lost = torn = 0
    for seed in range(30):
        root, into = tmp_path / f"{seed}", tmp_path / f"{seed}-after"
        root.mkdir()
        device = PowerLossDevice(root)
        with closing(DiskTier.open(root, OPTIONS, device=device)) as tier:
            tier.put([block_of(1, 5000)])
            tier.sync()
            tier.put([block_of(n, 5000) for n in range(2, 20)])
            device.lose_power_at(1 + seed % 2, random.Random(seed), into)
            tier.sync()
        with closing(open_tier(into)) as tier:
            assert wrong_keys(tier, [key_of(1)]) == {}
            lost += tier.usage().blocks < 19
            torn += tier.counters["torn_journal_bytes"] > 0
    assert lost
    assert torn
