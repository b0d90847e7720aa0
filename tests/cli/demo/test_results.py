"""Events -> report: the sums, the medians, and what is complained about."""

import json

import pytest

from kvlake.cli.demo.results import build_report, complaints


def test_it_has_what_is_promised_and_is_json(report):
    again = json.loads(json.dumps(report))
    assert again["sessions"][0].keys() >= {"id", "tokens", "cold_s", "memory_s", "disk_s", "tokens_equal"}
    assert again["idle"] == {
        "memory_bytes": 0,
        "device_bytes": 0,
        "disk_bytes": 350 << 20,
        "on_disk_bytes": 400 << 20,
        "rss_before_bytes": 800 << 20,
        "rss_active_bytes": 900 << 20,
        "rss_idle_bytes": 900 << 20,
    }
    assert again["machine"].keys() >= {"processor", "cores", "memory_bytes", "kernel", "file_system", "io_mode"}
    assert again["versions"].keys() == {"kvlake", "python", "torch", "transformers"}
    assert again["restart"] == {"exit_code": -9, "away_s": 17.0}
    assert again["took_s"] == 100.0
    assert again["counters"] == {"before_kill": {"get_hit": 1}, "after_restart": {"get_hit": 2}}


def test_a_session_is_one_row(report):
    session = report["sessions"][0]
    assert session["tokens"] == session["cached_tokens"] + session["computed_tokens"] == 1900
    assert (session["cold_s"], session["memory_s"], session["disk_s"]) == (3.0, 0.2, 0.4)
    assert session["tokens_equal"] is session["blocks_kept"] is session["all_in_memory"] is True
    assert session["from_disk_bytes"] == session["loaded_bytes"] == 1860 * 46_080


def test_what_was_in_memory_did_not_come_from_disk(settings, course):
    course.returned[0]["in_memory_bytes"] = 46_080
    assert build_report(settings, course)["sessions"][0]["from_disk_bytes"] == 1859 * 46_080


def test_medians(report):
    near, every = report["medians"]["near_2000"], report["medians"]["all"]
    assert near["sessions"] == 2
    assert near["tokens"] == 2000
    assert near["cold_s"] == 3.5
    assert near["disk_speedup"] == pytest.approx((7.5 + 10) / 2)
    assert near["memory_speedup"] == pytest.approx((15 + 20) / 2)
    assert every["sessions"] == 3
    assert every["cold_s"] == 4.0


def test_hit_rates_are_by_tokens(report):
    asked = 2 * (1870 + 2070 + 3970) + (1900 + 2100 + 4000)
    cached = (1800 + 2000 + 3900) + (1860 + 2060 + 3960)
    assert report["hit_rate"] == pytest.approx(cached / asked)
    assert report["hit_rate_returned"] == pytest.approx((1860 + 2060 + 3960) / 8000)


def test_the_busiest_moment_and_the_end(report):
    busiest, end = report["tiers"]["busiest"], report["tiers"]["end"]
    assert busiest["memory"]["used_bytes"] + busiest["device"]["used_bytes"] == 395 << 20
    assert busiest["memory"]["capacity_bytes"] == 384 << 20
    assert end["disk"] == {"capacity_bytes": 3 << 30, "used_bytes": 360 << 20, "blocks": 360}


def test_the_timeline_says_that_the_process_was_gone(report):
    line = report["timeline"]
    assert line["at_s"] == sorted(line["at_s"])
    assert len({len(column) for column in line.values()}) == 1
    away = [row for row in zip(line["at_s"], line["rss_bytes"], line["disk_bytes"], strict=True) if not row[1]]
    assert away == [(63.0, 0, 350 << 20), (79.99, 0, 350 << 20)]
    assert [mark["what"] for mark in report["marks"]][3:6] == ["idle", "kill -9", "restart"]


def test_a_good_run_has_no_complaint(report):
    assert complaints(report) == []


@pytest.mark.parametrize("which", ["cold", "memory"])
def test_an_answer_that_differs_is_a_complaint(settings, course, which):
    course.measured[1][which] = [5, 6, 8]
    (complaint,) = complaints(build_report(settings, course))
    assert complaint.startswith("comparisons: the answers differ")


def test_blocks_that_were_not_found_are_a_complaint(settings, course):
    course.measured[1]["cached_tokens"] -= 64
    (complaint,) = complaints(build_report(settings, course))
    assert complaint.startswith("not every block was found each time (comparisons)")


def test_a_memory_that_did_not_hold_a_session_is_counted(settings, course):
    course.measured[1]["in_memory"] = False
    assert build_report(settings, course)["partly_in_memory"] == 1


def test_a_disk_that_saves_no_time_is_a_complaint(settings, course):
    for event in course.returned:
        event["first_token_s"] = 9.0
    (complaint,) = complaints(build_report(settings, course))
    assert "slower than computed anew" in complaint


def test_without_a_session_of_2000_tokens_all_are_judged(settings, course):
    for event in course.measured:
        event["prompt"] = event["prompt"][:500]
    found = build_report(settings, course)
    assert found["medians"]["near_2000"] is None
    assert complaints(found) == []
