"""The limit of a store in memory: the same blocks copied between two touched buffers."""

from pathlib import Path

from engines.engine import Sample, Workload, timed


class MemoryCopy:
    name = "memcpy"

    def __init__(self, workload: Workload, directory: Path) -> None:
        self._work = workload

    def write(self) -> Sample:
        return self.read("chain")

    def read(self, operation: str) -> Sample:
        work = self._work

        def copy() -> None:
            for index in work.order(operation):
                work.target[index][:] = work.source[index]

        return timed(copy, work.nbytes)

    def note(self) -> str:
        return "memory copy, one thread"

    def close(self) -> None:
        return None
