"""`kvlake rm`: sessions of a store -> gone, with every block that no other session holds, their bytes overwritten."""

from pathlib import Path
from typing import Any

import click

from kvlake.base.errors import SessionNotFoundError
from kvlake.base.units import format_bytes
from kvlake.cli.places import json_option, named_store_argument, own, tenant_option
from kvlake.cli.tables import count, print_json
from kvlake.store.session import SessionInfo
from kvlake.store.store import Store


@click.command
@named_store_argument
@click.argument("sessions", nargs=-1)
@tenant_option
@click.option("--all", "everything", is_flag=True, help="Every session, of the tenant if one is named.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def rm(ctx: click.Context, /, store: Path, sessions: tuple[str, ...], **options: Any) -> None:
    """Delete sessions, with every block that no other session holds, and overwrite its bytes.

    The exit code is 1 when the disk did not confirm that all of it is overwritten.
    """
    # Names and --all together would be a guess at what is meant, and this cannot be undone.
    if bool(sessions) == options["everything"]:
        raise click.UsageError("name the sessions to delete, or give --all")
    with own(store) as opened:
        chosen = _choose(opened, sessions, options["tenant"])
        if not options["yes"] and chosen:
            _ask(chosen)
        done = _delete(opened, chosen, quiet=options["as_json"])
    if options["as_json"]:
        print_json(done)
    else:
        total = sum(each["bytes"] for each in done)
        blocks = count(sum(each["blocks"] for each in done), "block")
        click.echo(f"{count(len(done), 'session')} deleted: {blocks}, {format_bytes(total)}")
    if not all(each["wiped"] for each in done):
        ctx.exit(1)


def _choose(store: Store, names: tuple[str, ...], tenant: str | None) -> list[SessionInfo]:
    """All or nothing: a name that is not there stops the command before anything is deleted."""
    found = {info.id: info for info in store.sessions(tenant)}
    if not names:
        # Of none, with --all: an empty store is not an error to a script that wants it empty.
        return list(found.values())
    for name in names:
        if name not in found:
            whose = f" of tenant {tenant!r}" if tenant is not None else ""
            raise SessionNotFoundError(f"no session {name!r}{whose}; `kvlake ls` lists the sessions of a store")
    # A name given twice is deleted once.
    return [found[name] for name in dict.fromkeys(names)]


def _ask(chosen: list[SessionInfo]) -> None:
    for info in chosen:
        nbytes = sum(info.bytes_by_tier.values())
        shared = f", {format_bytes(info.shared_bytes)} of it shared" if info.shared_bytes else ""
        click.echo(f"  {info.id}: {info.tokens:,} tokens, {format_bytes(nbytes)}{shared}", err=True)
    click.confirm(f"Delete {count(len(chosen), 'session')}?", abort=True, err=True)


def _delete(store: Store, chosen: list[SessionInfo], *, quiet: bool) -> list[dict[str, Any]]:
    done = []
    for info in chosen:
        gone = store.find_session(info.id).delete()
        done.append({"id": info.id, "blocks": gone.blocks, "bytes": gone.nbytes, "wiped": gone.wiped})
        if not quiet:
            wiped = "overwritten" if gone.wiped else "NOT confirmed as overwritten: check the disk, then `kvlake check`"
            click.echo(f"{info.id}: {count(gone.blocks, 'block')}, {format_bytes(gone.nbytes)} {wiped}")
    return done
