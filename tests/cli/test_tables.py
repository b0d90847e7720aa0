"""Tables and JSON."""

import json
import time
from dataclasses import dataclass

import pytest

from kvlake.cli.tables import ago, count, print_json, print_table


def test_columns_stand_left_or_right_as_their_header_says(capsys):
    print_table(("name", ">size"), [("a", "1 B"), ("long name", "100 KiB")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name          size"
    assert lines[2] == "a              1 B"
    assert lines[3] == "long name  100 KiB"


def test_names_that_look_like_numbers_stay_names(capsys):
    print_table(("name", ">n"), [("007", 7), ("1e5", 1)])
    assert "007" in (out := capsys.readouterr().out)
    assert "1e5" in out


def test_a_table_without_rows_has_its_header(capsys):
    print_table(("name", ">size"), [])
    assert capsys.readouterr().out.startswith("name")


def test_json_takes_dataclasses_and_bytes(capsys):
    @dataclass
    class Thing:
        name: str
        key: bytes

    print_json([Thing("ü", b"\x01\xff")])
    out = capsys.readouterr().out
    assert json.loads(out) == [{"name": "ü", "key": "01ff"}]
    assert "ü" in out
    with pytest.raises(TypeError, match="set has no JSON form"):
        print_json({"a": set()})


def test_words():
    assert [count(n, "block") for n in (0, 1, 1234)] == ["0 blocks", "1 block", "1,234 blocks"]
    assert ago(time.time() - 180) == "3 min ago"
    assert ago(time.time() + 60) == "0 ms ago"
