"""The demo's worker, a process of its own that can be killed: a job on stdin -> events on stdout, one JSON line each.

`fill` holds the conversations, measures what each costs to take up again without a store and from memory, lets them go
idle and waits to be killed. `return` opens the same store in a new process and takes them up from disk.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
import transformers

from kvlake.adapters.transformers import Engine, Generation
from kvlake.adapters.transformers.request import FirstToken
from kvlake.base.clock import SystemClock
from kvlake.base.errors import CapacityError, KvlakeError
from kvlake.base.units import format_bytes
from kvlake.cli import smollm
from kvlake.cli.conversation import Conversation
from kvlake.cli.demo.texts import QUESTIONS, SYSTEM, choose
from kvlake.open import open_store
from kvlake.tiers.disk import DiskTier

_SAMPLE_S = 0.5
_ANSWER_TOKENS = 8
"""Of the turns that nobody measures: a few words, since a token takes as long as thirty of a text."""

_ROUND_TOKENS = 600
"""What system prompt, questions and answers add to a text, at most."""


class Events:
    """Lines to the parent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        # A long line is more than one write: samples from their thread must not get between.
        with self._lock:
            print(json.dumps({"event": event, "at_s": time.time(), **fields}), flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker is to do."""

    phase: str
    store: str
    cache_dir: str
    memory_bytes: int
    disk_bytes: int
    sessions: int
    typical_tokens: int
    new_tokens: int
    prompts: dict[str, list[int]]
    """Prompts of the sessions that return, by name, in the order of their return; empty for `fill`."""


class Worker:
    """A model and the store that remembers for it."""

    def __init__(self, job: Job, events: Events) -> None:
        self._job, self._events = job, events
        began_s = time.monotonic()
        self._model, self._tokenizer = smollm.load(job.cache_dir, lambda text: events.send("note", text=text))
        # Warm: none of the ways measured is to pay for the first call of anything.
        self._plain([1] * 256)
        self._store = open_store(job.store, memory_bytes=job.memory_bytes, disk_bytes=job.disk_bytes)
        self._engine = Engine(self._model, self._store, self._tokenizer)
        self._engine.generate([1] * 16, max_new_tokens=2, do_sample=False)
        events.send("ready", load_s=time.monotonic() - began_s, rss_bytes=_rss_bytes(), **self._facts())

    def close(self) -> None:
        self._store.close()

    def sample(self) -> dict[str, Any]:
        """Where bytes are now: allocated ones by tier, and all that the process holds."""
        usage = {name: asdict(each) for name, each in self._store.usage().items()}
        return {"tiers": usage, "device_bytes": self._engine.device_bytes(), "rss_bytes": _rss_bytes()}

    def fill(self) -> None:
        """Two turns of every session, in turn; then the third, measured without a store and from memory; then idle."""
        self._expect_room()
        talks = {text.name: self._open(text.body, text.tokens) for text in self._texts()}
        # Turn by turn and not session by session: by the time its turn comes, a session has left memory.
        for turn, question in enumerate(QUESTIONS[:-1], 1):
            for name, talk in talks.items():
                if turn > 1:
                    talk.say("user", question)
                options = self._options() | {"max_new_tokens": _ANSWER_TOKENS}
                done = self._engine.generate(talk.prompt(self._tokenizer), session=name, **options)
                answer = self._answer(done.sequences, done.prompt_tokens)
                talk.say("assistant", self._tokenizer.decode(answer, skip_special_tokens=True).strip())
                self._events.send("turn", turn=turn, id=name, **_costs(done))
        for name, talk in talks.items():
            talk.say("user", QUESTIONS[-1])
            self._measure(name, talk.prompt(self._tokenizer))
        self._store.flush()
        self._events.send("active", **self.sample(), counters=self._counters())
        for name in talks:
            self._store.find_session(name).idle()
        # Twice a look's time, so that what was freed has left the process.
        time.sleep(2 * _SAMPLE_S)
        self._events.send("idle", **self.sample(), on_disk_bytes=self._disk().disk_bytes())

    def come_back(self) -> None:
        """The third turn of every session, from what the disk kept."""
        for name, prompt in self._job.prompts.items():
            in_memory = self._store.find_session(name).describe().bytes_by_tier.get("memory", 0)
            done = self._engine.generate(prompt, session=name, **self._options())
            answer = self._answer(done.sequences, done.prompt_tokens)
            text = self._tokenizer.decode(answer, skip_special_tokens=True)
            costs = _costs(done) | {"in_memory_bytes": in_memory, "answer": answer, "text": text}
            self._events.send("returned", id=name, **costs)
        self._store.flush()
        self._events.send("end", **self.sample(), counters=self._counters())

    def _measure(self, name: str, prompt: list[int]) -> None:
        """The same prompt twice, without a store and from memory; neither leaves a trace in the store."""
        # The plain way first: what the store is then asked after is a prefill, as it would be in a busy engine.
        cold_s, cold = self._plain(prompt)
        session = self._store.find_session(name)
        ready = session.resume().result()
        known = self._store.match(self._engine.keys(prompt))
        # No session is named, so the live cache on the device is not used and no turn is noted.
        done = self._engine.generate(prompt, **self._options())
        answer = self._answer(done.sequences, len(prompt))
        # What this answer added is taken out again: the disk is to be measured with the same blocks.
        self._store.flush()
        self._store.evict(self._engine.keys(done.sequences[0].tolist())[known:])
        info = session.describe()
        self._events.send(
            "measured", id=name, prompt=prompt, cold_s=cold_s, cold=cold, memory_s=done.first_token_s, memory=answer,
            memory_load_s=done.load_s, cached_tokens=done.cached_tokens, in_memory=ready == info.blocks,
        )  # fmt: skip

    def _plain(self, prompt: list[int]) -> tuple[float, list[int]]:
        """`model.generate` without kvlake: seconds to the first token, and the answer."""
        clock = SystemClock()
        first, began_s = FirstToken(clock), clock.monotonic()
        ids = torch.tensor([prompt])
        # The mask, the stopping criterion and the options are those that the engine gives: only the cache differs.
        mask = torch.ones_like(ids)
        sequences = self._model.generate(ids, attention_mask=mask, stopping_criteria=[first], **self._options())
        return (first.at_s or clock.monotonic()) - began_s, self._answer(sequences, len(prompt))

    def _options(self) -> dict[str, Any]:
        return {"max_new_tokens": self._job.new_tokens, "do_sample": False}

    def _answer(self, sequences: torch.Tensor, prompt_tokens: int) -> list[int]:
        answer: list[int] = sequences[0, prompt_tokens:].tolist()
        return answer

    def _texts(self) -> Any:
        return choose(self._job.sessions, self._job.typical_tokens)

    def _open(self, body: str, tokens: int) -> Conversation:
        talk = Conversation()
        talk.say("system", SYSTEM)
        ids = self._tokenizer(body, truncation=True, max_length=tokens)["input_ids"]
        talk.say("user", f"{self._tokenizer.decode(ids)}\n\n{QUESTIONS[0]}")
        return talk

    def _expect_room(self) -> None:
        """Raise CapacityError unless the memory tier holds the longest session, as the measurement wants."""
        longest = max(text.tokens for text in self._texts()) + _ROUND_TOKENS
        need = longest * self._bytes_per_token() * 10 // 9
        if self._job.memory_bytes < need:
            raise CapacityError(
                f"--memory {format_bytes(self._job.memory_bytes)} does not hold the longest session; "
                f"give at least {format_bytes(need)}"
            )

    def _bytes_per_token(self) -> int:
        return self._engine.layout.block_nbytes // self._engine.layout.block_tokens

    def _facts(self) -> dict[str, Any]:
        disk = self._disk()
        return {
            "parameters": self._model.num_parameters(),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "bytes_per_token": self._bytes_per_token(),
            "block_tokens": self._engine.layout.block_tokens,
            "io_mode": disk.io_mode,
            "threads": torch.get_num_threads(),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    def _counters(self) -> dict[str, int]:
        """What store and engine count; errors among it, which cost no request and so show nowhere else."""
        return self._store.counters() | {f"engine_{name}": count for name, count in self._engine.counters.items()}

    def _disk(self) -> DiskTier:
        return next(tier for tier in self._store.tiers() if isinstance(tier, DiskTier))


def _costs(done: Generation) -> dict[str, Any]:
    names = ("prompt_tokens", "cached_tokens", "first_token_s", "load_s", "loaded_bytes", "source")
    return {name: getattr(done, name) for name in names}


def _rss_bytes() -> int:
    rss: int = psutil.Process().memory_info().rss
    return rss


@contextmanager
def _watched(worker: Worker, events: Events) -> Iterator[None]:
    """Samples, from a thread, while the `with` block lasts."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            events.send("sample", **worker.sample())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main() -> None:
    """Do the job on stdin; after `fill`, hold everything until the parent kills us."""
    job, events = Job(**json.loads(sys.stdin.readline())), Events()
    try:
        with closing(Worker(job, events)) as worker, _watched(worker, events):
            if job.phase == "return":
                worker.come_back()
                return
            worker.fill()
            # Until we are killed, or the parent is gone and the pipe with it.
            sys.stdin.read()
    except (KvlakeError, OSError) as error:
        events.send("failed", text=str(error))
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
