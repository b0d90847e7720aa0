"""The machine's limit as fio sees it: O_DIRECT, same block size and depth, a final fsync inside the window."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from engines.engine import Sample, UnavailableError, Workload, drop_cache, empty_dir, fallocated

_IO_ENGINES = ("io_uring", "libaio")


class Fio:
    """fio reuses `depth` buffers, which stay in the CPU's cache; a store moves bytes of the whole session."""

    name = "control"

    def __init__(self, workload: Workload, directory: Path) -> None:
        if shutil.which("fio") is None:
            raise UnavailableError("fio is not installed (apt-get install fio)")
        self._work = workload
        self._file = empty_dir(directory / "fio") / "data"
        self._ioengine = self._first_that_runs()

    def _first_that_runs(self) -> str:
        reasons = []
        for name in _IO_ENGINES:
            probe = self._file.with_name("probe")
            done = self._fio(name, probe, "write", nbytes=1 << 20, block_bytes=4096)
            probe.unlink(missing_ok=True)
            if done.returncode == 0:
                return name
            reasons.append(f"{name}: {done.stderr.strip()[-200:]}")
        raise UnavailableError("fio runs neither io_uring nor libaio here: " + "; ".join(reasons))

    def _fio(
        self, ioengine: str, file: Path, pattern: str, *, nbytes: int, block_bytes: int
    ) -> subprocess.CompletedProcess[str]:
        command = [
            "fio", "--name=limit", f"--filename={file}", f"--rw={pattern}", f"--bs={block_bytes}",
            f"--size={nbytes}", f"--ioengine={ioengine}", f"--iodepth={self._work.depth}", "--direct=1",
            "--fallocate=none", "--end_fsync=1", "--thread", "--gtod_reduce=1", "--randseed=7",
            "--output-format=json",
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _run(self, pattern: str) -> Sample:
        work = self._work
        done = self._fio(self._ioengine, self._file, pattern, nbytes=work.nbytes, block_bytes=work.block_bytes)
        if done.returncode != 0:
            raise RuntimeError(f"fio {pattern} failed: {done.stderr.strip()[-400:]}")
        job = json.loads(done.stdout)["jobs"][0]
        side = job["write" if pattern == "write" else "read"]
        # In milliseconds; the runtime of a write ends after its fsync.
        seconds = max(side["runtime"], 1) / 1e3
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        return Sample(seconds=seconds, cpu_s=cpu_s, nbytes=side["io_bytes"])

    def write(self) -> Sample:
        empty_dir(self._file.parent)
        os.close(fallocated(self._file, self._work.nbytes))
        return self._run("write")

    def read(self, operation: str) -> Sample:
        drop_cache(self._file)
        return self._run("randread" if operation.startswith("random") else "read")

    def note(self) -> str:
        return f"fio {self._ioengine}, O_DIRECT"

    def close(self) -> None:
        return None
