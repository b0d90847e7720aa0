"""LMDB (pip install lmdb): one transaction per batch, one sync at the end, reads copied out of its mapping."""

from pathlib import Path
from typing import Any

from engines.engine import Sample, UnavailableError, Workload, drop_cache, empty_dir, timed


class LmdbEnv:
    name = "lmdb"

    def __init__(self, workload: Workload, directory: Path) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise UnavailableError("lmdb is not installed (pip install lmdb)") from error
        self._lmdb, self._work, self._root = lmdb, workload, directory / "lmdb"

    def _open(self) -> Any:
        size = self._work.nbytes * 2 + (64 << 20)
        return self._lmdb.open(str(self._root), map_size=size, sync=False, metasync=False, readahead=True)

    def write(self) -> Sample:
        work = self._work
        empty_dir(self._root)
        env = self._open()

        def action() -> None:
            for batch in work.puts():
                with env.begin(write=True) as txn:
                    for index in batch:
                        txn.put(work.keys[index], work.source[index])
            env.sync(True)

        try:
            return timed(action, work.nbytes)
        finally:
            env.close()

    def read(self, operation: str) -> Sample:
        work = self._work
        drop_cache(self._root)
        env = self._open()

        def action() -> None:
            for batch in work.gets(operation):
                with env.begin(buffers=True) as txn:
                    for index in batch:
                        work.target[index][:] = txn.get(work.keys[index])

        try:
            return timed(action, work.nbytes)
        finally:
            env.close()

    def note(self) -> str:
        return "page cache, dropped before each read; one thread"

    def close(self) -> None:
        return None
