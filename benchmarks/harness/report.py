"""Tables for people and JSON for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harness.bars import Bar
from harness.measure import OPERATIONS, Series


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes % (1 << 20) == 0 else f"{nbytes / 1024:g} KiB"


def disk_tables(series: Sequence[Series], limit: str) -> str:
    """One table per block size: ratios first, then CPU, then speed."""
    parts = []
    for block_bytes in dict.fromkeys(one.block_bytes for one in series):
        here = [one for one in series if one.block_bytes == block_bytes]
        rows = [_row(name, here, limit) for name in dict.fromkeys(one.engine for one in here)]
        head = ["engine", *(f"{op} ratio" for op in OPERATIONS), *(f"{op} CPU s/GB" for op in OPERATIONS),
                *(f"{op} GB/s" for op in OPERATIONS)]  # fmt: skip
        inside = ", in parentheses to plain" if limit != "plain" else ""
        title = f"{size(block_bytes)} blocks: ratio to {limit}{inside}"
        parts.append(f"{title}\n{tabulate(rows, head, disable_numparse=True)}")
    return "\n\n".join(parts)


def _row(engine: str, series: Iterable[Series], limit: str) -> list[str]:
    mine = {one.operation: one for one in series if one.engine == engine}
    figures = {name: one.figure(limit) for name, one in mine.items()}

    def ratio(operation: str) -> str:
        plain = mine[operation].ratio("plain")
        inside = f" ({plain:.2f})" if plain is not None and limit != "plain" else ""
        return f"{figures[operation].ratio_to_limit:.2f}{inside}"

    known = [operation for operation in OPERATIONS if operation in mine]
    cells = [ratio(operation) for operation in known]
    cells += [f"{figures[operation].cpu_s_per_gb:.2f}" for operation in known]
    cells += [f"{figures[operation].gbps:.2f} ±{figures[operation].spread / 2:.0%}" for operation in known]
    return [engine, *cells]


def extra_rows(series: Iterable[Series], limit: str) -> str:
    """Operations that only one engine has."""
    lines = []
    for one in series:
        if one.operation not in OPERATIONS:
            figure = one.figure(limit)
            lines.append(
                f"{one.engine} {one.operation} at {size(one.block_bytes)}: ratio {figure.ratio_to_limit:.2f}, "
                f"{figure.cpu_s_per_gb:.2f} CPU s/GB, {figure.gbps:.2f} GB/s"
            )
    return "\n".join(lines)


def sign(bar: Bar) -> str:
    return ">=" if bar.at_least else "<="


def bars_table(bars: Sequence[Bar]) -> str:
    rows = [
        ["pass" if bar.met else "FAIL", bar.what, f"{bar.value:.3g}", f"{sign(bar)} {bar.limit:.3g}"] for bar in bars
    ]
    met = sum(bar.met for bar in bars)
    return f"bars: {met} of {len(bars)} met\n{tabulate(rows, ['', 'bar', 'measured', 'wanted'], disable_numparse=True)}"


def facts_table(facts: Mapping[str, object]) -> str:
    return str(tabulate([[name.replace("_", " "), value] for name, value in facts.items()], tablefmt="plain"))


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
