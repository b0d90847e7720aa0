"""The bars that the store set itself, and whether this run meets them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.measure import OPERATIONS, Series, paired

SMALL, LARGE = 64 << 10, 1_228_800
KVLAKE = ("kvlake-disk", "kvlake-store")
_CPU_S_PER_GB = {SMALL: {"read": 0.5, "write": 0.4}, LARGE: {"read": 0.3, "write": 0.3}}
_OVER_VLLM = {"random": 1.2, "chain": 1.5, "write": 1.6}
_RATIO, _VLLM_CPU, _RAMFS = 0.80, 1 / 3, 0.70
_MATCH_US, _SCAN_US, _REOPEN_S = 20.0, 0.7, 1.5

Table = Mapping[tuple[str, int, str], Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One promise: `value` must be at least (or at most) `limit`."""

    what: str
    value: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def table_of(series: Iterable[Series]) -> Table:
    return {(one.engine, one.block_bytes, one.operation): one for one in series}


def disk_bars(table: Table, limit: str) -> Iterator[Bar]:
    """Speed against both controls at every block size, and CPU at the two sizes that have a bar."""
    for (engine, block_bytes, operation), series in table.items():
        if engine not in KVLAKE:
            continue
        where = f"{engine} {operation} at {block_bytes / 1024:g} KiB"
        figure = series.figure(limit)
        yield Bar(what=f"{where} / {limit}", value=figure.ratio_to_limit, limit=_RATIO, at_least=True)
        plain = series.ratio("plain")
        if plain is not None and limit != "plain":
            yield Bar(what=f"{where} / plain", value=plain, limit=_RATIO, at_least=True)
        if block_bytes in _CPU_S_PER_GB:
            most = _CPU_S_PER_GB[block_bytes]["write" if operation == "write" else "read"]
            yield Bar(what=f"{where}, CPU s/GB", value=figure.cpu_s_per_gb, limit=most, at_least=False)


def peer_bars(table: Table, limit: str) -> Iterator[Bar]:
    """Speed and CPU against vLLM's file tier at 64 KiB, round by round."""
    for engine in KVLAKE:
        for operation in OPERATIONS:
            mine = table.get((engine, SMALL, operation))
            theirs = table.get(("vllm-fs", SMALL, operation))
            if mine is None or theirs is None:
                continue
            where = f"{engine} {operation} at 64 KiB"
            faster = paired(mine, theirs)
            yield Bar(what=f"{where} / vllm-fs", value=faster, limit=_OVER_VLLM[operation], at_least=True)
            cpu = mine.figure(limit).cpu_s_per_gb / theirs.figure(limit).cpu_s_per_gb
            yield Bar(what=f"{where}, CPU / vllm-fs", value=cpu, limit=_VLLM_CPU, at_least=False)


def memory_bars(series: Iterable[Series]) -> Iterator[Bar]:
    """Speed on a RAM file system against a memory copy."""
    for one in series:
        if one.engine in KVLAKE:
            ratio = one.ratio("memcpy") or 0.0
            yield Bar(
                what=f"{one.engine} {one.operation} on tmpfs / memcpy",
                value=ratio,
                limit=_RAMFS,
                at_least=True,
            )


def lookup_bars(section: Mapping[str, Any]) -> Iterator[Bar]:
    match = section["match"]
    for case in ("all", "none"):
        value = match[f"{case}_us"]
        yield Bar(what=f"match of 2,048 blocks, {case} there, us", value=value, limit=_MATCH_US, at_least=False)
    if "scan_us_per_key" in match:
        yield Bar(what="scan, us per key", value=match["scan_us_per_key"], limit=_SCAN_US, at_least=False)
    seconds = section["reopen"]["seconds"]
    yield Bar(what=f"reopen {section['blocks']:,} blocks, s", value=seconds, limit=_REOPEN_S, at_least=False)
