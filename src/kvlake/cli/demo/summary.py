"""What the demo prints when it is done: the report for a terminal."""

from pathlib import Path
from typing import Any

import click

from kvlake.base.units import format_bytes, format_seconds
from kvlake.cli.tables import print_table


def print_summary(report: dict[str, Any]) -> None:
    """Two tables, and what they come to."""
    click.echo("\nTime to the first token of the returning turn, and how much sooner than computed anew:\n")
    header = ("session", ">tokens", ">anew", ">memory", ">disk", ">memory", ">disk", "answers")
    print_table(header, map(_session, sorted(report["sessions"], key=lambda each: each["tokens"])))
    click.echo()
    # None where no session was of that length.
    for name, medians in report["medians"].items():
        if medians:
            click.echo(_median(name, medians))
    click.echo()
    print_table(("tier", ">capacity", ">at the busiest", ">all idle", ">at the end"), _tiers(report))
    idle = report["idle"]
    rss = [format_bytes(idle[f"rss_{when}_bytes"]) for when in ("before", "active", "idle")]
    click.echo(f"\nprocess: {rss[0]} before the first session, {rss[1]} with sessions in use, {rss[2]} with all idle")
    click.echo(
        f"hit rate: {report['hit_rate']:.1%} of the tokens of all prompts, "
        f"{report['hit_rate_returned']:.1%} of those of returning sessions"
    )
    if report["partly_in_memory"]:
        click.echo(f"{report['partly_in_memory']} sessions did not fit into memory whole when measured from there")
    click.echo(f"took {format_seconds(report['took_s'])}")


def print_files(out: Path, *, keep: bool) -> None:
    """What was left, and what to do with it."""
    click.echo(f"\nreport: {out / 'report.html'} and {out / 'report.json'}")
    if keep:
        click.echo("the store is still there; look at it with")
        for command in ("ls", "du", "check"):
            click.echo(f"  kvlake {command} {out / 'store'}")


def _session(each: dict[str, Any]) -> tuple[str, ...]:
    times = [f"{each[way]:.2f} s" for way in ("cold_s", "memory_s", "disk_s")]
    ratios = [f"{each['cold_s'] / each[way]:.1f}x" for way in ("memory_s", "disk_s")]
    return each["id"], f"{each['tokens']:,}", *times, *ratios, "equal" if each["tokens_equal"] else "DIFFER"


def _median(name: str, medians: dict[str, Any]) -> str:
    which = "all sessions" if name == "all" else f"the {medians['sessions']} with about 2,000 tokens"
    return (
        f"median of {which}: {medians['cold_s']:.2f} s anew, {medians['memory_s']:.2f} s from memory "
        f"({medians['memory_speedup']:.1f}x), {medians['disk_s']:.2f} s from disk ({medians['disk_speedup']:.1f}x)"
    )


def _tiers(report: dict[str, Any]) -> list[tuple[str, ...]]:
    busiest, end, idle = report["tiers"]["busiest"], report["tiers"]["end"], report["idle"]
    rows = []
    for tier in ("device", "memory", "disk"):
        capacity = format_bytes(busiest[tier]["capacity_bytes"]) if tier != "device" else "1 session"
        held = (busiest[tier]["used_bytes"], idle[f"{tier}_bytes"], end[tier]["used_bytes"])
        rows.append((tier, capacity, *map(format_bytes, held)))
    return rows
