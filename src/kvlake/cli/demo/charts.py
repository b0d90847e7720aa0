"""The pictures of the report: figures -> SVG that takes its colours from the page around it, by light and by dark."""

import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from kvlake.base.units import MIB

if TYPE_CHECKING:
    from kvlake.cli.demo.results import Report

# Stand-ins: matplotlib wants colours; the page has variables of these names.
_NAMES = ("ink", "faint", "cold", "memory", "disk", "device")
_COLOURS = {name: f"#0102{number:02x}" for number, name in enumerate(_NAMES, 3)}
_WAYS = (("cold", "computed anew"), ("memory", "from memory"), ("disk", "from disk, after kill -9"))
_SECONDS = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]
_WIDTH_IN = 5.2
"""Narrow, so that the letters can still be read when a phone shrinks it."""

_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _COLOURS["ink"],
    "axes.edgecolor": _COLOURS["faint"],
    "axes.labelcolor": _COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _COLOURS["ink"],
    "ytick.color": _COLOURS["ink"],
    "grid.color": _COLOURS["faint"],
    "grid.linewidth": 0.5,
    "legend.frameon": False,
}


def first_tokens(report: "Report") -> str:
    """Three bars for each session, the time to its first token, on a logarithmic scale."""
    sessions = sorted(report["sessions"], key=lambda each: -each["tokens"])
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "first"}):
        figure = Figure((_WIDTH_IN, 0.8 + 0.46 * len(sessions)), layout="constrained")
        axes = figure.subplots()
        # Rows count from below, so the first way is drawn uppermost and the longest session lowermost.
        for step, (way, label) in enumerate(_WAYS):
            times = [each[f"{way}_s"] for each in sessions]
            rows = [row + 0.27 * (1 - step) for row in range(len(sessions))]
            axes.barh(rows, times, 0.25, color=_COLOURS[way], label=label)
            for row, time_s in zip(rows, times, strict=True):
                axes.text(time_s * 1.04, row, f"{time_s:.2f}", va="center", fontsize=6.5)
        _label_sessions(axes, sessions)
        figure.legend(loc="outside upper left", ncols=3, fontsize=8, handlelength=1, columnspacing=1.2)
        return _svg(figure)


def bytes_by_tier(report: "Report") -> str:
    """What device, memory, disk and the whole process held, over time."""
    line = report["timeline"]
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "tiers"}):
        figure = Figure((_WIDTH_IN, 3.1), layout="constrained")
        axes = figure.subplots()
        # One over the other and not stacked: what is in memory is on disk as well.
        for tier, label in (("disk", "disk"), ("memory", "memory tier"), ("device", "device")):
            held = _mib(line[f"{tier}_bytes"])
            axes.fill_between(line["at_s"], held, step="post", color=_COLOURS[tier], alpha=0.18, linewidth=0)
            axes.step(line["at_s"], held, where="post", color=_COLOURS[tier], linewidth=1.4, label=label)
        process = _mib(line["rss_bytes"])
        dashed = {"linestyle": (0, (1, 1.5)), "linewidth": 1, "color": _COLOURS["ink"]}
        axes.step(line["at_s"], process, where="post", label="the whole process (RSS)", **dashed)
        axes.set(xlabel="seconds", ylabel="MiB", xlim=(0, max(line["at_s"])), ylim=(0, None))
        _mark(axes, report["marks"])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper left", ncols=4, fontsize=8, handlelength=1.4, columnspacing=1.2)
        return _svg(figure)


def _label_sessions(axes: Any, sessions: list[dict[str, Any]]) -> None:
    times = [each[f"{way}_s"] for each in sessions for way, _ in _WAYS]
    # A logarithmic axis has no zero to begin at; it begins a little before the shortest bar's end.
    low, high = min(times) / 1.6, max(times) * 1.35
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xlim(low, high)
    ticks = [tick for tick in _SECONDS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    names = [f"{each['id']}\n{each['tokens']:,} tokens" for each in sessions]
    axes.set_yticks(range(len(sessions)), names, fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.55, len(sessions) - 0.45)
    axes.set_xlabel("seconds to the first token (logarithmic)")
    axes.grid(axis="x")
    axes.set_axisbelow(True)


def _mark(axes: Any, marks: Iterable[dict[str, Any]]) -> None:
    """Say above the plot what went on when; a part too short for its name is left to the line that ends it."""
    style = {"transform": axes.get_xaxis_transform(), "va": "bottom", "ha": "center", "fontsize": 7}
    span_s = axes.get_xlim()[1]
    began_s = 0.0
    for mark in marks:
        killed = mark["what"] == "kill -9"
        colour, ended_s = _COLOURS["cold" if killed else "faint"], mark["at_s"]
        axes.axvline(ended_s, color=colour, linewidth=1.4 if killed else 0.7)
        if killed:
            axes.text(ended_s, 1.08, mark["what"], **style | {"color": colour, "weight": "bold"})
        elif ended_s - began_s > span_s * 0.012 * len(mark["what"]):
            axes.text((began_s + ended_s) / 2, 1.01, mark["what"], **style)
        began_s = ended_s


def _mib(column: Iterable[float]) -> list[float]:
    return [nbytes / MIB for nbytes in column]


def _svg(figure: Any) -> str:
    """As an element of a page: no prologue, no metadata, no size of its own, the page's colours and letters."""
    # Without a date, so that the same figures give the same page.
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:xmlns(?::\w+)?|version)="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text)
    # Both pictures are in one page, so that a name which nothing refers to would only be there twice.
    wanted = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    for name, stand_in in _COLOURS.items():
        text = text.replace(stand_in, f"var(--{name})")
    return text.strip()
