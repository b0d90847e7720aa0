"""The contract of a tier as tests: subclass `TierConformance`, give it a `tier`, and run pytest.

    class TestMyTier(TierConformance):
        @pytest.fixture
        def tier(self):
            with closing(MyTier(32 << 20)) as tier:
                yield tier

The tier should be empty and hold between 8 and 64 MiB. One that keeps no payload sets
`payload = staticmethod(zeros_of)`.
"""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvlake.base.errors import BufferSizeError
from kvlake.keys.block import NO_PARENT, BlockKey
from kvlake.testing.blocks import accounting_faults, key_of, payload_of
from kvlake.tiers.tier import PAGE_BYTES, Block, Get, Put, Read, Record, Tier, aligned_buffer

KIB, MIB = 1 << 10, 1 << 20
SIZES = (1, 511, 4095, 4096, 4097, 3 * 4096, 100_000, 1 << 20, (3 << 20) + 1)
FILL_BYTES = 256 * KIB


def _unaligned(data: bytes) -> memoryview:
    view = aligned_buffer(len(data) + 1)[1:]
    view[:] = data
    return view


def _aligned(data: bytes) -> memoryview:
    view = aligned_buffer(len(data))
    view[:] = data
    return view


BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "aligned": _aligned,
    "unaligned": _unaligned,
    "read-only": lambda data: _aligned(data).toreadonly(),
    "of floats": lambda data: _aligned(data).cast("f"),
}
"""Ways in which a caller may hold the bytes of a block."""


class TierConformance:
    """What every tier promises."""

    payload: Callable[[bytes, int], bytes] = staticmethod(payload_of)
    """(key, length) -> the bytes of a block."""

    @pytest.fixture
    def tier(self) -> Iterator[Any]:
        """The tier under test, new and empty; the fixture closes it."""
        pytest.fail("a subclass of TierConformance must override the fixture `tier`")

    @pytest.fixture(autouse=True)
    def audited(self, tier: Tier) -> Iterator[None]:
        """Whatever a test does, the books are right after it."""
        yield
        assert accounting_faults(tier) == []

    def block(self, number: int, nbytes: int) -> Block:
        key = key_of(number)
        return Block(key, NO_PARENT, 0, self.payload(key, nbytes))

    def fill(self, tier: Tier) -> list[Block]:
        """Put equal blocks until one is not taken; returns those that were."""
        stored: list[Block] = []
        for number in range(tier.usage().capacity_bytes // FILL_BYTES + 1):
            block = self.block(number, FILL_BYTES)
            (outcome,) = tier.put([block])
            if outcome is not Put.STORED:
                assert outcome is Put.FULL
                return stored
            stored.append(block)
        raise AssertionError("the tier took in more than its capacity")

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_a_block_comes_back_byte_for_byte(self, tier: Tier, nbytes: int) -> None:
        block = self.block(1, nbytes)
        assert tier.put([block]) == [Put.STORED]
        expect_exact(tier, [block])

    @pytest.mark.parametrize("kind", BUFFERS)
    @pytest.mark.parametrize("nbytes", [2 * PAGE_BYTES, 2 * PAGE_BYTES + 4])
    def test_any_buffer_can_be_put(self, tier: Tier, kind: str, nbytes: int) -> None:
        block = self.block(1, nbytes)
        assert tier.put([block._replace(data=BUFFERS[kind](bytes(block.data)))]) == [Put.STORED]
        expect_exact(tier, [block])

    @pytest.mark.parametrize("kind", ["bytearray", "aligned", "unaligned", "of floats"])
    @pytest.mark.parametrize("nbytes", [2 * PAGE_BYTES, 2 * PAGE_BYTES + 4])
    def test_any_writable_buffer_can_be_filled(self, tier: Tier, kind: str, nbytes: int) -> None:
        block = self.block(1, nbytes)
        tier.put([block])
        into = memoryview(BUFFERS[kind](bytes(nbytes)))
        assert tier.get([Read(block.key, into)]) == [Get.HIT]
        assert into.tobytes() == block.data

    def test_the_caller_may_use_its_buffer_again(self, tier: Tier) -> None:
        block = self.block(1, 2 * PAGE_BYTES)
        buffer = _aligned(bytes(block.data))
        tier.put([block._replace(data=buffer)])
        buffer[:] = bytes(buffer.nbytes)
        expect_exact(tier, [block])

    def test_a_second_put_is_present_and_changes_nothing(self, tier: Tier) -> None:
        block = self.block(1, 5000)
        assert tier.put([block]) == [Put.STORED]
        before = tier.usage()
        assert tier.put([block, self.block(1, 6000)]) == [Put.PRESENT, Put.PRESENT]
        assert tier.usage() == before
        expect_exact(tier, [block])

    def test_a_batch_has_one_outcome_each_in_its_order(self, tier: Tier) -> None:
        blocks = [self.block(number, 1000 * (number + 1)) for number in range(100)]
        blocks.insert(50, blocks[3])
        assert tier.put(blocks) == [Put.STORED] * 50 + [Put.PRESENT] + [Put.STORED] * 50
        random.Random(0).shuffle(blocks)
        wanted = [block if number % 3 else self.block(1000 + number, 64) for number, block in enumerate(blocks)]
        reads = [Read(block.key, memoryview(bytearray(len(block.data)))) for block in wanted]
        assert tier.get(reads) == [Get.HIT if number % 3 else Get.MISS for number in range(len(reads))]
        for number, (block, read) in enumerate(zip(wanted, reads, strict=True)):
            assert number % 3 == 0 or read.into == block.data

    def test_nothing_asked_is_nothing_done(self, tier: Tier) -> None:
        assert (tier.put([]), tier.get([]), tier.remove([])) == ([], [], 0)
        assert list(tier.records()) == []
        assert tier.usage().used_bytes == 0

    def test_a_full_tier_says_so_and_loses_nothing(self, tier: Tier) -> None:
        stored = self.fill(tier)
        assert stored
        expect_exact(tier, stored)
        assert tier.put([self.block(5000, FILL_BYTES), stored[0]]) == [Put.FULL, Put.PRESENT]
        tier.remove([stored.pop(0).key])
        late = self.block(5001, FILL_BYTES)
        assert tier.put([late]) == [Put.STORED]
        expect_exact(tier, [*stored, late])

    def test_a_batch_larger_than_the_room_is_taken_in_part(self, tier: Tier) -> None:
        count = tier.usage().capacity_bytes // FILL_BYTES + 8
        blocks = [self.block(number, FILL_BYTES) for number in range(count)]
        outcomes = tier.put(blocks)
        assert set(outcomes) == {Put.STORED, Put.FULL}
        stored = [block for block, outcome in zip(blocks, outcomes, strict=True) if outcome is Put.STORED]
        assert tier.usage().blocks == len(stored) >= count // 2
        expect_exact(tier, stored)

    @pytest.mark.parametrize("excess_bytes", [1, MIB])
    def test_what_can_never_fit_is_refused(self, tier: Tier, excess_bytes: int) -> None:
        small = self.block(1, 100)
        large = Block(key_of(2), NO_PARENT, 0, bytes(tier.usage().capacity_bytes + excess_bytes))
        assert tier.put([large, small]) == [Put.REFUSED, Put.STORED]
        expect_exact(tier, [small])

    def test_an_empty_block_is_refused(self, tier: Tier) -> None:
        assert tier.put([Block(key_of(1), NO_PARENT, 0, b"")]) == [Put.REFUSED]

    @pytest.mark.parametrize("off", [-1, 1, PAGE_BYTES])
    def test_a_buffer_of_the_wrong_length_is_the_callers_error(self, tier: Tier, off: int) -> None:
        block = self.block(1, 2 * PAGE_BYTES)
        tier.put([block])
        with pytest.raises(BufferSizeError, match=block.key.hex()):
            tier.get([Read(block.key, aligned_buffer(2 * PAGE_BYTES + off))])
        expect_exact(tier, [block])

    def test_removal_frees_what_it_says(self, tier: Tier) -> None:
        blocks = [self.block(number, 3000 * (number + 1)) for number in range(20)]
        tier.put(blocks)
        for block in blocks[::2]:
            before = tier.usage().used_bytes
            assert tier.remove([block.key]) == before - tier.usage().used_bytes > 0
            assert tier.get([Read(block.key, aligned_buffer(len(block.data)))]) == [Get.MISS]
        assert tier.remove([blocks[0].key, key_of(999)]) == 0
        expect_exact(tier, blocks[1::2])
        tier.remove([block.key for block in blocks])
        assert tier.usage().used_bytes == 0

    def test_wiping_removes(self, tier: Tier) -> None:
        blocks = [self.block(number, 5000) for number in range(4)]
        tier.put(blocks)
        assert tier.remove([blocks[0].key, blocks[2].key], wipe=True) > 0
        assert {record.key for record in tier.records()} == {blocks[1].key, blocks[3].key}
        expect_exact(tier, [blocks[1], blocks[3]])
        assert tier.put([blocks[0]]) == [Put.STORED]
        expect_exact(tier, [blocks[0]])

    def test_records_tell_what_was_put(self, tier: Tier) -> None:
        parent, key = key_of(1), key_of(2)
        given = Block(key, parent, 7, self.payload(key, 5000), b"namespac", b"tenant--", expires_s=2**31)
        tier.put([given])
        (record,) = tier.records()
        assert record == Record(key, parent, 7, 5000, b"namespac", b"tenant--", 2**31, record.created_s)

    @pytest.mark.parametrize("seed", range(3))
    def test_any_sequence_leaves_the_books_right(self, tier: Tier, seed: int) -> None:
        rng = random.Random(seed)
        held: dict[BlockKey, Block] = {}
        for _ in range(60):
            blocks = [self.block(rng.randrange(200), rng.choice(SIZES[:7])) for _ in range(rng.randrange(1, 12))]
            for block, outcome in zip(blocks, tier.put(blocks), strict=True):
                assert outcome is not Put.ERROR
                if outcome is Put.STORED:
                    held[block.key] = block
            gone = rng.sample(sorted(held), rng.randrange(len(held) // 3 + 1))
            tier.remove(gone, wipe=rng.random() < 0.1)
            for key in gone:
                del held[key]
            assert {record.key: record.nbytes for record in tier.records()} == {
                key: len(block.data) for key, block in held.items()
            }
            assert accounting_faults(tier) == []
        expect_exact(tier, list(held.values()))

    def test_threads_never_see_wrong_bytes_nor_more_than_the_capacity(self, tier: Tier) -> None:
        crowd = _Crowd(self, tier)
        threads = [threading.Thread(target=crowd.work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert crowd.faults == []
        expect_exact(tier, [self.block(number, crowd.nbytes(number)) for number in crowd.left(tier)])


class _Crowd:
    """Threads that put, get and remove the same blocks."""

    BLOCKS = 60

    def __init__(self, suite: TierConformance, tier: Tier) -> None:
        self._suite, self._tier = suite, tier
        self.faults: list[str] = []

    def nbytes(self, number: int) -> int:
        return 4096 * (1 + number % 5) + number % 2 * 1000

    def left(self, tier: Tier) -> list[int]:
        held = {record.key for record in tier.records()}
        return [number for number in range(self.BLOCKS) if key_of(number) in held]

    def work(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(100):
                numbers = rng.sample(range(self.BLOCKS), 8)
                rng.choice((self._put, self._get, self._get, self._remove))(numbers)
        except BaseException as error:
            self.faults.append(repr(error))
            raise

    def _put(self, numbers: list[int]) -> None:
        outcomes = self._tier.put([self._suite.block(number, self.nbytes(number)) for number in numbers])
        self.faults += [outcome.value for outcome in outcomes if outcome in (Put.ERROR, Put.REFUSED)]
        usage = self._tier.usage()
        if usage.used_bytes > usage.capacity_bytes:
            self.faults.append(f"{usage} is more than it can hold")

    def _get(self, numbers: list[int]) -> None:
        reads = [Read(key_of(number), aligned_buffer(self.nbytes(number))) for number in numbers]
        for number, read, outcome in zip(numbers, reads, self._tier.get(reads), strict=True):
            if outcome is Get.HIT and read.into != self._suite.block(number, self.nbytes(number)).data:
                self.faults.append(f"block {number} came back with other bytes")
            if outcome not in (Get.HIT, Get.MISS):
                self.faults.append(outcome.value)

    def _remove(self, numbers: list[int]) -> None:
        self._tier.remove([key_of(number) for number in numbers])


def expect_exact(tier: Tier, blocks: list[Block]) -> None:
    """Every block is held and comes back as it was put."""
    reads = [Read(block.key, aligned_buffer(memoryview(block.data).nbytes)) for block in blocks]
    assert tier.get(reads) == [Get.HIT] * len(blocks)
    for block, read in zip(blocks, reads, strict=True):
        assert read.into == block.data, f"block {block.key.hex()} came back with other bytes"
