"""The demo's course: fill, measure, idle, kill -9, restart, return -> the events of both workers."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlake.base.units import MIB
from kvlake.cli.demo.process import WorkerProcess
from kvlake.cli.demo.progress import Progress
from kvlake.cli.demo.texts import QUESTIONS
from kvlake.open import open_store

Event = dict[str, Any]

_STORE_FILES = ("*.seg", "*.log", "*.log.new", "lock")
_DISK_BYTES_PER_TOKEN = 100_000
"""Twice what the model's keys and values weigh, so that the disk tier never has to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What is asked of a demo."""

    out: Path
    cache_dir: Path
    sessions: int = 12
    memory_bytes: int = 384 * MIB
    typical_tokens: int = 1800
    new_tokens: int = 12
    """Of the answers that are compared."""
    seed: int = 0

    @property
    def store(self) -> Path:
        """Where the store is left."""
        return self.out / "store"

    @property
    def log(self) -> Path:
        """What the workers wrote to stderr; empty when all went well."""
        return self.out / "worker.log"

    @property
    def disk_bytes(self) -> int:
        """Capacity of the disk tier."""
        return 512 * MIB + self.sessions * (self.typical_tokens + 600) * _DISK_BYTES_PER_TOKEN


@dataclass(slots=True)
class Course:
    """What happened, as the workers told it."""

    began_s: float = field(default_factory=time.time)
    ready: list[Event] = field(default_factory=list)
    """Of the first worker, and of the one after the kill."""
    turns: list[Event] = field(default_factory=list)
    measured: list[Event] = field(default_factory=list)
    active: Event = field(default_factory=dict)
    idle: Event = field(default_factory=dict)
    exit_code: int = 0
    """Of the worker that was killed."""
    killed_s: float = 0.0
    returned: list[Event] = field(default_factory=list)
    end: Event = field(default_factory=dict)
    samples: list[Event] = field(default_factory=list)


def run(settings: DemoSettings, show: Progress) -> Course:
    """Run both workers, one after the other. Raises WorkerError, or what opening a store raises."""
    settings.out.mkdir(parents=True, exist_ok=True)
    clear_store(settings.store)
    settings.log.write_bytes(b"")
    course = Course()
    _fill(settings, show, course)
    _return(settings, show, course)
    return course


def clear_store(path: Path) -> None:
    """Remove the store of an earlier demo. Raises StoreBusyError, or StoreFormatError where it is something else."""
    if not path.is_dir():
        return
    # The store itself says whether this is one, and whether it is in use; it is never guessed from file names.
    open_store(path, memory_bytes=0).close()
    for pattern in _STORE_FILES:
        for file in path.glob(pattern):
            file.unlink()


def _fill(settings: DemoSettings, show: Progress, course: Course) -> None:
    count = settings.sessions
    with WorkerProcess(_job(settings, "fill", {}), settings.log, show.note) as worker:
        course.ready += _collect(show, worker, "load the model", ("ready", 1))
        for turn in range(1, len(QUESTIONS)):
            what = "a text of its own" if turn == 1 else "a question"
            course.turns += _collect(show, worker, f"turn {turn} of {count} sessions: {what}", ("turn", count))
        text = f"turn {len(QUESTIONS)}, measured without a store and from memory"
        course.measured += _collect(show, worker, text, ("measured", count))
        course.active = worker.next("active")
        (course.idle,) = _collect(show, worker, "all sessions go idle", ("idle", 1))
        # It said that all is idle, which means durable: from here on a kill may not cost a block.
        course.exit_code, course.killed_s = worker.kill(), time.time()
        course.samples += worker.samples
    show.note(f"kill -9: the worker is gone, its exit code {course.exit_code}")


def _return(settings: DemoSettings, show: Progress, course: Course) -> None:
    prompts = [(event["id"], event["prompt"]) for event in course.measured]
    # In another order than they were put, so that reading ahead on the disk is of no help.
    random.Random(settings.seed).shuffle(prompts)
    with WorkerProcess(_job(settings, "return", dict(prompts)), settings.log, show.note) as worker:
        course.ready += _collect(show, worker, "a new process: load the model, open the store", ("ready", 1))
        text = f"turn {len(QUESTIONS)} of {len(prompts)} sessions, from disk, in random order"
        course.returned += _collect(show, worker, text, ("returned", len(prompts)))
        course.end = worker.next("end")
        worker.end()
        course.samples += worker.samples


def _collect(show: Progress, worker: WorkerProcess, text: str, wanted: tuple[str, int]) -> list[Event]:
    kind, count = wanted
    found = []
    with show.stage(text, count) as advance:
        for _ in range(count):
            found.append(worker.next(kind))
            advance()
    return found


def _job(settings: DemoSettings, phase: str, prompts: dict[str, list[int]]) -> dict[str, Any]:
    return {
        "phase": phase,
        "store": str(settings.store),
        "cache_dir": str(settings.cache_dir),
        "memory_bytes": settings.memory_bytes,
        "disk_bytes": settings.disk_bytes,
        "sessions": settings.sessions,
        "typical_tokens": settings.typical_tokens,
        "new_tokens": settings.new_tokens,
        "prompts": prompts,
    }
