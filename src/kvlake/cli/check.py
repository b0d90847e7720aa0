"""`kvlake check`: a store -> whether every block of it is whole and accounted for."""

from collections import Counter
from pathlib import Path

import click

from kvlake.base.units import format_bytes
from kvlake.cli.places import json_option, look, own, store_argument
from kvlake.cli.tables import count, print_json
from kvlake.tiers.tier import CheckReport, Problem


@click.command
@store_argument
@click.option("--fix", is_flag=True, help="Drop what is damaged; the owner of the store must be stopped for it.")
@json_option
@click.pass_context
def check(ctx: click.Context, store: Path, fix: bool, as_json: bool) -> None:
    """Read and verify every block of a store, and count its space once more.

    The exit code is 1 when something is wrong, and 0 when --fix has put it right. A damaged block is never served,
    with or without this command: it costs a computation.
    """
    reports = _repair(store) if fix else _audit(store)
    if as_json:
        print_json([{"tier": each.tier, "ok": each.ok, **_fields(each)} for each in reports])
    else:
        for report in reports:
            _print(report)
    # After the printing: a script may want to know what is wrong as well as that something is.
    if not all(report.ok for report in reports):
        ctx.exit(1)


def _repair(path: Path) -> list[CheckReport]:
    with own(path) as store:
        _announce(store.usage()["disk"].used_bytes)
        return store.check(fix=True)


def _audit(path: Path) -> list[CheckReport]:
    with look(path) as store:
        _announce(store.usage()["disk"].used_bytes)
        reports = store.check()
    if all(report.ok for report in reports):
        return reports
    # The owner may have moved a block while it was read; what is really damaged is damaged the second time too.
    with look(path) as store:
        again = store.check()
    seen = {(report.tier, problem) for report in reports for problem in report.problems}
    return [_only(report, seen) for report in again]


def _only(report: CheckReport, seen: set[tuple[str, Problem]]) -> CheckReport:
    problems = tuple(problem for problem in report.problems if (report.tier, problem) in seen)
    return CheckReport(tier=report.tier, blocks=report.blocks, nbytes=report.nbytes, problems=problems)


def _announce(nbytes: int) -> None:
    click.echo(f"reading {format_bytes(nbytes)} ...", err=True)


def _fields(report: CheckReport) -> dict[str, object]:
    problems = [{"key": each.key.hex() if each.key else None, "what": each.what} for each in report.problems]
    return {"blocks": report.blocks, "bytes": report.nbytes, "problems": problems, "fixed": report.fixed}


def _print(report: CheckReport) -> None:
    size = f"{count(report.blocks, 'block')}, {format_bytes(report.nbytes)}"
    if not report.problems:
        click.echo(f"{report.tier}: {size}: ok")
        return
    fixed = f", {report.fixed} fixed" if report.fixed else ""
    click.echo(f"{report.tier}: {size}: {count(len(report.problems), 'problem')}{fixed}")
    # One line per kind and an example: a lost segment is thousands of blocks.
    for what, times in Counter(problem.what for problem in report.problems).most_common():
        example = next(problem.key for problem in report.problems if problem.what == what)
        click.echo(f"  {times} x {what}" + (f" (such as block {example.hex()})" if example else ""))
