"""Every error is a KvlakeError and also what a Python programmer would catch."""

import inspect

import pytest

from kvlake.base import errors
from kvlake.base.clock import SystemClock
from kvlake.base.errors import KvlakeError, SessionNotFoundError

SECOND_PARENT = {
    "ConfigError": ValueError,
    "CapacityError": ValueError,
    "BufferSizeError": ValueError,
    "StoreBusyError": OSError,
    "StoreFormatError": ValueError,
    "StoreClosedError": RuntimeError,
    "SessionNotFoundError": KeyError,
    "UnsupportedModelError": TypeError,
}
KINDS = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and kind is not KvlakeError}


def test_the_list_is_whole():
    assert KINDS.keys() == SECOND_PARENT.keys()


@pytest.mark.parametrize("name", SECOND_PARENT)
def test_each_has_both_parents_and_a_place_in_the_tree(name):
    assert KINDS[name].__bases__ == (KvlakeError, SECOND_PARENT[name])
    assert f"{name}({SECOND_PARENT[name].__name__})" in errors.__doc__


@pytest.mark.parametrize("name", SECOND_PARENT)
def test_the_message_is_shown_as_it_is(name):
    assert str(KINDS[name]("no session 'a'; list them")) == "no session 'a'; list them"


def test_a_key_error_without_a_message_has_none():
    assert str(SessionNotFoundError()) == ""


def test_the_system_clock_goes_on():
    clock = SystemClock()
    assert clock.wall() > 1_600_000_000
    assert clock.monotonic() <= clock.monotonic()
