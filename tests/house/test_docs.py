"""What exists is documented, in the same words as the code; what is documented exists."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

import reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for place in ("*.md", "docs/**/*.md", "examples/**/*.md") for page in ROOT.glob(place))
FENCE = re.compile(r"^ *```(\w*).*?^ *```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) ", re.MULTILINE)
LINK = re.compile(r"\]\(\s*([^)\s]+)|\b(?:src|srcset|href)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|#")


@pytest.fixture(scope="module")
def page():
    return reference.PAGE.read_text(encoding="utf-8")


def test_the_reference_is_current(page):
    assert page == reference.render(), "run `make fix`, or python tools/reference.py"


def test_every_command_is_documented(page):
    for context in reference.commands():
        assert f"`{context.command_path}`" in page
        assert context.command.help, f"{context.command_path} has no docstring"


def test_every_setting_is_documented(page):
    for field in reference.settings():
        assert f"`{field.name}`" in page
        assert field.metadata["help"]


def test_every_error_is_documented(page):
    for kind in reference.errors():
        assert f"`{kind.__name__}`" in page
        assert vars(kind).get("__doc__"), f"{kind.__name__} has no docstring of its own"


def test_both_readmes_have_one_shape():
    english, chinese = (shape(ROOT / name) for name in ("README.md", "README.zh.md"))
    assert english == chinese


def shape(path: Path) -> tuple[list[str], list[str]]:
    """Levels of the headings, languages of the code blocks."""
    text = path.read_text(encoding="utf-8")
    return HEADING.findall(FENCE.sub("", text)), FENCE.findall(text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_local_links_resolve(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    links = {first or second for first, second in LINK.findall(text)}
    targets = {link: path.parent / unquote(link.partition("#")[0]) for link in links if not ELSEWHERE.match(link)}
    assert not {link for link, target in targets.items() if not target.exists()}
