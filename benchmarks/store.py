"""Measure the store against the machine's limit and its peers, side by side: `make bench`.

docs/benchmarks.md says how to read the result.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import ENGINES, make_engine
from engines.engine import Engine, Memory, UnavailableError, Workload, make_workload, touch_free_memory
from harness.bars import LARGE, SMALL, Bar, disk_bars, lookup_bars, memory_bars, peer_bars, table_of
from harness.machine import load, machine_facts
from harness.measure import OPERATIONS, Rounds, Series
from harness.report import bars_table, disk_tables, extra_rows, facts_table, size, write_json

BLOCK_BYTES = (SMALL, 256 << 10, LARGE, 4 << 20)
LOOKUP_BLOCKS = 100_000
_RAM_TOUCHED_BYTES = 4 << 30
_RAM = Path("/dev/shm")


@dataclass(slots=True)
class Bench:
    """One run: what was asked, what was found."""

    given: argparse.Namespace
    directory: Path
    started: float = field(default_factory=time.monotonic)
    limit: str = "control"
    series: list[Series] = field(default_factory=list)
    memory_series: list[Series] = field(default_factory=list)
    lookup: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:4.0f} s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def engines(self, names: Sequence[str], work: Workload, directory: Path) -> Iterator[list[Engine]]:
        """Those of the engines that run here; why the others do not is noted."""
        with ExitStack() as stack:
            made = []
            for name in names:
                try:
                    engine = make_engine(name, work, directory)
                except UnavailableError as error:
                    if name not in self.notes:
                        self.say(f"{name} is left out: {error}")
                    self.notes[name] = f"left out: {error}"
                    continue
                stack.callback(engine.close)
                made.append(engine)
            yield made
            where = "" if directory == self.directory else f" in {directory.parent}"
            self.notes.update({engine.name + where: engine.note() for engine in made})

    def disk(self, memory: Memory, block_bytes: int) -> None:
        """All engines at one block size."""
        work = make_workload(memory, block_bytes)
        with (
            self.engines(["fio", "plain"], work, self.directory) as controls,
            self.engines(self.given.engines, work, self.directory) as engines,
        ):
            self.limit = controls[0].name
            rounds = Rounds(work, controls, engines)
            for operation in OPERATIONS:
                self.say(f"{size(block_bytes)} {operation}: {self.given.repeats} rounds of {len(engines)} engines")
                self.series += rounds.measure(operation, self.given.repeats)
            alone = [engine for engine in engines if engine.name == "vllm-fs"]
            if alone and block_bytes == SMALL:
                for operation in ("chain-jobs", "random-one-job"):
                    found = Rounds(work, controls, alone).measure(operation, self.given.repeats)
                    self.series += [one for one in found if one.engine == "vllm-fs"]

    def ram(self, memory: Memory) -> None:
        """The disk tier on a RAM file system, where only its software is left, against a memory copy."""
        self.say(f"RAM file system, {size(LARGE)} blocks")
        touch_free_memory(_RAM_TOUCHED_BYTES)
        work = make_workload(memory, LARGE)
        with (
            tempfile.TemporaryDirectory(dir=_RAM, prefix="kvlake-bench-") as folder,
            self.engines(["memcpy", "plain"], work, Path(folder)) as controls,
            self.engines(["kvlake-disk"], work, Path(folder)) as engines,
        ):
            rounds = Rounds(work, controls, engines)
            for operation in OPERATIONS:
                self.memory_series += rounds.measure(operation, self.given.repeats)

    def bars(self) -> list[Bar]:
        table = table_of(self.series)
        bars = [
            *disk_bars(table, self.limit),
            *peer_bars(table, self.limit),
            *memory_bars(self.memory_series),
        ]
        return [*bars, *lookup_bars(self.lookup)] if self.lookup else bars


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where the JSON goes")
    parser.add_argument(
        "--dir", type=Path, help="disk to measure: the stores are made, and removed, below it (default: OUT)"
    )
    parser.add_argument("--mib", type=int, default=512, help="MiB per engine and block size")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--blocks", help="block sizes in bytes, with commas between")
    parser.add_argument("--engines", default=",".join(ENGINES), help="with commas between")
    parser.add_argument("--quick", action="store_true", help="two block sizes, 64 MiB, 2 repeats: does it run?")
    given = parser.parse_args()
    given.engines = given.engines.split(",")
    unknown = set(given.engines) - set(ENGINES)
    if unknown:
        parser.error(f"no engine {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    given.blocks = [int(word) for word in given.blocks.split(",")] if given.blocks else list(BLOCK_BYTES)
    if given.quick:
        given.mib, given.repeats, given.blocks = 64, 2, [SMALL, LARGE]
    return given


def run(bench: Bench) -> None:
    memory = Memory.of(bench.given.mib << 20)
    if "kvlake-store" in bench.given.engines:
        from harness.lookup import lookup_section

        blocks = LOOKUP_BLOCKS // 10 if bench.given.quick else LOOKUP_BLOCKS
        bench.say(f"look-up and reopening, {blocks:,} blocks")
        bench.lookup = lookup_section(bench.directory, bench.given.repeats, blocks)
    if "kvlake-disk" in bench.given.engines:
        bench.ram(memory)
    for block_bytes in bench.given.blocks:
        bench.disk(memory, block_bytes)


def report(bench: Bench, facts: dict[str, object]) -> None:
    bars, out = bench.bars(), bench.given.out
    write_json(out / "store.json", [one.figure(bench.limit).as_json() for one in bench.series])
    memory = [one.figure("memcpy").as_json() for one in bench.memory_series]
    plain = [
        {
            "engine": one.engine,
            "block_bytes": one.block_bytes,
            "operation": one.operation,
            "ratio": one.ratio("plain"),
        }
        for one in bench.series
    ]
    extra = {
        "machine": facts,
        "limit": bench.limit,
        "engines": bench.notes,
        "ratio_to_plain": plain,
        "ramfs": memory,
    }
    told = [{"what": bar.what, "value": bar.value, "limit": bar.limit, "met": bar.met} for bar in bars]
    write_json(out / "extra.json", {**extra, **bench.lookup, "bars": told})
    parts = [disk_tables(bench.series, bench.limit), extra_rows(bench.series, bench.limit)]
    parts += [disk_tables(bench.memory_series, "memcpy")] if bench.memory_series else []
    parts += [facts_table({**bench.lookup.get("match", {}), **bench.lookup.get("reopen", {})})]
    parts += [bars_table(bars), facts_table(bench.notes), facts_table(facts)]
    print("\n\n".join(part for part in parts if part))
    print(f"\n{out}/store.json and {out}/extra.json hold all of it.")


def main() -> None:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    place = given.dir or given.out
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix="data-") as folder:
        bench = Bench(given, Path(folder))
        facts = machine_facts(place)
        run(bench)
    report(bench, {**facts, "load_after": load(), "seconds": round(time.monotonic() - bench.started)})


if __name__ == "__main__":
    main()
