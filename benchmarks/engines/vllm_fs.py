"""vLLM 0.32's file tier, in a process of its own: this side speaks to `vllm_worker`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from engines.engine import Sample, UnavailableError, Workload
from engines.vllm_wheel import library_path, unpack

_BENCHMARKS = Path(__file__).resolve().parents[1]
WHEEL_ROOT = _BENCHMARKS.parent / "build" / "bench" / "vllm"


class VllmFs:
    """`chain` is one session's load: one job, as its manager makes it, so one thread. `random` is a job for every
    batch, all queued at once: many requests together, its best. `chain-jobs` and `random-one-job` are these the other
    way round."""

    name = "vllm-fs"

    def __init__(self, workload: Workload, directory: Path) -> None:
        root = unpack(WHEEL_ROOT)
        environment = {**os.environ, "LD_LIBRARY_PATH": library_path(root)}
        environment["PYTHONPATH"] = str(_BENCHMARKS)
        command = [
            sys.executable, "-m", "engines.vllm_worker", "--root", str(root), "--dir", str(directory / "vllm"),
            "--block-bytes", str(workload.block_bytes), "--count", str(workload.count),
            "--put-blocks", str(workload.put_blocks), "--get-blocks", str(workload.get_blocks),
        ]  # fmt: skip
        self._work = workload
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._facts = self._answer()
        self._sync_s: list[float] = []

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UnavailableError(f"vLLM's process ended with code {self._process.wait()}; its error is above")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ask(self, **command: object) -> Sample:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        reply = self._answer()
        if command["do"] == "write":
            self._sync_s.append(reply["sync_s"])
        return Sample(seconds=reply["seconds"], cpu_s=reply["cpu_s"], nbytes=reply["nbytes"])

    def write(self) -> Sample:
        return self._ask(do="write")

    def read(self, operation: str) -> Sample:
        order = list(self._work.order(operation))
        return self._ask(do="read", order=order, one_job=operation in ("chain", "random-one-job"))

    def note(self) -> str:
        how = "O_DIRECT" if self._facts["direct"] else "page cache"
        sync_ms = sorted(self._sync_s)[len(self._sync_s) // 2] * 1e3 if self._sync_s else 0
        return f"{self._facts['helper']}, {how}, 16 + 16 threads; syncfs took {sync_ms:.0f} ms of each write"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
