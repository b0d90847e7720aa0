"""The demo's course -> its report: one dict, which is the JSON, the table and the page; and what in it went wrong."""

import time
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from kvlake.cli.demo.machine import machine, versions
from kvlake.cli.demo.run import Course, DemoSettings, Event

Report = dict[str, Any]

MODEL = "SmolLM2-135M-Instruct"

NEAR_2000 = (1800, 2200)
"""Prompt tokens of the sessions that stand for "about 2,000"."""

_COSTS = ("cold_s", "memory_s", "disk_s")


def build_report(settings: DemoSettings, course: Course) -> Report:
    """Everything that was measured."""
    sessions = _sessions(course)
    near = [each for each in sessions if NEAR_2000[0] <= each["tokens"] <= NEAR_2000[1]]
    # Those measured are left out: they were asked twice for the sake of the figures.
    requests = [*course.turns, *course.returned]
    ready = course.ready[0]
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(course.began_s)),
        "took_s": course.end["at_s"] - course.began_s,
        "model": {"name": MODEL, **{name: ready[name] for name in ("parameters", "dtype", "bytes_per_token")}},
        "settings": {
            "sessions": settings.sessions,
            "memory_bytes": settings.memory_bytes,
            "new_tokens": settings.new_tokens,
            "block_tokens": ready["block_tokens"],
            "seed": settings.seed,
        },
        "sessions": sessions,
        "medians": {"all": _medians(sessions), "near_2000": _medians(near)},
        "partly_in_memory": sum(not each["all_in_memory"] for each in sessions),
        "hit_rate": _hit_rate(requests),
        "hit_rate_returned": _hit_rate(course.returned),
        "restart": {"exit_code": course.exit_code, "away_s": course.ready[-1]["at_s"] - course.killed_s},
        "idle": _idle(course),
        "tiers": {"busiest": _tiers(_busiest(course)), "end": _tiers(course.end)},
        "counters": {"before_kill": course.active["counters"], "after_restart": course.end["counters"]},
        "timeline": _timeline(course),
        "marks": _marks(course),
        "machine": {**machine(settings.store), "io_mode": ready["io_mode"], "threads": ready["threads"]},
        "versions": versions() | ready["versions"],
    }


def complaints(report: Report) -> list[str]:
    """What must not be, in words; empty for a good run."""
    found = [
        f"{each['id']}: the answers differ, so something that was loaded is not what was computed"
        for each in report["sessions"]
        if not each["tokens_equal"]
    ]
    lacking = [each["id"] for each in report["sessions"] if not each["blocks_kept"]]
    if lacking:
        found.append(
            f"not every block was found each time ({', '.join(lacking)}), and so more was computed than need be; "
            "worker.log and the counters in report.json say why"
        )
    # The promise is about sessions worth keeping; where all are short, they are judged as they are.
    medians = report["medians"]["near_2000"] or report["medians"]["all"]
    if medians["disk_speedup"] < 1:
        found.append(
            f"from disk a session came back slower than computed anew ({medians['disk_speedup']:.2f}x); "
            "look at the disk's speed and at what else runs on this machine"
        )
    return found


def _sessions(course: Course) -> list[dict[str, Any]]:
    returned = {event["id"]: event for event in course.returned}
    return [_session(event, returned[event["id"]]) for event in course.measured]


def _session(measured: Event, returned: Event) -> dict[str, Any]:
    tokens, cached = len(measured["prompt"]), returned["cached_tokens"]
    return {
        "id": measured["id"],
        "tokens": tokens,
        "cached_tokens": cached,
        "computed_tokens": tokens - cached,
        "cold_s": measured["cold_s"],
        "memory_s": measured["memory_s"],
        "disk_s": returned["first_token_s"],
        "memory_load_s": measured["memory_load_s"],
        "disk_load_s": returned["load_s"],
        "blocks_kept": cached == measured["cached_tokens"],
        "loaded_bytes": returned["loaded_bytes"],
        "from_disk_bytes": max(0, returned["loaded_bytes"] - returned["in_memory_bytes"]),
        "all_in_memory": measured["in_memory"],
        "tokens_equal": measured["cold"] == measured["memory"] == returned["answer"],
        "answer": returned["text"].strip(),
    }


def _medians(sessions: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not sessions:
        return None
    found: dict[str, Any] = {name: median(each[name] for each in sessions) for name in _COSTS}
    # The median of the ratios, not the ratio of the medians: each session is compared with itself.
    for name in ("memory", "disk"):
        found[f"{name}_speedup"] = median(each["cold_s"] / each[f"{name}_s"] for each in sessions)
    return {"sessions": len(sessions), "tokens": median(each["tokens"] for each in sessions), **found}


def _hit_rate(requests: Iterable[Event]) -> float:
    asked = list(requests)
    rate: float = sum(event["cached_tokens"] for event in asked) / sum(event["prompt_tokens"] for event in asked)
    return rate


def _idle(course: Course) -> dict[str, int]:
    idle = course.idle
    return {
        "memory_bytes": idle["tiers"]["memory"]["used_bytes"],
        "device_bytes": idle["device_bytes"],
        "disk_bytes": idle["tiers"]["disk"]["used_bytes"],
        "on_disk_bytes": idle["on_disk_bytes"],
        "rss_before_bytes": course.ready[0]["rss_bytes"],
        "rss_active_bytes": course.active["rss_bytes"],
        "rss_idle_bytes": idle["rss_bytes"],
    }


def _busiest(course: Course) -> Event:
    """The moment at which memory and device held the most."""
    moments = [*course.samples, course.active]
    return max(moments, key=lambda each: each["tiers"]["memory"]["used_bytes"] + each["device_bytes"])


def _tiers(event: Event) -> dict[str, Mapping[str, int]]:
    return {"device": {"used_bytes": event["device_bytes"]}, **event["tiers"]}


def _timeline(course: Course) -> dict[str, list[float]]:
    """Columns: seconds since the start, and bytes by then."""
    gone = {"tiers": course.idle["tiers"], "device_bytes": 0, "rss_bytes": 0}
    # Between the kill and the restart nobody samples: there is no process, and the disk is as it was.
    away = [{**gone, "at_s": course.killed_s}, {**gone, "at_s": course.ready[-1]["at_s"] - 0.01}]
    moments = sorted([*course.samples, course.active, course.idle, *away, course.end], key=lambda each: each["at_s"])
    return {
        "at_s": [round(each["at_s"] - course.began_s, 2) for each in moments],
        "device_bytes": [each["device_bytes"] for each in moments],
        "memory_bytes": [each["tiers"]["memory"]["used_bytes"] for each in moments],
        "disk_bytes": [each["tiers"]["disk"]["used_bytes"] for each in moments],
        "rss_bytes": [each["rss_bytes"] for each in moments],
    }


def _marks(course: Course) -> list[dict[str, Any]]:
    """When each part of the course ended."""
    ends = {
        "load": course.ready[0]["at_s"],
        "turns 1 and 2": course.turns[-1]["at_s"],
        "turn 3, measured": course.measured[-1]["at_s"],
        "idle": course.idle["at_s"],
        "kill -9": course.killed_s,
        "restart": course.ready[-1]["at_s"],
        "turn 3, from disk": course.end["at_s"],
    }
    return [{"what": what, "at_s": round(at_s - course.began_s, 2)} for what, at_s in ends.items()]
