"""A namespace: the identity of everything that must match for one engine's KV to be usable by another.

Names lie: weights are swapped under one path, a fine-tune keeps its base's name, an engine's upgrade moves bytes about.
So a namespace is made of contents and of layout facts, and blocks of different namespaces never meet.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from kvlake.base.errors import ConfigError
from kvlake.base.units import KIB, MIB

DIGEST_BYTES = 16

_SAMPLE_BYTES = 4 * KIB
_SAMPLES_PER_FILE = 16384
_WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".npz")


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """What must be equal for KV to be reusable. Every field is text that its adapter writes in one canonical way."""

    weights: str
    """Fingerprint of the contents of the weights, never their name (`weights_fingerprint`)."""
    tokenizer: str
    """Digest of the tokenizer: equal token ids mean equal text."""
    geometry: str
    """Layers, heads, widths and attention kinds."""
    dtype: str
    """Element type of the cached keys and values, with its scales if it has any."""
    rope: str
    """Settings of the position encoding, which is already applied to cached keys."""
    layout: str
    """How a block's bytes are laid out, and by which kernel family they were made."""
    layout_version: int
    """Raised by an adapter whenever the meaning of `layout` changes."""
    block_tokens: int
    """Tokens in a block."""
    engine: str
    """Engine family and the part of its version that changes KV."""
    revision: str = ""
    """Revision of the model where the weights have one."""
    adapter: str = ""
    """Digest of the adapter (LoRA) in force; empty for none."""

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ConfigError(f"block_tokens must be at least 1, not {self.block_tokens}")
        if not self.weights:
            raise ConfigError("a namespace needs a weights fingerprint; make one with weights_fingerprint(path)")

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that name this namespace; equal on every machine."""
        hashed = blake2b(digest_size=DIGEST_BYTES, person=b"kvlake.ns.1")
        for field in sorted(fields(self), key=lambda field: field.name):
            for part in (field.name, str(getattr(self, field.name))):
                raw = part.encode()
                hashed.update(struct.pack("<I", len(raw)) + raw)
        return hashed.digest()


def weights_fingerprint(path: str | os.PathLike[str]) -> str:
    """Fingerprint of the weights at `path`, a file or a folder of weight files: 32 hex digits.

    Reads each file's size and 4 KiB out of every MiB (at most 16,384 samples a file, its first and last bytes among
    them), so that a change to any tensor larger than the stride is seen; 100 GB take seconds. File names do not count.
    Raises ConfigError where there are no weights.
    """
    files = list(_weight_files(Path(path)))
    if not files:
        raise ConfigError(f"no weights at {path}: expected a file or a folder with {', '.join(_WEIGHT_SUFFIXES)}")
    digests = sorted(_file_digest(file) for file in files)
    return blake2b(b"".join(digests), digest_size=16, person=b"kvlake.wts.1").hexdigest()


def _weight_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (file for file in path.rglob("*") if file.suffix in _WEIGHT_SUFFIXES and file.is_file())


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        hashed = blake2b(struct.pack("<Q", size), digest_size=16, person=b"kvlake.wts.1")
        stride = max(MIB, size // _SAMPLES_PER_FILE)
        for offset in (*range(0, size, stride), max(0, size - _SAMPLE_BYTES)):
            hashed.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
    return hashed.digest()
