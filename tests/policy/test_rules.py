"""Watermarks, admission, quotas, idleness: the small rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlake.base.errors import ConfigError
from kvlake.policy.admission import admit_promotion, admit_put
from kvlake.policy.idle import TOOL_CALL_PATIENCE, idle_at_s
from kvlake.policy.quota import excess_bytes, fits, quota_of
from kvlake.policy.watermark import Watermarks


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_relief_goes_from_above_high_down_to_low(used, capacity):
    marks = Watermarks(high=0.8, low=0.5)
    excess = marks.excess_bytes(used, capacity)
    if used <= 0.8 * capacity:
        assert excess == 0
    else:
        assert used - excess == int(0.5 * capacity)


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_room_is_the_need_or_the_span_between_the_marks(need, capacity):
    assert Watermarks(high=1.0, low=0.5).room_bytes(need, capacity) == max(need, capacity // 2)


@pytest.mark.parametrize(("high", "low"), [(0.5, 0.6), (1.1, 0.9), (0.9, 0.0), (float("nan"), 0.5)])
def test_nonsense_marks_are_refused_with_their_values(high, low):
    with pytest.raises(ConfigError, match=f"low={low} high={high}"):
        Watermarks(high=high, low=low)


def test_what_has_expired_or_is_of_an_ended_session_does_not_enter():
    assert admit_put(expires_s=0, now_s=100.0, session_ended=False)
    assert admit_put(expires_s=101, now_s=100.0, session_ended=False)
    assert not admit_put(expires_s=100, now_s=100.0, session_ended=False)
    assert not admit_put(expires_s=0, now_s=100.0, session_ended=True)


def test_the_second_read_promotes_and_so_does_a_prefetch():
    assert [admit_promotion(reads, asked=False) for reads in (0, 1, 2, 3)] == [False, False, True, True]
    assert admit_promotion(0, asked=True)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_excess_is_what_has_to_go(used, incoming, quota):
    excess = excess_bytes(used, incoming, quota)
    assert excess == 0 or used + incoming - excess == quota
    assert used + incoming - excess <= quota
    assert fits(incoming, quota) == (incoming <= quota)


def test_no_quota_is_no_limit():
    assert excess_bytes(10**12, 10**12, None) == 0
    assert fits(10**12, None)


def test_a_tenant_not_named_has_the_quota_of_the_star():
    assert quota_of("a", {"a": 1, "*": 2}) == 1
    assert quota_of("b", {"a": 1, "*": 2}) == 2
    assert quota_of("b", {"a": 1}) is None


def test_a_session_that_waits_for_a_tool_is_given_longer():
    assert idle_at_s(100.0, 10.0, pending_tool_call=False) == 110.0
    assert idle_at_s(100.0, 10.0, pending_tool_call=True) == 100.0 + 10.0 * TOOL_CALL_PATIENCE
    assert idle_at_s(100.0, None, pending_tool_call=True) is None
