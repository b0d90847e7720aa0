"""Engines of the store benchmark: one module each, a registry of names, loaded only when asked for."""

import importlib
from pathlib import Path

from engines.engine import Engine, Workload

ENGINES = {
    "kvlake-disk": "engines.kvlake_disk:KvlakeDisk",
    "kvlake-store": "engines.kvlake_store:KvlakeStore",
    "vllm-fs": "engines.vllm_fs:VllmFs",
    "lmdb": "engines.lmdb_env:LmdbEnv",
    "files": "engines.files:Files",
}
CONTROLS = {"fio": "engines.fio:Fio", "plain": "engines.plain:Plain", "memcpy": "engines.memcpy:MemoryCopy"}


def make_engine(name: str, workload: Workload, directory: Path) -> Engine:
    """Raises UnavailableError when the engine cannot run here."""
    module, _, cls = {**CONTROLS, **ENGINES}[name].partition(":")
    engine: Engine = getattr(importlib.import_module(module), cls)(workload, directory)
    return engine
