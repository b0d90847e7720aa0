"""Same tokens, same key, on any machine, for ever; other tokens, another key."""

import os
import subprocess
import sys
from array import array
from hashlib import blake2b
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvlake.keys import block as block_module
from kvlake.keys.block import NO_PARENT, block_key, chain_keys, root_key, wrap_key

NAMESPACE = bytes(range(16))
GOLDEN = {
    "root": "ff8c62749183ad1596a3404a65e372ce",
    "salted": "a77efc606434920fa6bbeaf899d25659",
    "empty": "805e08d63071516e02c1e25b6d2eabfc",
    "block": "78b4398d4dff1da58bb62965275b0ad3",
    "largest token": "b0454e78af18de312b631447a67d5208",
    "no tokens": "1329c8e159a3ba5d67526d20f8585998",
    "extra": "d4eacd2ef05d97ff44a45d5e487216c0",
    "chain": "54df8ef1e9597b42c1f06bac4aa663ba fb4a8d6351d21bb47a61cbabb41169fe",
    "salted chain": "0d1356e194c11fd34788a78707bdf088 84dbc535227ac234cdfc613280b3bda8",
    "wrapped": "183f8e3a5ab474c68bd921d5f3f459d5",
}
"""Never to be changed: blocks on disks all over the world are named so."""

CASES = """
from kvlake.keys.block import block_key, chain_keys, root_key, wrap_key
namespace = bytes(range(16))
root = root_key(namespace)
print("root:", root.hex())
print("salted:", root_key(namespace, b"tenant-7").hex())
print("empty:", root_key(b"").hex())
print("block:", block_key(root, [1, 2, 3, 4]).hex())
print("largest token:", block_key(root, [0, 2**32 - 1]).hex())
print("no tokens:", block_key(root, []).hex())
print("extra:", block_key(root, [1, 2, 3, 4], b"image").hex())
print("chain:", *[key.hex() for key in chain_keys(namespace, range(10), 4)])
print("salted chain:", *[key.hex() for key in chain_keys(namespace, range(8), 4, salt=b"s", extra={1: b"x"})])
print("wrapped:", wrap_key(namespace, b"engine's own key", b"salt").hex())
"""


def printed(**environment):
    """What CASES prints in a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, "-c", CASES], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return dict(line.split(": ") for line in run.stdout.splitlines())


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_golden_values(seed):
    assert printed(PYTHONHASHSEED=seed) == GOLDEN


def test_the_encoding_is_the_one_that_is_written_down():
    def digest(person, *parts):
        return blake2b(b"".join(parts), digest_size=16, person=person).digest()

    def u32(number):
        return number.to_bytes(4, "little")

    root = digest(b"kvlake.root.1", u32(16), NAMESPACE, u32(4), b"salt")
    assert root_key(NAMESPACE, b"salt") == root
    tokens = u32(7) + u32(70_000)
    assert block_key(root, [7, 70_000], b"ex") == digest(b"kvlake.block.1", root, u32(8), tokens, u32(2), b"ex")
    assert wrap_key(NAMESPACE, b"key") == digest(b"kvlake.wrap.1", u32(16), NAMESPACE, u32(3), b"key", u32(0))


BYTES = st.binary(max_size=6)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=5)
SMALL_TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@st.composite
def inputs(draw):
    """(namespace, salt, blocks as (tokens, extra)): small, so that near misses are common."""
    blocks = draw(st.lists(st.tuples(SMALL_TOKENS.map(tuple), st.sampled_from([b"", b"\0", b"a"])), max_size=3))
    return draw(st.binary(max_size=2)), draw(st.binary(max_size=2)), tuple(blocks)


def last_key(namespace, salt, blocks):
    key = root_key(namespace, salt)
    for tokens, extra in blocks:
        key = block_key(key, tokens, extra)
    return key


@given(inputs(), inputs())
def test_no_two_inputs_share_a_key(one, other):
    assert (last_key(*one) == last_key(*other)) == (one == other)


def encoded(call, *arguments):
    """The exact bytes that a key is the digest of."""
    with patch.object(block_module, "_digest") as digest:
        call(*arguments)
    person, *parts = digest.call_args.args
    return person, b"".join(parts)


@given(st.tuples(BYTES, BYTES), st.tuples(BYTES, BYTES))
def test_no_two_roots_share_an_encoding(one, other):
    assert (encoded(root_key, *one) == encoded(root_key, *other)) == (one == other)


@given(st.tuples(TOKENS, BYTES), st.tuples(TOKENS, BYTES))
def test_no_two_blocks_share_an_encoding(one, other):
    first = encoded(block_key, NO_PARENT, *one)
    assert (first == encoded(block_key, NO_PARENT, *other)) == (one == other)


@given(st.tuples(BYTES, BYTES, BYTES), st.tuples(BYTES, BYTES, BYTES))
def test_no_two_wrapped_keys_share_an_encoding(one, other):
    assert (encoded(wrap_key, *one) == encoded(wrap_key, *other)) == (one == other)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 9), BYTES)
def test_a_chain_is_its_blocks_one_after_the_other(tokens, block_tokens, salt):
    expected, parent = [], root_key(NAMESPACE, salt)
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = block_key(parent, tokens[at : at + block_tokens])
        expected.append(parent)
    assert chain_keys(NAMESPACE, tokens, block_tokens, salt=salt) == expected


@given(st.lists(st.integers(0, 9), min_size=12, max_size=12), st.integers(0, 11), st.integers(0, 9))
def test_a_changed_token_changes_its_block_and_all_behind(tokens, at, token):
    assume(tokens[at] != token)
    changed = [*tokens[:at], token, *tokens[at + 1 :]]
    same = [a == b for a, b in zip(chain_keys(b"", tokens, 4), chain_keys(b"", changed, 4), strict=True)]
    assert same == [index < at // 4 for index in range(3)]


def test_an_extra_counts_from_its_block_on():
    plain = chain_keys(NAMESPACE, range(12), 4)
    extra = chain_keys(NAMESPACE, range(12), 4, extra={1: b"image"})
    assert [a == b for a, b in zip(plain, extra, strict=True)] == [True, False, False]


def test_a_remainder_has_no_key():
    assert len(chain_keys(NAMESPACE, range(7), 4)) == 1
    assert chain_keys(NAMESPACE, range(3), 4) == []
    assert chain_keys(NAMESPACE, [], 4) == []


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: array("q", ids), bytes, bytearray])
def test_only_the_tokens_count_not_what_holds_them(kind):
    ids = [1, 2, 3, 250]
    assert block_key(NO_PARENT, kind(ids)) == block_key(NO_PARENT, ids)
    assert chain_keys(NAMESPACE, kind(ids), 2) == chain_keys(NAMESPACE, ids, 2)


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], ["a"], "text", [None]])
def test_what_is_no_token_is_named(tokens):
    with pytest.raises(ValueError, match=r"token ids must be integers in 0\.\.4294967295"):
        block_key(NO_PARENT, tokens)


def test_a_block_holds_at_least_a_token():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        chain_keys(NAMESPACE, range(4), 0)
