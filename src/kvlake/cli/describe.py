"""`kvlake describe`: a session -> all that the store knows of it."""

import time
from pathlib import Path

import click

from kvlake.base.units import format_bytes, format_seconds
from kvlake.cli.places import json_option, look, named_store_argument
from kvlake.cli.tables import ago, print_json
from kvlake.store.session import SessionInfo


@click.command
@named_store_argument
@click.argument("session")
@json_option
def describe(store: Path, session: str, as_json: bool) -> None:
    """Show all that a store knows of one session: its turns, its blocks and where their bytes lie."""
    with look(store) as opened:
        info = opened.find_session(session).describe()
    if as_json:
        print_json(info)
        return
    for name, value in _facts(info).items():
        click.echo(f"{name:<10} {value}")


def _facts(info: SessionInfo) -> dict[str, str]:
    facts = {
        "session": info.id,
        "tenant": info.tenant,
        "state": info.state + (f", stopped by {info.stop_reason}" if info.stop_reason else ""),
        "turns": f"{info.turns:,}, the last {ago(info.last_use_s)}, the session made {ago(info.created_s)}",
        "tokens": f"{info.tokens:,}",
        "blocks": f"{info.present_blocks:,} of {info.blocks:,} present",
    }
    # A store that is only looked at has no memory tier, and so no line for it.
    facts |= {tier: format_bytes(nbytes) for tier, nbytes in info.bytes_by_tier.items()}
    facts["shared"] = f"{format_bytes(info.shared_bytes)} are in another session too, and held once"
    # 0 and times gone by mean the same: nothing holds it, nothing ends it.
    for name, until_s in (("pinned", info.pinned_until_s), ("expires", info.expires_s)):
        if until_s > time.time():
            facts[name] = f"for {format_seconds(until_s - time.time())} more"
    if info.pending_tool_call:
        facts["waiting"] = "a tool call is under way"
    return facts
