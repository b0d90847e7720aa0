"""`kvlake chat`: open the store, load the model, talk."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from kvlake.cli.places import cache_dir, own_or_make, store_option


@click.command
@click.option("--session", default="chat", show_default=True, help="Name of the conversation; the same name goes on.")
@store_option
@click.option("--system", default="You are a helpful assistant.", show_default=True, help="What a new session is told.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Longest answer.")
def chat(session: str, store: Path, system: str, max_new_tokens: int) -> None:
    """Talk with a small model whose conversations rest on disk and go on where they were.

    Lines may come from a pipe too. What is said is kept beside the store, in STORE-chat, readable by you only.
    """
    from kvlake.base.errors import ConfigError
    from kvlake.cli import smollm
    from kvlake.cli.chat.transcript import Transcripts

    transcripts = Transcripts(store)
    # A bad name or a spoilt file is told now, not after the model has been loaded.
    transcripts.load(session)
    click.echo("loading the model ...", err=True)
    model, tokenizer = smollm.load(cache_dir(), lambda text: click.echo(text, err=True))
    try:
        from kvlake.cli.chat.talk import Talk, TalkSettings
    except ImportError as error:
        raise ConfigError(f"chat needs a package that is not installed ({error}); {smollm.CURE}") from error
    settings = TalkSettings(session=session, system=system, max_new_tokens=max_new_tokens)
    with own_or_make(store) as opened:
        talk = Talk(model, tokenizer, opened, transcripts, settings)
        talk.greet()
        talk.run(_lines())


def _lines() -> Iterator[str]:
    """Lines of a person, with a prompt; of a pipe, without."""
    asking = sys.stdin.isatty()
    while True:
        if asking:
            click.secho("> ", nl=False, bold=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            # As the end of the lines: the session is put to rest either way.
            line = ""
        if not line:
            click.echo()
            return
        yield line
