"""kvlake: the memory of self-hosted LLMs. A KV cache over the tiers that people own, with the session at its centre.

    store = kvlake.open_store("/var/lib/kvlake", memory_bytes="8 GiB", disk_bytes="200 GiB")

Names are loaded when they are first used: importing this package costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvlake.keys.block import chain_keys as chain_keys
    from kvlake.keys.namespace import Namespace as Namespace
    from kvlake.keys.namespace import weights_fingerprint as weights_fingerprint
    from kvlake.open import open_store as open_store
    from kvlake.store.store import Session as Session
    from kvlake.store.store import Store as Store
    from kvlake.tiers.tier import Block as Block
    from kvlake.tiers.tier import Get as Get
    from kvlake.tiers.tier import Put as Put

__version__ = "0.1.0"

_HOMES = {
    "Block": "kvlake.tiers.tier",
    "Get": "kvlake.tiers.tier",
    "Namespace": "kvlake.keys.namespace",
    "Put": "kvlake.tiers.tier",
    "Session": "kvlake.store.store",
    "Store": "kvlake.store.store",
    "chain_keys": "kvlake.keys.block",
    "open_store": "kvlake.open",
    "weights_fingerprint": "kvlake.keys.namespace",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'kvlake' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
