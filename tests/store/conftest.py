"""A store over a little memory and a disk that can be made to fail, chains of blocks, and an audit of everything."""

import time
from collections import Counter
from pathlib import Path

import pytest

from kvlake.keys.block import NO_PARENT
from kvlake.store.core import StoreOptions
from kvlake.store.session import State
from kvlake.store.sessionlog import SessionLog
from kvlake.store.store import Store
from kvlake.testing.blocks import block_of, payload_of
from kvlake.testing.faults import Faults, FaultyDevice
from kvlake.tiers.disk import DiskTier
from kvlake.tiers.disk.recover import DiskOptions
from kvlake.tiers.memory import MemoryTier
from kvlake.tiers.tier import PAGE_BYTES, Get, pages_of

MEMORY_BYTES = 64 * PAGE_BYTES
DISK_BYTES = 16 << 20


class SickTier:
    """Another tier that fails as `faults` say, and is not to be read in place."""

    def __init__(self, tier):
        self.tier, self.faults, self.asked = tier, Faults(), Counter()

    def __getattr__(self, name):
        if name == "view":
            raise AttributeError(name)
        return getattr(self.tier, name)

    def put(self, blocks):
        self.asked["put"] += 1
        self.faults.raise_for("put", keys=[block.key for block in blocks])
        return self.tier.put(blocks)

    def get(self, reads):
        self.asked["get"] += 1
        self.asked["blocks_read"] += len(reads)
        self.faults.raise_for("get", keys=[read.key for read in reads])
        return self.tier.get(reads)

    def remove(self, keys, *, wipe=False):
        self.faults.raise_for("remove", keys=keys)
        return self.tier.remove(keys, wipe=wipe)

    def sync(self):
        self.faults.raise_for("sync")
        self.tier.sync()

    def close(self):
        self.faults.raise_for("close")
        self.tier.close()


def make_store(path, *, memory_bytes=MEMORY_BYTES, disk_bytes=DISK_BYTES, clock=None, device=None, **options):
    """A store; `store.disk` is its sick disk tier, `store.device` the device below that, by default a faulty one."""
    tiers = [MemoryTier(memory_bytes, clock=clock)] if memory_bytes else []
    session_log = None
    disk = None
    if disk_bytes:
        Path(path).mkdir(exist_ok=True)
        device = device or FaultyDevice(Path(path), direct=False)
        disk_options = DiskOptions(capacity_bytes=disk_bytes, reserve_bytes=0)
        disk = SickTier(DiskTier.open(path, disk_options, device=device, clock=clock))
        session_log = SessionLog(device, disk_options.log_bytes // 2)
        tiers.append(disk)
    options = {"commit_interval_s": 0.02, **options}
    store = Store(tiers, StoreOptions(**options), session_log=session_log, clock=clock)
    store.disk, store.device = disk, device
    return store


@pytest.fixture
def stores(tmp_path):
    """(folder, settings) -> a store, healed, audited and closed in the end."""
    opened = []

    def make(folder="kv", **settings):
        opened.append(make_store(tmp_path / folder, **settings))
        return opened[-1]

    yield make
    for store in opened:
        if store.disk is not None:
            store.disk.faults.clear()
            store.device.faults.clear()
        if not store._closed:
            settle(store)
            assert audit(store) == []
        store.close()


def chain(first, count, nbytes=PAGE_BYTES, after=None, **fields):
    """Blocks number `first` and on, each the child of the one before; the first is the child of `after`."""
    blocks = []
    for number in range(first, first + count):
        parent = blocks[-1] if blocks else after
        depth = parent.depth + 1 if parent is not None else 0
        size = nbytes(number) if callable(nbytes) else nbytes
        block = block_of(number, size, parent.key if parent is not None else NO_PARENT, depth)
        blocks.append(block._replace(**fields))
    return blocks


def keys_of(blocks):
    return [block.key for block in blocks]


def fetch(store, blocks, **arguments):
    """Outcomes of a get of `blocks`; every HIT must be byte for byte what was put."""
    buffers = [bytearray(len(block.data)) for block in blocks]
    outcomes = store.get(keys_of(blocks), buffers, **arguments)
    for block, buffer, outcome in zip(blocks, buffers, outcomes, strict=True):
        assert outcome is not Get.HIT or bytes(buffer) == payload_of(block.key, len(block.data))
    return outcomes


def wait_until(condition, timeout_s=10.0):
    """Poll until `condition()` holds; its last value is returned."""
    until = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < until:
        time.sleep(0.002)
    return value


def held_by(store, name, blocks):
    """How many of `blocks` the tier of that name really holds."""
    tier = next(tier for tier in store.tiers() if tier.name == name)
    held = {record.key for record in tier.records()}
    return sum(block.key in held for block in blocks)


def settle(store):
    """Wait for all calls and moves to end."""
    core = store._core
    store._background.drain(10)
    calls_ended = wait_until(lambda: not any(guard._under_way or guard._late for guard in core.tiers))
    assert calls_ended
    assert wait_until(lambda: not (core.entering or core.leaving or any(entry.busy for entry in core.index)))


def audit(store):
    """Everything that is not as it must be in a store at rest."""
    core = store._core
    entries = core.index.entries
    faults = [f"{problem}" for report in store.check() for problem in report.problems]
    with core.lock:
        children = Counter(entry.parent for entry in core.index if entry.depth)
        tenants = Counter()
        for entry in core.index:
            tenants[entry.tenant] += entry.nbytes
            if entry.depth and (entry.parent not in entries or entries[entry.parent].depth != entry.depth - 1):
                faults.append(f"{entry} has no parent")
            if not entry.held or entry.busy or entry.pins or entry.children != children[entry.key]:
                faults.append(f"{entry}: busy {entry.busy}, pins {entry.pins}, children {entry.children}")
        faults += [f"tenant bytes {core.index.tenant_bytes}, not {tenants}"] * (+core.index.tenant_bytes != tenants)
        expiring = sum(bool(entry.expires_s) for entry in core.index)
        faults += [f"{core.index.expiring} expiring, not {expiring}"] * (core.index.expiring != expiring)
        faults += [f"unsettled: {core.entering} {core.leaving}"] * bool(core.entering or core.leaving)
        slowest = 1 << len(core.tiers) - 1
        faults += [f"stuck: {key}" for key in core.stuck if key not in entries or entries[key].held & slowest]
        return faults + _sessions(core) + _tiers(core)


def _sessions(core):
    table = core.sessions
    holders, active, ended = Counter(), Counter(), Counter()
    for state in table.by_id.values():
        holders.update(state.keys)
        active.update(state.keys if state.state is State.ACTIVE else ())
        ended.update(state.keys if state.state is State.ENDED else ())
    counted = (table.holders, table.active, table.ended) == (holders, active, ended)
    return [] if counted else ["the sessions' counts have drifted"]


def _tiers(core):
    faults = []
    for position, guard in enumerate(core.tiers):
        records = list(guard.tier.records())
        usage = guard.usage()
        indexed = {entry.key: entry.nbytes for entry in core.index if entry.held >> position & 1}
        if indexed != {record.key: record.nbytes for record in records}:
            faults.append(f"the {guard.name} tier does not hold what the index says")
        payload = sum(pages_of(record.nbytes) for record in records) * PAGE_BYTES
        spare = PAGE_BYTES * len(records) if guard.name == "disk" else 0
        if not payload <= usage.used_bytes <= min(usage.capacity_bytes, payload + spare):
            faults.append(f"{guard.name}: {usage}, recounted {payload}")
    return faults


class Kit:
    """The functions above, for tests that get them as a fixture."""

    audit = staticmethod(audit)
    chain = staticmethod(chain)
    fetch = staticmethod(fetch)
    held_by = staticmethod(held_by)
    keys_of = staticmethod(keys_of)
    make_store = staticmethod(make_store)
    settle = staticmethod(settle)
    wait_until = staticmethod(wait_until)
    SickTier = SickTier


@pytest.fixture(scope="session")
def kit():
    return Kit


@pytest.fixture
def talk(kit):
    """(store, session id, first block, count) -> its blocks, put and said to be its turn."""

    def talk(store, name, first, count, after=(), **arguments):
        blocks = [*after, *kit.chain(first, count, after=after[-1] if after else None, **arguments)]
        store.put(blocks)
        store.session(name).turn(kit.keys_of(blocks), 10 * len(blocks))
        return blocks

    return talk
