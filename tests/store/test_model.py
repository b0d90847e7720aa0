"""A store against a plain dict, under random use, random faults and restarts.

The dict is an upper bound: a store may forget what it was given, but never have what it was not, nor other bytes. What
it forgets without a fault, and without having to make room, is an error too.
"""

import errno
import itertools
import shutil

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvlake.testing.clock import FakeClock
from kvlake.testing.faults import FOREVER, Fault
from kvlake.tiers.tier import PAGE_BYTES, Get, Put

SIZES = st.sampled_from([1, 100, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES, 40_000])
SESSIONS = st.sampled_from(["s0", "s1", "s2", "s3"])
FAULTS = st.sampled_from([
    ("put", errno.EIO), ("put", errno.ENOSPC), ("get", errno.EIO), ("sync", errno.EIO), ("remove", errno.EIO)
])  # fmt: skip


class StoreMachine(RuleBasedStateMachine):
    """One store, its blocks by key, and the chains that they lie in."""

    def __init__(self, folder, kit):
        super().__init__()
        self.folder, self.kit = folder, kit
        shutil.rmtree(folder, ignore_errors=True)
        self.unused = 0
        self.clock = FakeClock()
        self.chains = []
        """Every chain ever put, as far as it was ever stored."""
        self.model = {}
        """Blocks that the store may have."""
        self.erased = set()
        """Blocks whose owner was told that their bytes are gone."""
        self.pins = []
        self.sick = self.spoiled = False

    @initialize(disk_mib=st.sampled_from([16, 32]))
    def open(self, disk_mib):
        self.disk_bytes = disk_mib << 20
        self._open()

    def _open(self):
        limits = {"disk_bytes": self.disk_bytes, "idle_ttl_s": None, "io_timeout_s": 20.0}
        self.store = self.kit.make_store(self.folder, clock=self.clock, **limits)

    @rule(data=st.data(), count=st.integers(1, 8), size=SIZES)
    def put(self, data, count, size):
        after = self._prefix(data)
        fresh = self.kit.chain(self._numbers(count), count, size, after=after[-1] if after else None)
        self._put([*after, *fresh])

    @rule(data=st.data())
    def put_again(self, data):
        self._put(self._chain(data))

    @rule(count=st.integers(30, 90))
    def put_more_than_memory(self, count):
        self._put(self.kit.chain(self._numbers(count), count, 2 * PAGE_BYTES))

    @rule()
    def put_orphans(self):
        orphans = self.kit.chain(self._numbers(4), 4)[1:]
        assert self.store.put(orphans) == [Put.REFUSED] * 3

    def _put(self, blocks):
        present = self.store.match(self.kit.keys_of(blocks))
        outcomes = self.store.put(blocks)
        taken = [outcome in (Put.STORED, Put.PRESENT) for outcome in outcomes]
        assert taken == sorted(taken, reverse=True), "what is taken of a chain is its beginning"
        for block, outcome in zip(blocks, outcomes, strict=True):
            assert outcome is not Put.PRESENT or block.key in self.model
            if outcome is Put.STORED:
                self.model[block.key] = block
                self.erased.discard(block.key)
        self.chains.append(blocks)
        if not self.sick and not self.pins:
            over = self.store._core.sessions.is_over
            assert all(taken) or any(over(block.key) for block in blocks)
        self._forget(kept=[block for block in blocks[:present] if outcomes[0] is Put.PRESENT])

    @rule(data=st.data())
    def get(self, data):
        chain = self._chain(data)
        expected = [block.key in self.store._core.index for block in chain]
        outcomes = self.kit.fetch(self.store, chain)
        for outcome, present in zip(outcomes, expected, strict=True):
            assert present or outcome is Get.MISS
            assert not present or self.sick or self.spoiled or outcome is Get.HIT
        self._forget()

    @rule(data=st.data())
    def match(self, data):
        keys = self.kit.keys_of(self._chain(data))
        bound = next((at for at, key in enumerate(keys) if key not in self.model), len(keys))
        assert self.store.match(keys) == self.store.match_scan(keys) <= bound

    @rule(data=st.data())
    def evict(self, data):
        chain = self._chain(data)
        self.store.evict(self.kit.keys_of(chain[data.draw(st.integers(0, len(chain))) :]))
        self._forget()

    @rule(data=st.data())
    def prefetch(self, data):
        keys = self.kit.keys_of(self._chain(data))
        assert self.store.prefetch(keys).result(30) <= len(keys)

    @rule(data=st.data())
    def pin(self, data):
        keys = self.kit.keys_of(self._chain(data))
        context = self.store.pin(keys)
        count = context.__enter__()
        held = [key for key in keys if key in self.store._core.index]
        assert len(held) == count
        self.pins.append((context, held))

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self):
        context, held = self.pins.pop()
        assert self.spoiled or self.sick or all(key in self.store._core.index for key in held)
        context.__exit__(None, None, None)

    @rule(name=SESSIONS, data=st.data())
    def turn(self, name, data):
        chain = self._chain(data)
        self.store.session(name).turn(self.kit.keys_of(chain), 10 * len(chain))

    @rule(name=SESSIONS)
    def idle(self, name):
        session = self.store.session(name)
        session.idle()
        held = session.describe().bytes_by_tier
        active = self.store._core.sessions.active
        keys = self.store._core.sessions.find(name).keys
        if not self.sick and not self.spoiled and not self.pins and not any(key in active for key in keys):
            assert held["memory"] == 0

    @rule(name=SESSIONS)
    def resume(self, name):
        session = self.store.session(name)
        assert session.resume().result(30) <= session.describe().blocks

    @rule(name=SESSIONS, other=SESSIONS)
    def fork(self, name, other):
        session = self.store.session(name)
        if other not in self.store._core.sessions.by_id:
            assert session.fork(other).describe().blocks == session.describe().blocks

    @rule(name=SESSIONS, seconds=st.integers(0, 50))
    def pin_session(self, name, seconds):
        self.store.session(name).pin(seconds)

    @rule(name=SESSIONS, end=st.booleans(), tool=st.booleans())
    def hint(self, name, end, tool):
        self.store.session(name).hint(end=end, pending_tool_call=tool)

    @rule(name=SESSIONS)
    def delete(self, name):
        session = self.store.session(name)
        table = self.store._core.sessions
        mine = set(table.only_holder(table.find(name))) & self.store._core.index.entries.keys()
        gone = session.delete()
        left = mine & self.store._core.index.entries.keys()
        assert gone.wiped or self.sick or self.spoiled
        assert not left or not gone.wiped
        self.erased |= mine if gone.wiped else set()
        self.pins = [(context, []) for context, _ in self.pins]
        self._forget(but=mine)

    @rule()
    def flush(self):
        assert self.store.flush(30) or self.sick or self.spoiled

    @rule(seconds=st.floats(0.1, 30))
    def tick(self, seconds):
        self.clock.advance(seconds)

    @precondition(lambda self: not self.sick)
    @rule(fault=FAULTS, times=st.sampled_from([1, 4, FOREVER]))
    def fall_sick(self, fault, times):
        self.store.disk.faults.add(Fault(fault[0], errno=fault[1], times=times))
        self.sick = True

    @precondition(lambda self: self.sick)
    @rule()
    def heal(self):
        self.kit.settle(self.store)
        self.store.disk.faults.clear()
        self.clock.advance(100)
        self.store.flush(30)
        self.store.check(fix=True)
        self.sick = False
        assert self.store.flush(30) or self.spoiled
        self._forget_freely()

    @precondition(lambda self: not self.sick)
    @rule()
    def put_out_of_time(self):
        guard = self.store._core.tiers[1]
        self.kit.settle(self.store)
        self.store.disk.faults.add(Fault("put", delay_s=FOREVER, times=FOREVER))
        before, guard._timeout_s, self.sick = guard._timeout_s, 0.02, True
        self._put(self.kit.chain(self._numbers(80), 80, PAGE_BYTES))
        self.store._background.drain(30)
        self.store.disk.faults.clear()
        guard._timeout_s = before
        self.heal()

    @precondition(lambda self: not self.sick)
    @rule(data=st.data())
    def get_out_of_time(self, data):
        self.store.disk.faults.add(Fault("get", delay_s=0.03))
        outcomes = self.kit.fetch(self.store, self._chain(data), timeout_s=0.01)
        assert set(outcomes) <= {Get.HIT, Get.MISS, Get.TIMEOUT, Get.CORRUPT}
        self.kit.settle(self.store)
        self.store.disk.faults.clear()
        self._forget()

    @precondition(lambda self: not self.sick)
    @rule(choice=st.integers(0, 9999))
    def flip_a_byte(self, choice):
        # What is drawn must not depend on the store, whose threads make it another one every time.
        self.spoiled = True
        records = sorted(self.store.disk.records())
        if not records:
            return
        payload = self.model[records[choice % len(records)].key].data
        for segment in self.folder.glob("*.seg"):
            with segment.open("r+b") as file:
                at = file.read().find(payload)
                if at >= 0 and len(payload) > 100:
                    file.seek(at + len(payload) // 2)
                    file.write(bytes([payload[len(payload) // 2] ^ 1]))

    @precondition(lambda self: self.spoiled and not self.sick)
    @rule()
    def check_and_fix(self):
        self.store.flush(30)
        self.store.check(fix=True)
        self._forget_freely()
        assert self.store.flush(30)

    @precondition(lambda self: not self.pins and not self.sick)
    @rule(lose_journal=st.booleans())
    def reopen(self, lose_journal):
        assert self.store.flush(30) or self.spoiled
        before = set(self.store._core.index.entries)
        self.store.close()
        if lose_journal:
            # What was removed but not overwritten may be found again: evicted, not deleted.
            (self.folder / "blocks.log").unlink()
        self._open()
        after = set(self.store._core.index.entries)
        assert before <= after or lose_journal or self.spoiled
        assert lose_journal or after <= before
        assert not after & self.erased
        for block in itertools.chain(*self.chains):
            if block.key in after:
                self.model.setdefault(block.key, block)
        self._forget()

    @invariant()
    def is_sound(self):
        if not hasattr(self, "store"):
            return
        usage = self.store.usage()["memory"]
        assert usage.used_bytes <= usage.capacity_bytes
        present = self.store._core.index.entries
        assert set(present) <= set(self.model), "a block that was never put, or was deleted"
        assert all(not entry.depth or entry.parent in present for entry in present.values())
        if not self.sick and not self.spoiled:
            self.kit.settle(self.store)
            faults = self.kit.audit(self.store)
            assert [fault for fault in faults if "pins" not in fault or not self.pins] == []

    def teardown(self):
        if not hasattr(self, "store"):
            return
        self.store.disk.faults.clear()
        self.clock.advance(100)
        self.kit.settle(self.store)
        for context, _ in self.pins:
            context.__exit__(None, None, None)
        self.store.flush(30)
        self.store.check(fix=True)
        assert self.kit.audit(self.store) == []
        self.store.close()

    def _forget(self, kept=(), but=()):
        """What the store no longer has may not come back. Without a fault it gives up only what it was told to, or
        what had to make room.
        """
        present = self.store._core.index.entries
        assert self.sick or self.spoiled or all(block.key in present for block in kept if block.key not in but)
        self.model = {key: block for key, block in self.model.items() if key in present}

    def _forget_freely(self):
        self.spoiled = False
        self.pins = [(context, []) for context, _ in self.pins]
        self._forget()

    def _chain(self, data):
        """A chain that was put at some time, or none."""
        return self.chains[-data.draw(st.integers(1, min(len(self.chains), 12)))] if self.chains else []

    def _prefix(self, data):
        chain = self._chain(data)
        return chain[: data.draw(st.integers(0, len(chain)))]

    def _numbers(self, count):
        """The first of `count` numbers that no block has yet."""
        first = self.unused
        self.unused += count
        return first


@pytest.mark.slow
def test_a_store_is_its_model(tmp_path, kit):
    run_state_machine_as_test(
        lambda: StoreMachine(tmp_path / "kv", kit),
        settings=settings(
            max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
