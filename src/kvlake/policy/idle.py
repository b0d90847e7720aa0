"""When a session goes idle by itself: a function of its last use, its hints and the TTL."""

TOOL_CALL_PATIENCE = 4.0
"""A session that waits for a tool call is given this many TTLs: 99 % of tool calls come back (facts: traces.md)."""


def idle_at_s(last_use_s: float, ttl_s: float | None, *, pending_tool_call: bool) -> float | None:
    """Unix second at which an active session goes idle; None for never."""
    if ttl_s is None:
        return None
    return last_use_s + ttl_s * (TOOL_CALL_PATIENCE if pending_tool_call else 1.0)
