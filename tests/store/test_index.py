"""The forest of blocks: `match` against its reference, presence as a prefix, the accounts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvlake.keys.block import NO_PARENT
from kvlake.store.index import Index
from kvlake.testing.blocks import key_of
from kvlake.tiers.tier import Record

TENANT = b"tenant-1"


def record(number, parent=None, depth=0, expires_s=0, nbytes=10):
    return Record(key_of(number), parent or NO_PARENT, depth, nbytes, bytes(8), TENANT, expires_s, 5)


def chain_index(count, expires=()):
    index = Index()
    for number in range(count):
        parent = key_of(number - 1) if number else None
        index.add(record(number, parent, number, 50 if number in expires else 0), 1)
    return index


@given(st.integers(0, 40), st.integers(0, 40), st.sets(st.integers(0, 39), max_size=2))
def test_match_is_its_reference(present, asked, expires):
    index = chain_index(present, expires)
    keys = [key_of(number) for number in range(asked)]
    for now_s in (10.0, 50.0):
        assert index.match(keys, now_s) == index.scan(keys, now_s)
    gone = min((number for number in expires if number < present), default=present)
    assert index.match(keys, 50.0) == min(asked, gone)
    assert index.match(keys, 10.0) == min(asked, present)


def test_a_block_enters_only_below_its_parent_at_the_right_depth():
    index = chain_index(2)
    assert index.add(record(9, key_of(7), 1), 1) is None
    assert index.add(record(9, key_of(1), 1), 1) is None
    assert index.add(record(9, key_of(1), 2), 1) is not None


@st.composite
def trees(draw):
    """(number, number of the parent or None) of blocks, parents first."""
    return [
        (number, draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None)
        for number in range(draw(st.integers(1, 25)))
    ]


@given(trees(), st.sets(st.integers(0, 24), min_size=1, max_size=3))
def test_a_subtree_is_all_below_children_first(tree, tops):
    index, depths, below = Index(), {}, {}
    for number, parent in tree:
        depths[number] = 0 if parent is None else depths[parent] + 1
        index.add(record(number, None if parent is None else key_of(parent), depths[number]), 1)
        below[number] = number in tops or (parent is not None and below[parent])
    found = [entry.key for entry in index.subtree([key_of(top) for top in tops])]
    assert sorted(found) == sorted(key_of(number) for number, inside in below.items() if inside)
    order = {key: at for at, key in enumerate(found)}
    for number, parent in tree:
        if parent is not None and below[parent]:
            assert order[key_of(number)] < order[key_of(parent)]


@given(trees(), st.randoms())
def test_the_accounts_follow_what_enters_and_leaves(tree, random):
    index, depths = Index(), {}
    for number, parent in tree:
        depths[number] = 0 if parent is None else depths[parent] + 1
        fields = {"expires_s": number % 3, "nbytes": number + 1}
        index.add(record(number, None if parent is None else key_of(parent), depths[number], **fields), 1)
    leaves = [entry for entry in index if not entry.children]
    for entry in random.sample(leaves, len(leaves) // 2):
        index.drop(entry)
    assert index.tenant_bytes[TENANT] == sum(entry.nbytes for entry in index)
    assert index.expiring == sum(bool(entry.expires_s) for entry in index)
    children = Counter(entry.parent for entry in index if entry.depth)
    assert all(entry.children == children[entry.key] for entry in index)


def test_tenants_and_namespaces_are_kept_once():
    index = Index()
    for number in range(2):
        index.add(record(number)._replace(tenant=bytes(bytearray(TENANT))), 1)
    first, second = index
    assert first.tenant is second.tenant
    assert "depth 0" in repr(first)
    assert len(index) == 2
    assert key_of(0) in index
