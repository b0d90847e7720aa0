"""A directory with a disk tier in it that can be opened again and is closed in the end; a disk that fails when told."""

import errno

import pytest

from kvlake.testing.blocks import accounting_faults
from kvlake.testing.faults import FaultyDevice
from kvlake.tiers.disk import Device, DiskTier
from kvlake.tiers.disk import device as device_module
from kvlake.tiers.disk.recover import DiskOptions

CAPACITY_BYTES = 16 << 20


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def open_disk(root):
    """(device or None, options...) -> an open disk tier."""
    tiers = []

    def open_disk(device=None, **options):
        options = {"capacity_bytes": CAPACITY_BYTES, "reserve_bytes": 0, **options}
        tiers.append(DiskTier.open(root, DiskOptions(**options), device=device or Device(root, direct=False)))
        return tiers[-1]

    open_disk.tiers = tiers
    yield open_disk
    for tier in tiers:
        tier.close()


@pytest.fixture
def without_aio(monkeypatch):
    """Call it, and the kernel has no aio from then on."""

    def no_aio(depth):
        raise OSError(errno.ENOSYS, "no kernel aio here")

    return lambda: monkeypatch.setattr(device_module, "AioQueue", no_aio)


@pytest.fixture(params=["direct-aio", "direct-threads", "buffered-threads"])
def device(request, root, without_aio):
    """A disk in each way of doing I/O."""
    if request.param == "direct-threads":
        without_aio()
    device = FaultyDevice(root, direct=request.param != "buffered-threads")
    if device.io_mode != request.param:
        pytest.skip(f"this disk does {device.io_mode}: {device.why_not_direct}")
    return device


@pytest.fixture
def faults(device):
    return device.faults


@pytest.fixture
def tier(open_disk, device):
    """A disk tier on it, whose books must be right in the end."""
    yield open_disk(device)
    device.faults.clear()
    assert accounting_faults(open_disk.tiers[-1]) == []
