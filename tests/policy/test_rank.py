"""`victims` against a reference that asks itself one question at a time."""

from hypothesis import given
from hypothesis import strategies as st

from kvlake.policy.rank import RANKS, Candidate, tail_first_lru, victims


@st.composite
def forests(draw):
    """Candidates whose parents are candidates, are absent, or are none (depth 0)."""
    blocks = []
    for number in range(draw(st.integers(0, 24))):
        key = number.to_bytes(16, "big")
        root = draw(st.booleans()) or not blocks
        parent = None if root else draw(st.sampled_from(blocks))
        absent = bytes([255]) * 16
        blocks.append(
            Candidate(
                key,
                absent if parent is None else parent.key,
                0 if parent is None else parent.depth + 1,
                draw(st.integers(1, 9)),
                float(draw(st.integers(0, 3))),
                draw(st.integers(0, 2)),
                draw(st.booleans()),
            )
        )
    return blocks


def reference(blocks, need_bytes, rank):
    """Again and again: of the blocks that are now without a child, the one that ranks lowest."""
    left, chosen = list(blocks), []
    while need_bytes > 0 and left:
        parents = {block.parent for block in left}
        block = min((block for block in left if block.key not in parents), key=lambda one: (rank(one), one.key))
        left.remove(block)
        chosen.append(block)
        need_bytes -= block.nbytes
    return chosen


@given(forests(), st.integers(-3, 150))
def test_victims_are_the_reference(blocks, need_bytes):
    assert victims(blocks, need_bytes) == reference(blocks, need_bytes, tail_first_lru)


@given(forests(), st.integers(0, 150))
def test_no_parent_goes_before_its_child_and_no_block_too_many(blocks, need_bytes):
    chosen = victims(blocks, need_bytes)
    gone = set()
    for block in chosen:
        assert all(other.key in gone for other in blocks if other.parent == block.key)
        gone.add(block.key)
    freed = sum(block.nbytes for block in chosen)
    assert freed >= need_bytes or len(chosen) == len(blocks)
    assert not chosen or freed - chosen[-1].nbytes < need_bytes


def _block(number, last_use_s=0.0, depth=0, *, ended=False):
    return Candidate(bytes([number]) * 16, bytes(16), depth, 1, last_use_s, 1, ended)


def test_what_only_ended_sessions_held_goes_before_what_is_older():
    old, ended = _block(1, 10.0), _block(2, 20.0, ended=True)
    assert victims([old, ended], 1) == [ended]


def test_the_deepest_of_one_touch_goes_first():
    shallow, deep = _block(1, 10.0, 0), _block(2, 10.0, 5)
    assert victims([shallow, deep], 1) == [deep]


def test_a_rank_of_ones_own_is_followed():
    blocks = [_block(number, 10.0) for number in range(5)]
    assert victims(blocks, 1, lambda block: (-block.key[0],)) == [blocks[-1]]


def test_ranks_are_found_by_name():
    assert RANKS["tail-first-lru"] is tail_first_lru
