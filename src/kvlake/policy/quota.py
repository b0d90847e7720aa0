"""What a tenant may hold: bytes over all tiers, each block counted once and for the tenant that put it first."""

from collections.abc import Mapping


def excess_bytes(used_bytes: int, incoming_bytes: int, quota_bytes: int | None) -> int:
    """Bytes that a tenant must give up before `incoming_bytes` may enter; 0 when there is room or no quota."""
    if quota_bytes is None:
        return 0
    return max(0, used_bytes + incoming_bytes - quota_bytes)


def fits(incoming_bytes: int, quota_bytes: int | None) -> bool:
    """Whether the incoming could fit at all, were the tenant to give up everything else."""
    return quota_bytes is None or incoming_bytes <= quota_bytes


def quota_of(tenant: str, quotas: Mapping[str, int]) -> int | None:
    """The tenant's quota in bytes; `*` is for those not named; None for no limit."""
    return quotas.get(tenant, quotas.get("*"))
