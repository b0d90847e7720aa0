"""Which blocks go first: a rank is a function from what is known of a block to a sort key, lowest first to go.

Children go before their parents whatever the rank says (`victims` takes leaves only), since a block without its
parent can never be matched. Within one touch all blocks of a chain carry the same time, and the deepest goes first:
tail-first LRU. Plain S3-FIFO or SIEVE are no defaults here: on agents' traces they keep 2 % where LRU keeps 86 %
(facts: traces.md, 0.7).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvlake.keys.block import BlockKey


class Candidate(NamedTuple):
    """What a policy may know of a block."""

    key: BlockKey
    parent: BlockKey
    depth: int
    nbytes: int
    last_use_s: float
    sessions: int
    """Sessions that hold the block."""
    ended: bool
    """Every session that held it has ended (a hint from the application), so that no turn will ask for it."""


Rank = Callable[[Candidate], tuple[float, ...]]


def tail_first_lru(block: Candidate) -> tuple[float, ...]:
    """Least recently used first, deepest first among equals; what only ended sessions held goes before all."""
    return (not block.ended, block.last_use_s, -block.depth)


RANKS: dict[str, Rank] = {"tail-first-lru": tail_first_lru}


def victims(candidates: Iterable[Candidate], need_bytes: int, rank: Rank = tail_first_lru) -> list[Candidate]:
    """Blocks to give up, in order, until `need_bytes` are free or nothing is left; a parent only after its last child.

    `candidates` are all blocks that may go. A block with a child that may not go must not be among them.
    """
    blocks = {block.key: block for block in candidates}
    children = Counter(block.parent for block in blocks.values())
    heap = [(rank(block), block.key) for block in blocks.values() if not children[block.key]]
    heapq.heapify(heap)
    chosen: list[Candidate] = []
    while heap and need_bytes > 0:
        block = blocks[heapq.heappop(heap)[1]]
        chosen.append(block)
        need_bytes -= block.nbytes
        children[block.parent] -= 1
        parent = blocks.get(block.parent)
        if parent is not None and not children[parent.key]:
            heapq.heappush(heap, (rank(parent), parent.key))
    return chosen
