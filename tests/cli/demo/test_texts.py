"""The texts are real, long enough, and differ from their first words on."""

from itertools import combinations

import pytest

from kvlake.cli.demo.texts import QUESTIONS, SYSTEM, choose

SHORTEST_CHARACTERS_PER_TOKEN = 3.6
"""Of any topic with the model's tokenizer; measured."""


@pytest.mark.parametrize("count", [1, 2, 3, 12, 40, 200])
def test_every_session_has_its_own(count):
    texts = choose(count, 1800)
    assert len({text.name for text in texts}) == count
    assert len({text.body[:200] for text in texts}) == count
    assert all(len(text.body) >= text.tokens * 6 for text in texts)


def test_a_dozen_spread_as_promised():
    lengths = sorted(text.tokens for text in choose(12, 1800))
    assert lengths[0] >= 1500
    assert lengths[-2] <= 2300
    assert 3600 <= lengths[-1] <= 4000
    assert len(set(lengths)) == 12


def test_the_same_texts_each_time():
    assert choose(12, 1800) == choose(12, 1800)


def test_no_text_begins_another():
    texts = choose(30, 1800)
    assert not [1 for one, other in combinations(texts, 2) if one.body.startswith(other.body[:200])]


def test_short_texts_for_a_short_demo():
    assert [text.tokens for text in choose(2, 100)] == [84, 106]


def test_the_system_prompt_is_some_whole_blocks():
    # Three blocks of 64 tokens at the least, at fewer than six characters a token.
    assert len(SYSTEM) > 6 * 3 * 64
    assert "\\" not in SYSTEM
    assert len(QUESTIONS) == 3
