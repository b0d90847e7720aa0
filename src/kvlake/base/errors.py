"""The errors that kvlake raises, all under one root, each also a kind that Python programmers already catch.

    KvlakeError
    ├── ConfigError(ValueError)            a setting is unknown or has a bad value
    ├── CapacityError(ValueError)          a tier is too small for what it is asked to hold
    ├── BufferSizeError(ValueError)        a caller's buffer is not as long as the block
    ├── StoreBusyError(OSError)            another process writes this directory
    ├── StoreFormatError(ValueError)       the directory is not a store of this version
    ├── StoreClosedError(RuntimeError)     used after close()
    ├── SessionNotFoundError(KeyError)     no session of that name
    └── UnsupportedModelError(TypeError)   the model keeps a cache that cannot be cut into blocks

A fault while serving blocks raises none of these: it ends as a miss, counted. These are for set-up and for misuse.
"""


class KvlakeError(Exception):
    """Root of every error that kvlake raises on purpose."""


class ConfigError(KvlakeError, ValueError):
    """A setting is unknown, or its value cannot be used; the message names the key, the value and the cure."""


class CapacityError(KvlakeError, ValueError):
    """A tier is too small for what it is asked to hold, or the disk has no room for the smallest store."""


class BufferSizeError(KvlakeError, ValueError):
    """A buffer given to `get` is not exactly as long as the block it is for."""


class StoreBusyError(KvlakeError, OSError):
    """Another process has this store directory open for writing."""


class StoreFormatError(KvlakeError, ValueError):
    """The directory holds something else, or a store of another format version."""


class StoreClosedError(KvlakeError, RuntimeError):
    """A store was used after it was closed."""


class SessionNotFoundError(KvlakeError, KeyError):
    """No session of that name is known to the store."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnsupportedModelError(KvlakeError, TypeError):
    """The model keeps a kind of cache that cannot be cut into blocks; the message names the kind."""
