"""A demo that took place on paper: the events of both workers, and what is made of them."""

import copy

import pytest

from kvlake.cli.demo.results import build_report
from kvlake.cli.demo.run import Course, DemoSettings

BEGAN_S = 1_800_000_000.0
NAMES = ("execmodel", "comparisons", "<odd> & named")
TOKENS = {"execmodel": 1900, "comparisons": 2100, "<odd> & named": 4000}
COLD_S = {"execmodel": 3.0, "comparisons": 4.0, "<odd> & named": 8.0}
BYTES_PER_TOKEN = 46_080


def sample(at_s, memory, disk, device=0, rss=900 << 20):
    tiers = {
        "memory": {"capacity_bytes": 384 << 20, "used_bytes": memory << 20, "blocks": memory},
        "disk": {"capacity_bytes": 3 << 30, "used_bytes": disk << 20, "blocks": disk},
    }
    return {"event": "sample", "at_s": BEGAN_S + at_s, "tiers": tiers, "device_bytes": device << 20, "rss_bytes": rss}


def ready(at_s):
    return {
        "event": "ready", "at_s": BEGAN_S + at_s, "load_s": 2.0, "rss_bytes": 800 << 20, "parameters": 134_515_008,
        "dtype": "float32", "bytes_per_token": BYTES_PER_TOKEN, "block_tokens": 64, "io_mode": "direct-aio",
        "threads": 2, "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    }  # fmt: skip


def request(name, at_s, cached, prompt):
    return {
        "id": name, "at_s": BEGAN_S + at_s, "prompt_tokens": prompt, "cached_tokens": cached, "first_token_s": 0.4,
        "load_s": 0.1, "loaded_bytes": cached * BYTES_PER_TOKEN, "source": "store",
    }  # fmt: skip


def make_course():
    course = Course(began_s=BEGAN_S)
    course.ready = [ready(2), ready(80)]
    for turn in (1, 2):
        for at, name in enumerate(NAMES):
            cached = 0 if turn == 1 else TOKENS[name] - 100
            course.turns.append(request(name, 10 * turn + at, cached, TOKENS[name] - 30) | {"turn": turn})
    for at, name in enumerate(NAMES):
        course.measured.append(
            {
                "id": name, "at_s": BEGAN_S + 40 + at, "prompt": [1] * TOKENS[name], "cold_s": COLD_S[name],
                "cold": [5, 6, 7], "memory": [5, 6, 7], "memory_s": 0.2, "memory_load_s": 0.05,
                "cached_tokens": TOKENS[name] - 40, "in_memory": True,
            }
        )  # fmt: skip
        extra = {"in_memory_bytes": 0, "answer": [5, 6, 7], "text": " It says <b>no</b>."}
        course.returned.append(request(name, 90 + at, TOKENS[name] - 40, TOKENS[name]) | extra)
    course.active = sample(60, 300, 350, device=90) | {"counters": {"get_hit": 1}}
    course.idle = sample(62, 0, 350) | {"on_disk_bytes": 400 << 20}
    course.exit_code, course.killed_s = -9, BEGAN_S + 63
    course.end = sample(100, 20, 360, device=95) | {"counters": {"get_hit": 2}}
    course.samples = [sample(20, 100, 90, device=80), sample(30, 310, 250, device=85), sample(95, 10, 355)]
    return course


@pytest.fixture
def course():
    return make_course()


@pytest.fixture
def settings(tmp_path):
    return DemoSettings(out=tmp_path / "out", cache_dir=tmp_path / "cache", sessions=3)


@pytest.fixture
def report(settings, course):
    return copy.deepcopy(build_report(settings, course))
