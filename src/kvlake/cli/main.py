"""The command `kvlake`: a name -> the command, loaded when it is asked for, and our errors as text with an exit code.

Exit codes: 0 done, 1 an error or something found wrong, 2 the command line itself cannot be understood.
"""

import errno
from importlib import import_module
from typing import Any

import click

import kvlake
from kvlake.base.errors import KvlakeError

COMMANDS = {
    "ls": "kvlake.cli.ls",
    "describe": "kvlake.cli.describe",
    "du": "kvlake.cli.du",
    "check": "kvlake.cli.check",
    "rm": "kvlake.cli.rm",
    "demo": "kvlake.cli.demo.command",
    "chat": "kvlake.cli.chat.command",
}
"""Name of a command, which is also the name of the click command in its module."""


class LazyGroup(click.Group):
    """A group whose members are imported when they are needed, so that `kvlake ls` does not wait for `kvlake demo`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # None makes click say that there is no such command, and exit with 2.
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KvlakeError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            # A closed pipe (`kvlake ls | head`) is click's to end quietly.
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kvlake.__version__, prog_name="kvlake")
def main() -> None:
    """Keeps the KV cache of language models in memory and on disk, so that no prompt is computed twice.

    Try `kvlake demo` first. STORE is a store's directory; without one, commands look at $KVLAKE_STORE, then at
    kvlake/store in the user's data directory.
    """
