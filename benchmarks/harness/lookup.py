"""Look-up, reopening and the index's memory: a store of 100,000 small blocks, closed and opened in new processes."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engines.engine import chain, drop_cache, empty_dir

import kvlake
from kvlake.keys.block import BlockKey, root_key
from kvlake.tiers.tier import Block, Put

VALUE_BYTES, CHAIN_BLOCKS = 4096, 2048
_BENCHMARKS = Path(__file__).resolve().parents[1]
_CAPACITY = 8 << 30  # the journal's share of a smaller one would not hold the records of so many small blocks
_CALLS = 200


def open_it(directory: Path) -> kvlake.Store:
    return kvlake.open_store(directory, memory_bytes=0, disk_bytes=_CAPACITY)


def lookup_section(directory: Path, repeats: int, blocks: int) -> dict[str, Any]:
    full, empty = empty_dir(directory / "lookup"), empty_dir(directory / "lookup-empty")
    open_it(empty).close()
    store = open_it(full)
    build_s = _build(store, blocks)
    section: dict[str, Any] = {"blocks": blocks, "value_bytes": VALUE_BYTES, "build_s": round(build_s, 2)}
    section["match"] = _match(store)
    store.close()
    section["reopen"] = _reopen(full, empty, repeats, blocks)
    return section


def _build(store: kvlake.Store, blocks: int) -> float:
    """Chains of 2,048 blocks of 4 KiB; the first is `session_keys(0)`."""
    value, start = os.urandom(VALUE_BYTES), time.perf_counter()
    for number in range(-(-blocks // CHAIN_BLOCKS)):
        keys = session_keys(number)[: blocks - number * CHAIN_BLOCKS]
        parents = [root_key(bytes(16)), *keys]
        links = enumerate(zip(keys, parents, strict=False))
        outcomes = store.put([Block(key, parent, depth, value) for depth, (key, parent) in links])
        if any(outcome is not Put.STORED for outcome in outcomes):
            raise RuntimeError(f"chain {number} was not stored: {set(outcomes)}")
    if not store.flush():
        raise RuntimeError("flush did not finish")
    return time.perf_counter() - start


def session_keys(number: int) -> list[BlockKey]:
    return [BlockKey(key) for key in chain(CHAIN_BLOCKS, number.to_bytes(4, "little"))]


def _match(store: kvlake.Store) -> dict[str, Any]:
    """Microseconds per look-up of a 2,048-block prefix: all there, none there, the first half there."""
    present, absent = session_keys(0), session_keys(1_000_000)
    half = CHAIN_BLOCKS // 2
    cases = {"all": present, "none": absent, "half": present[:half] + absent[half:]}
    wanted = {"all": CHAIN_BLOCKS, "none": 0, "half": half}
    section: dict[str, Any] = {"prefix_blocks": CHAIN_BLOCKS}
    for name, keys in cases.items():
        if store.match(keys) != wanted[name]:
            raise RuntimeError(f"match of {name}: {store.match(keys)} blocks, expected {wanted[name]}")
        section[f"{name}_us"] = round(_median_us(store.match, keys), 2)
    scan = getattr(store, "match_scan", None)
    if scan is not None:
        section["scan_us_per_key"] = round(_median_us(scan, present) / CHAIN_BLOCKS, 3)
    return section


def _median_us(call: Callable[[Sequence[BlockKey]], int], keys: Sequence[BlockKey]) -> float:
    """Each call gets keys that nobody has hashed yet, as a request does."""
    times = []
    for _ in range(_CALLS):
        keys = [BlockKey(key[:8] + key[8:]) for key in keys]
        start = time.perf_counter()
        call(keys)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _reopen(full: Path, empty: Path, repeats: int, blocks: int) -> dict[str, Any]:
    """Each opening is in a new process, its files out of the page cache."""
    opened = [_child(full) for _ in range(repeats)]
    traced, nothing = _child(full, "trace"), _child(empty, "trace")
    bare = _child(empty)
    rss = statistics.median(child["rss_bytes"] for child in opened) - bare["rss_bytes"]
    return {
        "seconds": round(statistics.median(child["seconds"] for child in opened), 3),
        "all_seconds": [round(child["seconds"], 3) for child in opened],
        "python_bytes_per_block": round((traced["traced_bytes"] - nothing["traced_bytes"]) / blocks, 1),
        "rss_bytes_per_block": round(rss / blocks, 1),
    }


def _child(directory: Path, *options: str) -> dict[str, Any]:
    drop_cache(directory)
    command = [sys.executable, "-m", "harness.lookup", str(directory), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_BENCHMARKS), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(directory: Path, trace: bool) -> None:
    """Open a store once and say what it took; with `trace`, count the bytes that Python allocated and kept."""
    import tracemalloc

    if trace:
        tracemalloc.start()
    before, start = _rss_bytes(), time.perf_counter()
    store = open_it(directory)
    seconds = time.perf_counter() - start
    kept = tracemalloc.get_traced_memory()[0] if trace else 0
    print(json.dumps({"seconds": seconds, "rss_bytes": _rss_bytes() - before, "traced_bytes": kept}))
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "trace" in sys.argv[2:])
