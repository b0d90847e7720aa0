"""Extents against a plain set of free pages."""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlake.tiers.extents import Extents

PAGES = 300


def runs(pages):
    """A set of pages as sorted (first page, pages)."""
    found = []
    for _, group in groupby(enumerate(sorted(pages)), key=lambda item: item[1] - item[0]):
        members = [page for _, page in group]
        found.append((members[0], len(members)))
    return found


class ExtentsMachine(RuleBasedStateMachine):
    @initialize(room=st.sampled_from([1, 4, 16]))
    def start(self, room):
        self.extents = Extents(PAGES, room=room)
        self.free = set(range(PAGES))
        self.taken = []

    @rule(pages=st.integers(1, 40), goal=st.none() | st.integers(0, PAGES))
    def allocate(self, pages, goal):
        before = dict(runs(self.free))
        page = self.extents.allocate(pages, goal)
        if page is None:
            assert max(before.values(), default=0) < pages
            return
        got = set(range(page, page + pages))
        assert got <= self.free
        if before.get(goal, 0) >= pages:
            assert page == goal
        self.free -= got
        self.taken.append((page, pages))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def free_some(self, data):
        page, pages = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        part = data.draw(st.integers(1, pages))
        self.extents.free(page, part)
        self.free |= set(range(page, page + part))
        if part < pages:
            self.taken.append((page + part, pages - part))

    @invariant()
    def extents_are_the_runs_of_the_set(self):
        if hasattr(self, "extents"):
            assert self.extents.extents() == runs(self.free)
            assert self.extents.free_pages == len(self.free)


TestExtents = ExtentsMachine.TestCase
TestExtents.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


EXTENTS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30)), max_size=12)


@given(used=EXTENTS, edges=st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True))
def test_around_leaves_what_is_not_used(used, edges):
    edges = sorted(edges)
    spans = [(start, end - start) for start, end in zip(edges[::2], edges[1::2], strict=False)]
    free, refused = Extents.around(spans, used)
    inside = {page for start, pages in spans for page in range(start, start + pages)}
    taken = set()
    expected_refused = []
    for start, pages in sorted(used):
        wanted = set(range(start, start + pages))
        one_span = any(first <= start and start + pages <= first + length for first, length in spans)
        if one_span and not wanted & taken:
            taken |= wanted
        else:
            expected_refused.append(start)
    assert sorted(refused) == expected_refused
    assert {page for start, pages in free.extents() for page in range(start, start + pages)} == inside - taken


def test_a_chain_stays_together_and_a_new_one_leaves_it_room():
    extents = Extents(256, room=32)
    first = extents.allocate(4)
    second = extents.allocate(4)
    assert (first, second) == (0, 32)
    assert extents.allocate(4, first + 4) == 4
    assert extents.allocate(4, second + 4) == 36


def test_room_is_given_up_when_there_is_none():
    extents = Extents(64, room=32)
    assert sorted(extents.allocate(8) for _ in range(8)) == list(range(0, 64, 8))
    assert extents.allocate(1) is None


@pytest.mark.parametrize("size", [7, 8, 9])
def test_a_long_list_of_too_small_extents_does_not_hide_a_large_one(size):
    extents = Extents()
    for number in range(100):
        extents.free(20 * number, 8)
    extents.free(5000, 16)
    assert extents.allocate(size) is not None


def test_nothing_is_found_in_nothing():
    assert Extents().allocate(1) is None
    assert repr(Extents(5)) == "<Extents 5 free pages in 1 extents>"
