"""Every tier keeps the contract; the disk tier in each way of doing I/O."""

from contextlib import closing

import pytest

from kvlake.testing.blocks import zeros_of
from kvlake.testing.conformance import MIB, TierConformance
from kvlake.tiers.disk import Device, DiskTier
from kvlake.tiers.disk.recover import DiskOptions
from kvlake.tiers.memory import MemoryTier
from kvlake.tiers.null import NullTier
from kvlake.tiers.tier import Durable, Trimmable, Viewable

OPTIONS = DiskOptions(capacity_bytes=16 * MIB, reserve_bytes=0)


class TestMemoryTier(TierConformance):
    @pytest.fixture(params=["at first use", "prefault", "shared"])
    def tier(self, request, tmp_path):
        shared = tmp_path / "arena" if request.param == "shared" else None
        with closing(MemoryTier(8 * MIB, prefault=request.param == "prefault", shared=shared)) as tier:
            yield tier

    def test_it_can_trim_and_be_looked_into(self, tier):
        assert isinstance(tier, Trimmable)
        assert isinstance(tier, Viewable)


class TestNullTier(TierConformance):
    payload = staticmethod(zeros_of)

    @pytest.fixture
    def tier(self):
        with closing(NullTier(8 * MIB)) as tier:
            yield tier


class TestDiskTier(TierConformance):
    @pytest.fixture(params=["direct-aio", "direct-threads", "buffered-threads"])
    def tier(self, request, tmp_path, without_aio):
        if request.param == "direct-threads":
            without_aio()
        device = Device(tmp_path, direct=request.param != "buffered-threads")
        if device.io_mode != request.param:
            pytest.skip(f"this disk does {device.io_mode}: {device.why_not_direct}")
        with closing(DiskTier.open(tmp_path, OPTIONS, device=device)) as tier:
            yield tier
            assert tier.io_mode == request.param

    def test_it_is_durable(self, tier):
        assert isinstance(tier, Durable)
