"""Bytes on the disk: what a block's record, a run's descriptor page and a segment's header page look like.

A *segment* is a preallocated file of `segment_pages` pages. Its first page is a header; the rest is runs. A *run* is
what one put laid down together: one descriptor page, then the payloads, each on whole pages. The descriptor holds the
records of the run's blocks, so that the data describes itself and the journal can be made again from it.

    segment: | header | descriptor | payload 0 | payload 1 | ... | descriptor | payload ...
    record (88 bytes, little-endian): key 16s, parent 16s, namespace 8s, tenant 8s, checksum u64, page u64, nbytes u32,
                                      back u32, depth u32, expires_s u32, created_s u32, zero u32

`page` counts across segments: page // segment_pages is the segment. `back` is how many pages before the payload its
run's descriptor lies. `checksum` is XXH3-64 of the payload seeded with the first 8 bytes of the key, so that the
right bytes under the wrong key are wrong too.
"""

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from kvlake.keys.block import BlockKey
from kvlake.tiers.tier import PAGE_BYTES, Record, pages_of

FORMAT_VERSION = 1

RECORD = struct.Struct("<16s16s8s8sQQIIIIII")

_DESCRIPTOR = struct.Struct("<8s16sQIQ")  # magic, store uuid, own page, records, checksum of the records
_DESCRIPTOR_MAGIC = b"kvlkrun1"
_HEADER = struct.Struct("<8sI16sQQQ")  # magic, version, store uuid, segment pages, segment index, checksum
_HEADER_MAGIC = b"kvlkseg1"
RUN_BLOCKS_MAX = (PAGE_BYTES - _DESCRIPTOR.size) // RECORD.size

MAX_U32 = 0xFFFF_FFFF


class Location(NamedTuple):
    """Where a block lies: the part of its record that a read needs."""

    checksum: int
    page: int
    nbytes: int
    back: int

    @property
    def pages(self) -> int:
        return pages_of(self.nbytes)

    @property
    def descriptor(self) -> int:
        """Page of the run's descriptor."""
        return self.page - self.back


_LOCATION = struct.Struct("<QQII")
_LOCATION_AT = 48


class Header(NamedTuple):
    """Identity of a segment."""

    uuid: bytes
    segment_pages: int
    number: int


def checksum_of(key: bytes, payload: memoryview) -> int:
    """XXH3-64 of the payload, seeded with the key."""
    return int(xxh3_64_intdigest(payload, int.from_bytes(key[:8], "little")))


def location_of(packed: bytes) -> Location:
    return Location._make(_LOCATION.unpack_from(packed, _LOCATION_AT))


def pack_record(record: Record, location: Location) -> bytes:
    return RECORD.pack(
        record.key, record.parent, record.namespace, record.tenant, location.checksum, location.page, record.nbytes,
        location.back, record.depth, min(record.expires_s, MAX_U32), min(record.created_s, MAX_U32), 0,
    )  # fmt: skip


def unpack_record(packed: bytes) -> Record:
    key, parent, namespace, tenant, _, _, nbytes, _, depth, expires_s, created_s, _ = RECORD.unpack(packed)
    return Record(BlockKey(key), BlockKey(parent), depth, nbytes, namespace, tenant, expires_s, created_s)


def pack_descriptor(into: memoryview, uuid: bytes, page: int, records: list[bytes]) -> None:
    """Write the descriptor page of the run that starts at `page`."""
    packed = b"".join(records)
    body = _DESCRIPTOR.pack(_DESCRIPTOR_MAGIC, uuid, page, len(records), xxh3_64_intdigest(packed, page & MAX_U32))
    used = len(body) + len(packed)
    into[: len(body)] = body
    into[len(body) : used] = packed
    into[used:] = bytes(PAGE_BYTES - used)


def unpack_descriptor(page_bytes: memoryview, uuid: bytes, page: int) -> list[bytes]:
    """Records of the run whose descriptor lies at `page`; empty if these bytes are not such a descriptor."""
    magic, owner, own_page, count, checksum = _DESCRIPTOR.unpack_from(page_bytes)
    if magic != _DESCRIPTOR_MAGIC or owner != uuid or own_page != page or not 0 < count <= RUN_BLOCKS_MAX:
        return []
    packed = bytes(page_bytes[_DESCRIPTOR.size : _DESCRIPTOR.size + count * RECORD.size])
    if xxh3_64_intdigest(packed, page & MAX_U32) != checksum:
        return []
    return split_records(packed)


def split_records(packed: bytes) -> list[bytes]:
    return [packed[at : at + RECORD.size] for at in range(0, len(packed), RECORD.size)]


def pack_header(header: Header) -> bytes:
    """The first page of a segment."""
    body = _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION, header.uuid, header.segment_pages, header.number, 0)
    checksum = xxh3_64_intdigest(body)
    return _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION, *header, checksum).ljust(PAGE_BYTES, b"\0")


def unpack_header(page_bytes: bytes | memoryview) -> Header | None:
    """The header, or None if these bytes are not one of this version."""
    if len(page_bytes) < _HEADER.size:
        return None
    _, _, uuid, segment_pages, number, _ = _HEADER.unpack_from(page_bytes)
    header = Header(uuid, segment_pages, number)
    return header if bytes(page_bytes[: _HEADER.size]) == pack_header(header)[: _HEADER.size] else None
