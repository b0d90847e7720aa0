"""Rounds of engines between controls: what is reported is the median of ratios taken seconds apart.

The disk of a virtual machine changes its speed severalfold within minutes, so a ratio of two medians says little. Here
the controls run before and after every engine; an engine's ratio in that round is its speed over their mean.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from engines.engine import Engine, Sample, Workload

OPERATIONS = ("write", "chain", "random")
_UNVERIFIED = {"control", "memcpy", "vllm-fs"}  # fio checks nothing; vLLM's process checks for itself
_PAGE_CACHE = {"lmdb", "files"}  # far from the disk's limit: between two controls together, to save time


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What is reported of one engine, block size and operation: medians of the repeats."""

    engine: str
    block_bytes: int
    operation: str
    gbps: float
    cpu_s_per_gb: float
    ratio_to_limit: float
    repeats: int
    spread: float

    def as_json(self) -> dict[str, object]:
        return {name: round(x, 4) if isinstance(x, float) else x for name, x in asdict(self).items()}


@dataclass(slots=True)
class Series:
    """Samples of one engine and operation at one block size, and its ratio to each control in each."""

    engine: str
    block_bytes: int
    operation: str
    samples: list[Sample] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)

    def add(self, sample: Sample, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Take in a sample, and the speed of each control right before and right after it."""
        self.samples.append(sample)
        for control, speed in before.items():
            mean = statistics.mean((speed, after[control]))
            self.ratios.setdefault(control, []).append(sample.gbps / mean)

    def ratio(self, control: str) -> float | None:
        return statistics.median(self.ratios[control]) if self.ratios.get(control) else None

    def figure(self, limit: str) -> Figure:
        speeds = [sample.gbps for sample in self.samples]
        gbps = statistics.median(speeds)
        return Figure(
            engine=self.engine, block_bytes=self.block_bytes, operation=self.operation, gbps=gbps,
            cpu_s_per_gb=statistics.median(sample.cpu_s_per_gb for sample in self.samples),
            ratio_to_limit=1.0 if self.engine == limit else self.ratio(limit) or 0.0,
            repeats=len(self.samples), spread=(max(speeds) - min(speeds)) / gbps,
        )  # fmt: skip


def run_once(engine: Engine, work: Workload, operation: str) -> Sample:
    """One timed operation, its result checked byte for byte."""
    if operation == "write":
        return engine.write()
    work.spoil_target()
    sample = engine.read(operation)
    if engine.name not in _UNVERIFIED and (wrong := work.wrong_blocks()):
        raise RuntimeError(f"{engine.name} returned wrong bytes in {wrong} of {work.count} blocks")
    return sample


class Rounds:
    """Measures some engines at one block size against the controls."""

    def __init__(self, work: Workload, controls: Sequence[Engine], engines: Sequence[Engine]) -> None:
        self._work, self._controls, self._engines = work, controls, engines
        alone = [[engine] for engine in engines if engine.name not in _PAGE_CACHE]
        together = [engine for engine in engines if engine.name in _PAGE_CACHE]
        self._turns = [*alone, together] if together else alone

    def measure(self, operation: str, repeats: int) -> list[Series]:
        series = {
            engine.name: Series(engine.name, self._work.block_bytes, operation)
            for engine in (*self._controls, *self._engines)
        }
        for repeat in range(repeats):
            self._round(operation, repeat, series)
        plain, limit = series.get("plain"), self._controls[0].name
        if plain is not None and limit != "plain":
            pairs = zip(plain.samples, series[limit].samples, strict=True)
            plain.ratios[limit] = [one.gbps / other.gbps for one, other in pairs]
        return list(series.values())

    def _round(self, operation: str, repeat: int, series: dict[str, Series]) -> None:
        """Control, engine, control, engine, ..., control; who is first changes with every round."""
        turn = repeat % max(len(self._turns), 1)
        before = self._sample_controls(operation, series)
        for engines in (*self._turns[turn:], *self._turns[:turn]):
            samples = {engine.name: run_once(engine, self._work, operation) for engine in engines}
            after = self._sample_controls(operation, series)
            for engine, sample in samples.items():
                series[engine].add(sample, before, after)
            before = after

    def _sample_controls(self, operation: str, series: dict[str, Series]) -> dict[str, float]:
        speeds = {}
        for control in self._controls:
            sample = run_once(control, self._work, operation)
            series[control.name].samples.append(sample)
            speeds[control.name] = sample.gbps
        return speeds


def paired(one: Series, other: Series) -> float:
    """Median over the rounds of one engine's speed over another's in the same round."""
    pairs = zip(one.samples, other.samples, strict=True)
    return statistics.median(mine.gbps / theirs.gbps for mine, theirs in pairs)
