"""The fault injectors do what they are told, and nothing else."""

import errno
import threading
import time

import pytest

from kvlake.testing.blocks import block_of, fetch, key_of, traces_of, wrong_keys
from kvlake.testing.clock import FakeClock
from kvlake.testing.conformance import TierConformance
from kvlake.testing.faults import FOREVER, Fault, FaultyDurableTier, FaultyTier
from kvlake.tiers.memory import MemoryTier
from kvlake.tiers.null import NullTier
from kvlake.tiers.tier import Durable, Get, Put, Tier

MIB = 1 << 20


class TestFaultyTierWithoutFaults(TierConformance):
    @pytest.fixture
    def tier(self):
        tier = FaultyTier(MemoryTier(8 * MIB))
        yield tier
        tier.close()


@pytest.fixture
def tier():
    tier = FaultyTier(MemoryTier(8 * MIB))
    tier.put([block_of(number, 5000) for number in range(4)])
    yield tier
    tier.faults.clear()
    tier.close()


@pytest.mark.parametrize("call", [
    lambda tier: tier.put([block_of(9, 1)]),
    lambda tier: tier.get([]),
    lambda tier: tier.remove([]),
    lambda tier: tier.records(),
    lambda tier: tier.check(),
    lambda tier: tier.trim(),
    lambda tier: tier.view(key_of(1)),
], ids=["put", "get", "remove", "records", "check", "trim", "view"])  # fmt: skip
def test_any_method_can_raise(tier, call, request):
    tier.faults.add(Fault(request.node.callspec.id, errno=errno.EIO, skip=1))
    call(tier)
    with pytest.raises(OSError, match="injected") as caught:
        call(tier)
    assert caught.value.errno == errno.EIO
    call(tier)
    assert tier.faults.struck.total() == 1


def test_outcomes_can_be_dictated_for_one_block(tier):
    tier.faults.add(Fault("get", key=key_of(2), outcome=Get.CORRUPT, times=FOREVER))
    assert wrong_keys(tier) == {key_of(2): "corrupt"}
    tier.faults.add(Fault("put", key=key_of(7), outcome=Put.ERROR))
    assert tier.put([block_of(7, 10), block_of(8, 10)]) == [Put.ERROR, Put.STORED]
    assert tier.put([block_of(7, 10), block_of(8, 10)]) == [Put.STORED, Put.PRESENT]


def test_outcomes_can_be_dictated_for_all(tier):
    tier.faults.add(Fault("put", outcome=Put.FULL), Fault("get", outcome=Get.ERROR))
    assert tier.put([block_of(7, 10)]) == [Put.FULL]
    assert fetch(tier, key_of(1), 5000)[0] is Get.ERROR
    assert fetch(tier, key_of(1), 5000)[0] is Get.HIT


def test_delays_and_hangs_end(tier):
    tier.faults.add(Fault("get", delay_s=0.05), Fault("get", delay_s=FOREVER))
    start = time.monotonic()
    assert fetch(tier, key_of(1), 5000)[0] is Get.HIT
    assert time.monotonic() - start >= 0.05
    thread = threading.Thread(target=fetch, args=(tier, key_of(1), 5000))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    tier.faults.clear()
    thread.join(10)
    assert not thread.is_alive()


def test_only_a_durable_tier_is_wrapped_as_one():
    plain: Tier = FaultyTier(NullTier(MIB))
    durable: Tier = FaultyDurableTier(NullTier(MIB), [Fault("sync", errno=errno.EIO)])
    assert not isinstance(plain, Durable)
    assert isinstance(durable, Durable)
    with pytest.raises(OSError, match="injected"):
        durable.sync()
    durable.sync()
    assert (plain.name, plain.view(key_of(1)), plain.counters) == ("null", None, {})
    plain.trim()


def test_a_fake_clock_stands_still_until_told():
    clock = FakeClock(wall_s=100, monotonic_s=7)
    assert (clock.wall(), clock.monotonic(), clock.wall()) == (100, 7, 100)
    clock.advance(1.5)
    assert (clock.wall(), clock.monotonic()) == (101.5, 8.5)
    clock.set_wall(50)
    assert (clock.wall(), clock.monotonic()) == (50, 8.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    assert "wall 50" in repr(clock)


def test_blocks_that_prove_themselves():
    assert block_of(1, 5000) == block_of(1, 5000)
    assert block_of(1, 5000).data != block_of(2, 5000).data
    data = block_of(1, 5000).data
    assert traces_of(data, b"junk" + data[640:1280]) == 10
    tier = MemoryTier(MIB)
    tier.put([block_of(1, 100)._replace(data=bytes(100))])
    assert wrong_keys(tier) == {key_of(1): "came back with other bytes"}
    assert wrong_keys(tier, [key_of(5)]) == {key_of(5): "is not held"}
    tier.close()
