"""What may enter a tier. A refusal costs a later miss; an admission costs somebody else's block, and wear."""

PROMOTE_AT_READS = 2


def admit_put(*, expires_s: int, now_s: float, session_ended: bool) -> bool:
    """Whether a new block enters the store at all: not when it has expired, nor after its session said it is over."""
    return not session_ended and (not expires_s or expires_s > now_s)


def admit_promotion(reads: int, *, asked: bool) -> bool:
    """Whether a block read from a slower tier is kept in the faster one as well.

    A session that resumes takes its blocks to the device, where a second copy in memory is of no use; a prefix that is
    read again while it is not in memory is shared, and worth it. What was asked for by a prefetch always enters.
    """
    return asked or reads >= PROMOTE_AT_READS
