"""A conversation at a terminal: a line -> the model's answer as it comes, and what the store spared it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from transformers import TextStreamer

from kvlake.adapters.transformers import Engine, Generation
from kvlake.base.errors import SessionNotFoundError
from kvlake.base.units import format_bytes, format_seconds
from kvlake.cli.chat.transcript import Transcripts
from kvlake.cli.tables import ago, count, print_table
from kvlake.store.session import SessionInfo
from kvlake.store.store import Store

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkSettings:
    """How to talk."""

    session: str
    system: str
    max_new_tokens: int


class Talk:
    """One person, one model, one named session."""

    def __init__(
        self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", store: Store, transcripts: Transcripts,
        settings: TalkSettings,
    ) -> None:  # fmt: skip
        self._model, self._tokenizer, self._store = model, tokenizer, store
        self._transcripts, self._settings = transcripts, settings
        self._engine = Engine(model, store, tokenizer)
        self._talk = transcripts.load(settings.session)
        self._commands: dict[str, tuple[Callable[[], None], str]] = {
            "/idle": (self._idle, "let the session rest: memory is freed, the disk keeps it"),
            "/sessions": (self._list, "list the sessions of this store"),
            "/delete": (self._delete, "delete this session, what was said in it too, and begin anew"),
            "/help": (self._help, "this list"),
            "/quit": (lambda: None, "end; the session rests until you return"),
        }

    def greet(self) -> None:
        """Say where we are; a session that returns is brought into memory while its person thinks."""
        info = self._info()
        if info is None:
            click.echo(f"New session {self._settings.session!r}. /help lists the commands.")
            return
        # Nobody waits for it: what is not there in time is read by the first turn itself.
        self._store.find_session(info.id).resume()
        size = format_bytes(info.bytes_by_tier.get("disk", 0))
        turns, last = count(info.turns, "turn"), ago(info.last_use_s)
        click.echo(f"Session {info.id!r}: {turns}, {info.tokens:,} tokens, {size} on disk, last used {last}.")

    def run(self, lines: Iterable[str]) -> None:
        """Answer line by line until the lines or the person end it; then the session rests."""
        for line in map(str.strip, lines):
            if line == "/quit":
                break
            if line.startswith("/"):
                command = self._commands.get(line)
                (command[0] if command else self._unknown)()
            elif line:
                self._ask(line)
        self._idle()

    def _ask(self, text: str) -> None:
        """One turn. It is noted when it is whole: an answer that was broken off is as if it had not been asked for."""
        # What is said is kept as text and turned into tokens anew: the engine finds out what of them it has seen.
        before = list(self._talk.messages)
        if not before and self._settings.system:
            self._talk.say("system", self._settings.system)
        self._talk.say("user", text)
        prompt = self._talk.prompt(self._tokenizer)
        done = self._generate(prompt)
        if done is None:
            self._talk.messages = before
            return
        answer = self._tokenizer.decode(done.sequences[0, len(prompt) :], skip_special_tokens=True)
        self._talk.say("assistant", answer.strip())
        self._transcripts.save(self._settings.session, self._talk)
        click.secho(_costs(done), dim=True)

    def _generate(self, prompt: list[int]) -> Generation | None:
        """The answer, printed as it comes; None where there is no whole one."""
        room, longest = self._model.config.max_position_embeddings, self._settings.max_new_tokens
        if len(prompt) + longest > room:
            click.echo(f"The model reads {room:,} tokens and this would be more: /delete it, or begin another.")
            return None
        # Greedy, so that a script gets the same answer twice; without the penalty so small a model repeats itself.
        options: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.1, "max_new_tokens": longest}
        options["streamer"] = _streamer(self._tokenizer)
        try:
            return self._engine.generate(prompt, session=self._settings.session, **options)
        except KeyboardInterrupt:
            click.echo(" (broken off)")
            return None

    def _info(self) -> SessionInfo | None:
        try:
            return self._store.find_session(self._settings.session).describe()
        except SessionNotFoundError:
            return None

    def _idle(self) -> None:
        if self._info() is None:
            return
        self._engine.idle(self._settings.session)
        info = self._info()
        if info is not None:
            blocks, size = count(info.present_blocks, "block"), format_bytes(info.bytes_by_tier.get("disk", 0))
            click.secho(f"{info.id!r} rests: {blocks}, {size} on disk, none in memory", dim=True)

    def _list(self) -> None:
        rows = [
            (info.id, info.state, info.turns, f"{info.tokens:,}", format_bytes(info.bytes_by_tier.get("disk", 0)))
            for info in self._store.sessions()
        ]
        print_table(("session", "state", ">turns", ">tokens", ">on disk"), rows)

    def _delete(self) -> None:
        name = self._settings.session
        # The words first: they are what a person wants gone, whatever becomes of the blocks.
        self._talk.messages.clear()
        self._transcripts.delete(name)
        if self._info() is not None:
            gone = self._store.find_session(name).delete()
            click.echo(f"{name!r} deleted: {count(gone.blocks, 'block')}, {format_bytes(gone.nbytes)}")

    def _help(self) -> None:
        for name, (_, what) in self._commands.items():
            click.echo(f"{name:<10} {what}")

    def _unknown(self) -> None:
        click.echo("There is no such command; /help lists them.")


def _streamer(tokenizer: "PreTrainedTokenizerBase") -> TextStreamer:
    """Prints an answer word by word, through click."""
    # Replaced on the one object: Transformers is skipped by the type checker, and so cannot be subclassed here.
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    streamer.on_finalized_text = lambda text, stream_end=False: click.echo(text, nl=stream_end)
    return streamer


def _costs(done: Generation) -> str:
    first = format_seconds(done.first_token_s)
    return f"cached {done.cached_tokens:,} of {done.prompt_tokens:,} tokens, first token {first}"
