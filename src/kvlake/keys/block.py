"""Block keys: a chained digest, so that a key names a block *and* everything before it.

    root  = H_root(namespace, salt)
    key_0 = H_block(root,  tokens_0, extra_0)
    key_i = H_block(key_{i-1}, tokens_i, extra_i)

H is BLAKE2b with a 16-byte digest (RFC 7693); the two uses are kept apart by its `person` parameter. Every variable
part is preceded by its length as a little-endian u32, so that no two inputs share an encoding. Nothing depends on
`PYTHONHASHSEED`, the process or the machine; `tests/keys/test_block.py` holds golden values.
"""

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NewType

BlockKey = NewType("BlockKey", bytes)

KEY_BYTES = 16
NO_PARENT = BlockKey(bytes(KEY_BYTES))
"""What a tier records as the parent of a block whose chain it does not know."""

_ROOT, _BLOCK, _WRAP = b"kvlake.root.1", b"kvlake.block.1", b"kvlake.wrap.1"
_MAX_TOKEN = 0xFFFF_FFFF
_u32 = struct.Struct("<I").pack


def root_key(namespace_digest: bytes, salt: bytes = b"") -> BlockKey:
    """The parent of every first block of one namespace and one salt.

    A salt isolates: the same tokens under another salt get other keys, so that whoever does not know it can neither
    read the blocks nor learn by timing that they exist.
    """
    return _digest(_ROOT, _u32(len(namespace_digest)), namespace_digest, _u32(len(salt)), salt)


def block_key(parent: BlockKey, tokens: Sequence[int], extra: bytes = b"") -> BlockKey:
    """Key of the block that holds `tokens` after `parent`.

    `extra` is the identity of whatever else went into the block, such as the hash of an image.
    Raises ValueError when a token is not in 0..2**32-1.
    """
    return _block_key(parent, _token_bytes(tokens), extra)


def chain_keys(
    namespace_digest: bytes,
    tokens: Sequence[int],
    block_tokens: int,
    *,
    salt: bytes = b"",
    extra: Mapping[int, bytes] | None = None,
) -> list[BlockKey]:
    """Keys of all whole blocks of `tokens`, first to last; a remainder shorter than `block_tokens` has no key.

    `extra` maps a block's index to its extra identity. Raises ValueError for block_tokens < 1 or a bad token.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
    raw = _token_bytes(tokens)
    width = 4 * block_tokens
    extra = extra or {}
    keys: list[BlockKey] = []
    parent = root_key(namespace_digest, salt)
    for index in range(len(raw) // width):
        parent = _block_key(parent, raw[index * width : (index + 1) * width], extra.get(index, b""))
        keys.append(parent)
    return keys


def wrap_key(namespace_digest: bytes, engine_key: bytes, salt: bytes = b"") -> BlockKey:
    """Our key for a block that the engine has already named: its own digest bound to the namespace and the salt."""
    parts = (namespace_digest, engine_key, salt)
    return _digest(_WRAP, *(piece for part in parts for piece in (_u32(len(part)), part)))


def _block_key(parent: BlockKey, token_bytes: bytes, extra: bytes) -> BlockKey:
    return _digest(_BLOCK, parent, _u32(len(token_bytes)), token_bytes, _u32(len(extra)), extra)


def _digest(person: bytes, *parts: bytes) -> BlockKey:
    return BlockKey(blake2b(b"".join(parts), digest_size=KEY_BYTES, person=person).digest())


def _token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as consecutive little-endian u32."""
    if isinstance(tokens, bytes | bytearray):
        tokens = list(tokens)  # whose bytes are token ids; an array would take them for its raw memory
    try:
        ids = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers in 0..{_MAX_TOKEN}: {error}") from error
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()
