"""Records, descriptors and headers: what was packed comes back; other bytes are not taken for any of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlake.keys.block import BlockKey
from kvlake.tiers.disk.record import (
    MAX_U32,
    RECORD,
    RUN_BLOCKS_MAX,
    Header,
    Location,
    checksum_of,
    location_of,
    pack_descriptor,
    pack_header,
    pack_record,
    unpack_descriptor,
    unpack_header,
    unpack_record,
)
from kvlake.tiers.tier import PAGE_BYTES, Record

UUID = bytes(range(16))
U32, U64 = st.integers(0, MAX_U32), st.integers(0, 2**64 - 1)
KEYS = st.binary(min_size=16, max_size=16).map(BlockKey)
SHORT = st.binary(min_size=8, max_size=8)
RECORDS = st.builds(Record, KEYS, KEYS, U32, U32, SHORT, SHORT, U32, U32)
LOCATIONS = st.builds(Location, U64, U64, U32, U32)


def described(count, page=77):
    """A descriptor page of `count` records, and the records."""
    rng = random.Random(count)
    records = [rng.randbytes(RECORD.size) for _ in range(count)]
    buffer = memoryview(bytearray(b"\xff" * PAGE_BYTES))
    pack_descriptor(buffer, UUID, page, records)
    return bytes(buffer), records


@given(RECORDS, LOCATIONS)
def test_a_record_comes_back(record, location):
    location = location._replace(nbytes=record.nbytes)
    packed = pack_record(record, location)
    assert len(packed) == RECORD.size == 88
    assert unpack_record(packed) == record
    assert location_of(packed) == location


def test_times_past_2106_are_kept_at_the_last_second():
    record = Record(BlockKey(bytes(16)), BlockKey(bytes(16)), 0, 1, bytes(8), bytes(8), 2**40, 2**40)
    unpacked = unpack_record(pack_record(record, Location(0, 0, 1, 1)))
    assert (unpacked.expires_s, unpacked.created_s) == (MAX_U32, MAX_U32)


@pytest.mark.parametrize("count", [1, 2, RUN_BLOCKS_MAX])
def test_a_descriptor_comes_back(count):
    page, records = described(count)
    assert unpack_descriptor(memoryview(page), UUID, 77) == records


def test_a_descriptor_is_only_one_in_its_place():
    page, _ = described(3)
    assert unpack_descriptor(memoryview(page), UUID, 78) == []
    assert unpack_descriptor(memoryview(page), bytes(16), 77) == []


def test_no_bit_of_a_descriptor_can_flip():
    page, records = described(2)
    used = 8 * (44 + 2 * RECORD.size)
    for bit in range(8 * PAGE_BYTES):
        bad = bytearray(page)
        bad[bit // 8] ^= 1 << bit % 8
        assert unpack_descriptor(memoryview(bad), UUID, 77) == ([] if bit < used else records)


@given(st.binary(min_size=200, max_size=200))
def test_random_bytes_are_no_descriptor_and_no_header(data):
    page = memoryview(data.ljust(PAGE_BYTES, b"\0"))
    assert unpack_descriptor(page, UUID, 77) == []
    assert unpack_header(page) is None


@given(st.builds(Header, st.binary(min_size=16, max_size=16), U64, U64))
def test_a_header_comes_back(header):
    packed = pack_header(header)
    assert len(packed) == PAGE_BYTES
    assert unpack_header(packed) == header


def test_no_bit_of_a_header_can_flip():
    packed = pack_header(Header(UUID, 1024, 3))
    for bit in range(8 * 52):
        bad = bytearray(packed)
        bad[bit // 8] ^= 1 << bit % 8
        assert unpack_header(bytes(bad)) is None


def test_a_torn_header_is_none():
    assert unpack_header(b"") is None
    assert unpack_header(pack_header(Header(UUID, 1024, 3))[:51]) is None


@given(KEYS, KEYS, st.binary(max_size=100))
def test_the_right_bytes_under_the_wrong_key_are_wrong(key, other, payload):
    same = key[:8] == other[:8]
    assert (checksum_of(key, memoryview(payload)) == checksum_of(other, memoryview(payload))) == same
