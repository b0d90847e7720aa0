"""The page and the printed summary."""

import re
from html.parser import HTMLParser

import pytest

from kvlake.cli.demo.report import render
from kvlake.cli.demo.summary import print_files, print_summary

pytest.importorskip("matplotlib")
VOID = {"meta", "link", "br", "img", "hr"}


class Page(HTMLParser):
    """Collects what refers to elsewhere; checks that what opens closes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids, self.tags = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def text(report):
    return render(report)


def test_it_needs_nothing_from_elsewhere(text):
    page = Page(text)
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"https?://", text)
    assert not re.search(r"@import|url\((?!#)", text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)


def test_it_is_well_formed(text):
    page = Page(text)
    assert not page.open
    assert len(page.ids) == len(set(page.ids)), "two pictures share an id"
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_two_pictures_take_their_colours_from_the_page(text):
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        assert "var(--ink)" in picture
        assert not re.search(r"#0102", picture)
        assert "viewBox" in picture
        assert not re.search(r"<svg[^>]* (width|height)=", picture)
    declared = set(re.findall(r"--(\w+):", text))
    assert set(re.findall(r"var\(--(\w+)\)", text)) <= declared


def test_it_fits_phone_paper_and_night(text):
    assert "width=device-width" in text
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text


def test_it_tells_the_figures(text):
    for words in ("8.8×", "17.5×", "3 of 3", "0 B", "1,900", "SmolLM2", "exit code -9", "load average", "torch 2.13.0"):
        assert words in text
    assert "What this does not show" in text


def test_names_are_escaped(text):
    assert "<odd>" not in text
    assert text.count("&lt;odd&gt; &amp; named") >= 2


def test_what_went_wrong_stands_out(report):
    report["sessions"][0]["tokens_equal"] = False
    text = render(report)
    assert "2 of 3" in text
    assert "class=bad" in text
    assert "<td>NO</td>" in text


def test_the_summary(report, capsys):
    print_summary(report)
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("execmodel")]
    assert rows[0].split() == ["execmodel", "1,900", "3.00", "s", "0.20", "s", "0.40", "s", "15.0x", "7.5x", "equal"]
    assert "median of the 2 with about 2,000 tokens: 3.50 s anew" in output
    assert "hit rate" in output
    assert "350 MiB" in output


def test_a_memory_too_small_is_said(report, capsys):
    report["partly_in_memory"] = 2
    assert "2 of them did not fit into memory whole" in render(report)
    print_summary(report)
    assert "2 sessions did not fit into memory whole" in capsys.readouterr().out


def test_the_summary_of_short_sessions(report, capsys):
    report["medians"]["near_2000"] = None
    report["sessions"][0]["tokens_equal"] = False
    print_summary(report)
    output = capsys.readouterr().out
    assert "about 2,000" not in output
    assert "DIFFER" in output


@pytest.mark.parametrize("keep", [True, False])
def test_what_to_do_next(tmp_path, capsys, keep):
    print_files(tmp_path, keep=keep)
    output = capsys.readouterr().out
    assert f"{tmp_path}/report.html" in output
    assert (f"kvlake ls {tmp_path}/store" in output) is keep
