"""`kvlake ls`: a store -> its sessions, most recently used first."""

from pathlib import Path

import click

from kvlake.base.units import format_bytes
from kvlake.cli.places import json_option, look, store_argument, tenant_option
from kvlake.cli.tables import ago, count, print_json, print_table
from kvlake.store.session import SessionInfo


@click.command
@store_argument
@tenant_option
@json_option
def ls(store: Path, tenant: str | None, as_json: bool) -> None:
    """List the sessions of a store, most recently used first.

    Works beside the process that owns the store: it sees what that process has made durable, not what it has in memory.
    """
    with look(store) as opened:
        sessions = opened.sessions(tenant)
    # The store is closed before anything is printed: a pager may hold the pipe for hours.
    if as_json:
        print_json(sessions)
        return
    header = ("session", "tenant", "state", ">turns", ">tokens", ">blocks", ">bytes", ">shared", "last use")
    print_table(header, map(_row, sessions))
    click.echo(f"\n{count(len(sessions), 'session')} in {store}")


def _row(info: SessionInfo) -> tuple[object, ...]:
    # A block that is not present any more was evicted; it would be computed again.
    blocks = f"{info.blocks:,}" if info.present_blocks == info.blocks else f"{info.present_blocks:,} of {info.blocks:,}"
    nbytes, shared = format_bytes(sum(info.bytes_by_tier.values())), format_bytes(info.shared_bytes)
    last_use = ago(info.last_use_s)
    return info.id, info.tenant, info.state, info.turns, f"{info.tokens:,}", blocks, nbytes, shared, last_use
