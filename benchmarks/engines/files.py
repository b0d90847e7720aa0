"""A plain file per block: temporary file and rename, one syncfs at the end; read with open and readinto."""

import os
from pathlib import Path

from engines.engine import WARM_BLOCKS, Sample, Workload, drop_cache, empty_dir, sync_filesystem, timed


class Files:
    name = "files"

    def __init__(self, workload: Workload, directory: Path) -> None:
        self._work = workload
        self._root = directory / "files"

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._root}/{name[:2]}/{name}.bin"

    def _store(self, key: bytes, block: memoryview) -> None:
        path = self._path(key)
        fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, block)
        finally:
            os.close(fd)
        os.replace(path + ".tmp", path)

    def write(self) -> Sample:
        work = self._work
        empty_dir(self._root)
        for folder in range(256):
            (self._root / f"{folder:02x}").mkdir()
        for index in range(min(WARM_BLOCKS, work.count)):
            self._store(bytes([index]) * 16, work.source[index])
        sync_filesystem(self._root)

        def action() -> None:
            for key, block in zip(work.keys, work.source, strict=True):
                self._store(key, block)
            sync_filesystem(self._root)

        return timed(action, work.nbytes)

    def read(self, operation: str) -> Sample:
        work = self._work
        drop_cache(self._root)

        def action() -> None:
            for index in work.order(operation):
                fd = os.open(self._path(work.keys[index]), os.O_RDONLY)
                try:
                    os.readv(fd, [work.target[index]])
                finally:
                    os.close(fd)

        return timed(action, work.nbytes)

    def note(self) -> str:
        return "page cache, dropped before each read; one thread"

    def close(self) -> None:
        return None
