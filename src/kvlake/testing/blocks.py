"""Blocks whose bytes follow from their key: right bytes are told from wrong ones without keeping a copy."""

import random
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from kvlake.keys.block import NO_PARENT, BlockKey
from kvlake.tiers.tier import Block, Get, Put, Read, Tier, aligned_buffer


def key_of(number: int) -> BlockKey:
    """The key of block `number`."""
    return BlockKey(blake2b(number.to_bytes(8, "little"), digest_size=16, person=b"kvlake.testing").digest())


@lru_cache(maxsize=64)
def payload_of(key: bytes, nbytes: int) -> bytes:
    """The bytes of block `key`, if it is `nbytes` long: they look random and have no two pages alike."""
    return random.Random(key).randbytes(nbytes)


def zeros_of(_key: bytes, nbytes: int) -> bytes:
    """The payload for tiers that keep none (`NullTier`)."""
    return bytes(nbytes)


def block_of(number: int, nbytes: int, parent: BlockKey = NO_PARENT, depth: int = 0) -> Block:
    """Block `number`, of `nbytes`."""
    key = key_of(number)
    return Block(key, parent, depth, payload_of(key, nbytes))


def put_all(tier: Tier, numbers: Iterable[int], nbytes: int = 20_000) -> list[BlockKey]:
    """Put blocks, all of which must be taken; returns their keys."""
    blocks = [block_of(number, nbytes) for number in numbers]
    assert tier.put(blocks) == [Put.STORED] * len(blocks)
    return [block.key for block in blocks]


def held_by(tier: Tier) -> set[BlockKey]:
    """The keys of all blocks of a tier."""
    return {record.key for record in tier.records()}


def fetch(tier: Tier, key: BlockKey, nbytes: int) -> tuple[Get, bytes]:
    """Outcome and bytes of one get into an aligned buffer; after any outcome but HIT the bytes mean nothing."""
    into = aligned_buffer(nbytes)
    return tier.get([Read(key, into)])[0], bytes(into)


def get_all(tier: Tier, keys: Iterable[BlockKey], nbytes: int = 20_000) -> list[Get]:
    """The outcomes of one get of many blocks of `nbytes`; what is said to be a hit must be one."""
    reads = [Read(key, aligned_buffer(nbytes)) for key in keys]
    outcomes = tier.get(reads)
    for read, outcome in zip(reads, outcomes, strict=True):
        assert outcome is not Get.HIT or read.into == payload_of(read.key, nbytes)
    return outcomes


def wrong_keys(tier: Tier, keys: Iterable[BlockKey] | None = None) -> dict[BlockKey, str]:
    """Those of `keys` (default: all held) that do not come back exactly as `payload_of` says, with what was wrong."""
    held = {record.key: record.nbytes for record in tier.records()}
    wrong = {}
    for key in held if keys is None else keys:
        if key not in held:
            wrong[key] = "is not held"
            continue
        outcome, data = fetch(tier, key, held[key])
        if outcome is not Get.HIT:
            wrong[key] = outcome.value
        elif data != payload_of(key, held[key]):
            wrong[key] = "came back with other bytes"
    return wrong


def accounting_faults(tier: Tier) -> list[str]:
    """Where the tier's account of itself disagrees with a recount of its records, or its own audit finds something."""
    usage, records = tier.usage(), list(tier.records())
    faults = [f"{problem.key!r}: {problem.what}" for problem in tier.check().problems]
    if usage.blocks != len(records):
        faults.append(f"usage says {usage.blocks} blocks, there are {len(records)} records")
    if len({record.key for record in records}) != len(records):
        faults.append("a key has two records")
    if not sum(record.nbytes for record in records) <= usage.used_bytes <= usage.capacity_bytes:
        faults.append(f"{usage} does not fit the records")
    return faults


def traces_of(payload: bytes, data: bytes, nbytes: int = 64) -> int:
    """How many pieces of `nbytes` of `payload` turn up in `data`: to look for bytes that should be gone."""
    return sum(payload[at : at + nbytes] in data for at in range(0, len(payload) - nbytes + 1, nbytes))
