"""Sizes and times as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlake.base.errors import ConfigError
from kvlake.base.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(("text", "nbytes"), [
    ("0", 0), ("17", 17), ("17 B", 17), ("1.5 GiB", 1610612736), ("1.5gib", 1610612736), (" 512 MiB ", 512 << 20),
    ("100 GB", 100 * 10**9), ("1 kB", 1000), ("1K", 1024), ("2m", 2 << 20), ("3 G", 3 << 30), ("1 TiB", 1 << 40),
    ("2 TB", 2 * 10**12), (".5 KiB", 512), ("1. KiB", 1024), ("1.9", 1), (42, 42),
])  # fmt: skip
def test_sizes_are_read(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(("text", "seconds"), [
    ("30", 30), ("30 s", 30), ("1.5 s", 1.5), ("250 ms", 0.25), ("5 min", 300), ("5m", 300), ("2 h", 7200),
    ("1 day", 86400), ("2days", 172800), (7, 7.0), (0.5, 0.5),
])  # fmt: skip
def test_times_are_read(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)
    assert isinstance(parse_seconds(text), float)


@pytest.mark.parametrize("text", ["", "GiB", "1 GiBs", "1,5 GiB", "-1 GiB", "1e9", "1 2 MiB", "0x10", "nan", "5 min"])
def test_a_size_that_cannot_be_read_is_named_with_the_cure(text):
    with pytest.raises(ConfigError, match=r"write it like '512 MiB'") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["", "soon", "5 GiB", "-3 s", "1:30"])
def test_a_time_that_cannot_be_read_is_named_with_the_cure(text):
    with pytest.raises(ConfigError, match="write it like '30 s'"):
        parse_seconds(text)


def test_negative_numbers_are_refused():
    with pytest.raises(ConfigError, match="negative: -1"):
        parse_bytes(-1)
    with pytest.raises(ConfigError, match="negative"):
        parse_seconds(-0.1)


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1610612736, "1.50 GiB"), (15 << 20, "15.0 MiB"),
    (150 << 30, "150 GiB"), (5 << 50, "5120 TiB"), (-2048, "-2.00 KiB"),
])  # fmt: skip
def test_sizes_are_written(nbytes, text):
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0123, "12.3 ms"), (1, "1 s"), (75, "75 s"), (130, "2.17 min"), (7200, "2 h"), (3 * 86400, "3 d"),
])  # fmt: skip
def test_times_are_written(seconds, text):
    assert format_seconds(seconds) == text


@given(st.integers(0, 1 << 50))
def test_what_is_written_can_be_read_and_is_near(nbytes):
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.006)


@given(st.integers(0, 1 << 53))
def test_plain_numbers_are_exact(nbytes):
    assert parse_bytes(str(nbytes)) == parse_bytes(nbytes) == nbytes
