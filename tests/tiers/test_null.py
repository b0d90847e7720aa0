"""The null tier: counts everything, keeps nothing, and so takes only zeros."""

from kvlake.testing.blocks import block_of, key_of
from kvlake.testing.clock import FakeClock
from kvlake.tiers.null import NullTier
from kvlake.tiers.tier import Put, Read, aligned_buffer


def zeros(number, nbytes):
    return block_of(number, 1)._replace(data=bytes(nbytes))


def test_bytes_that_it_could_not_give_back_are_refused():
    tier = NullTier(1 << 20)
    assert tier.put([block_of(1, 100), zeros(2, 100), zeros(3, 99)._replace(data=bytes(99) + b"\1")]) == [
        Put.REFUSED, Put.STORED, Put.REFUSED,
    ]  # fmt: skip


def test_it_fills_the_buffer():
    tier = NullTier(1 << 20)
    tier.put([zeros(1, 100)])
    into = aligned_buffer(100)
    into[:] = b"x" * 100
    tier.get([Read(key_of(1), into)])
    assert into == bytes(100)


def test_it_counts_to_the_byte():
    tier = NullTier(1000, clock=FakeClock(wall_s=5))
    assert tier.put([zeros(1, 600), zeros(2, 401), zeros(3, 400)]) == [Put.STORED, Put.FULL, Put.STORED]
    assert tier.usage().used_bytes == 1000
    assert {record.created_s for record in tier.records()} == {5}
    assert tier.remove([key_of(1)]) == 600
    assert repr(tier) == "<NullTier 1 blocks, 400 of 1000 bytes>"
    tier.close()
    assert tier.usage().blocks == 0
