"""A worker as the parent sees it: a job in, events out, and a kill that leaves it no time to tidy up."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import click

_WORKER = "kvlake.cli.demo.worker"
_LAST_LINES = 12


class WorkerError(click.ClickException):
    """The worker said why it cannot go on, or ended without saying."""


class WorkerProcess:
    """One worker; it is gone when the `with` block ends, however that is."""

    def __init__(self, job: dict[str, Any], log: Path, note: Callable[[str], None]) -> None:
        self.samples: list[dict[str, Any]] = []
        self._log, self._note = log, note
        # Threads that spin while they wait take the time of others on a machine that is not ours alone.
        environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | {"HF_HUB_OFFLINE": "1"}
        # oneDNN keeps 1,024 compiled kernels, some for each prompt length: over 100 MiB that belong to no session.
        environment.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8")
        # To a file and not a pipe: a pipe that nobody reads fills up, and the worker would wait for ever.
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
            )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Also on Ctrl-C: a worker left behind would hold the store's lock and two cores.
        if self._process.poll() is None:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def next(self, kind: str) -> dict[str, Any]:
        """The next event of that kind. Samples on the way to it are kept, notes are passed on; others are an error."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == kind:
                return event
            if event["event"] == "sample":
                self.samples.append(event)
            elif event["event"] == "note":
                self._note(event["text"])
            elif event["event"] == "failed":
                raise WorkerError(event["text"])
            else:
                raise WorkerError(f"the worker sent {event['event']!r} where {kind!r} was due: see {self._log}")
        code = self._process.wait()
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        raise WorkerError(f"the worker ended with code {code}; the last of {self._log}:\n{last}")

    def kill(self) -> int:
        """SIGKILL, as `kill -9` does; returns the exit code that the system tells."""
        self._process.kill()
        return self._process.wait()

    def end(self) -> int:
        """Let it finish; returns its exit code."""
        return self._process.wait()
