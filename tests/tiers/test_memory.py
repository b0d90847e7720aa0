"""The memory tier: what the conformance suite does not say, its arena."""

import ctypes
import os
from pathlib import Path

import pytest

from kvlake.base.errors import CapacityError
from kvlake.testing.blocks import block_of, fetch, key_of
from kvlake.testing.clock import FakeClock
from kvlake.tiers.memory import MemoryTier
from kvlake.tiers.tier import PAGE_BYTES, Get, Put

MIB = 1 << 20


def resident_pages(tier):
    """How many pages of the arena the kernel has in memory: mincore(2)."""
    count = tier.usage().capacity_bytes // PAGE_BYTES
    found = (ctypes.c_ubyte * count)()
    start = ctypes.addressof(ctypes.c_char.from_buffer(tier._bytes))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(count * PAGE_BYTES), found) == 0
    return sum(page & 1 for page in found)


@pytest.fixture
def tier():
    tier = MemoryTier(8 * MIB)
    yield tier
    tier.close()


class TestTrim:
    def test_pages_are_taken_at_first_use_and_given_back(self, tier):
        assert resident_pages(tier) == 0
        tier.put([block_of(number, 256 * 1024) for number in range(16)])
        assert resident_pages(tier) == 1024
        tier.remove([key_of(number) for number in range(16) if number != 5])
        assert resident_pages(tier) == 1024
        tier.trim()
        assert resident_pages(tier) == 64
        assert fetch(tier, key_of(5), 256 * 1024) == (Get.HIT, block_of(5, 256 * 1024).data)
        assert tier.put([block_of(1, 3 * MIB)]) == [Put.STORED]
        assert fetch(tier, key_of(1), 3 * MIB) == (Get.HIT, block_of(1, 3 * MIB).data)

    def test_a_prefaulted_arena_is_kept(self):
        tier = MemoryTier(4 * MIB, prefault=True)
        assert resident_pages(tier) == 1024
        tier.trim()
        assert resident_pages(tier) == 1024
        tier.close()

    def test_a_shared_arena_gives_back_the_room_in_its_file(self, arena):
        tier = MemoryTier(4 * MIB, shared=arena)
        tier.put([block_of(1, 2 * MIB)])
        tier.remove([key_of(1)])
        tier.put([block_of(2, PAGE_BYTES)])
        tier.trim()
        assert arena.stat().st_blocks * 512 <= 2 * PAGE_BYTES
        assert fetch(tier, key_of(2), PAGE_BYTES)[1] == block_of(2, PAGE_BYTES).data
        tier.close()


@pytest.fixture(params=["/dev/shm", "."])
def arena(request, tmp_path):
    folder = tmp_path / request.param
    if not os.access(folder, os.W_OK):
        pytest.skip(f"no {request.param} here")
    path = folder / f"kvlake-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


class TestShared:
    def test_another_mapping_sees_the_same_bytes(self, arena):
        tier = MemoryTier(MIB, shared=arena)
        block = block_of(1, 5000)
        tier.put([block])
        assert block.data in arena.read_bytes()
        assert arena.stat().st_mode & 0o777 == 0o600
        tier.close()
        assert not arena.exists()

    def test_a_file_of_somebody_else_is_not_taken(self, arena):
        arena.write_text("mine")
        with pytest.raises(FileExistsError):
            MemoryTier(MIB, shared=arena)
        assert arena.read_text() == "mine"


class TestView:
    def test_it_is_the_block_in_place(self, tier):
        block = block_of(1, 5000)
        tier.put([block])
        assert tier.view(block.key) == block.data
        assert tier.view(key_of(2)) is None

    def test_closing_under_a_view_does_no_harm(self):
        tier = MemoryTier(MIB)
        block = block_of(1, 5000)
        tier.put([block])
        view = tier.view(block.key)
        tier.close()
        assert view == block.data


def test_wiped_bytes_are_gone(tier):
    block = block_of(1, 5000)
    tier.put([block])
    view = tier.view(block.key)
    tier.remove([block.key], wipe=True)
    assert bytes(view) == bytes(5000)


def test_less_than_a_page_is_no_tier():
    with pytest.raises(CapacityError, match="at least 4096"):
        MemoryTier(PAGE_BYTES - 1)


def test_a_capacity_is_rounded_down_to_pages():
    tier = MemoryTier(3 * PAGE_BYTES + 100, clock=FakeClock(wall_s=77))
    assert tier.usage().capacity_bytes == 3 * PAGE_BYTES
    tier.put([block_of(1, PAGE_BYTES + 1)])
    assert next(tier.records()).created_s == 77
    assert repr(tier) == "<MemoryTier 1 blocks, 8.00 KiB of 12.0 KiB>"
    tier.close()


class TestCheck:
    def test_a_wrong_account_is_found_and_fixed(self, tier):
        tier.put([block_of(number, 5000) for number in range(4)])
        tier._free.allocate(3)
        assert "free pages" in tier.check().problems[0].what
        assert tier.check(fix=True).ok
        assert tier.check().problems == ()

    def test_overlapping_blocks_are_dropped(self, tier):
        tier.put([block_of(number, 5000) for number in range(4)])
        page, _ = tier._held[key_of(0)]
        tier._held[key_of(1)] = (page, tier._held[key_of(1)][1])
        report = tier.check(fix=True)
        assert any("overlap" in problem.what for problem in report.problems)
        assert tier.check().problems == ()
        assert {record.key for record in tier.records()} == {key_of(2), key_of(3)}


def test_the_path_may_be_text(tmp_path):
    tier = MemoryTier(MIB, shared=str(tmp_path / "arena"))
    assert Path(tmp_path / "arena").stat().st_size == MIB
    tier.close()
