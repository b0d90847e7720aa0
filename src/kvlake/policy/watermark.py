"""When a tier is relieved, and how far: fractions of its capacity."""

from dataclasses import dataclass

from kvlake.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """Relief starts above `high` and stops at `low`, so that one decision frees room for many puts."""

    high: float = 0.95
    low: float = 0.90

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1:
            raise ConfigError(f"watermarks need 0 < low <= high <= 1, not low={self.low} high={self.high}")

    def excess_bytes(self, used_bytes: int, capacity_bytes: int) -> int:
        """Bytes to free now; 0 while the tier is below the high watermark."""
        if used_bytes <= self.high * capacity_bytes:
            return 0
        return used_bytes - int(self.low * capacity_bytes)

    def room_bytes(self, need_bytes: int, capacity_bytes: int) -> int:
        """Bytes to free when a put of `need_bytes` was refused for lack of room: the need, or down to low if more."""
        return max(need_bytes, int((self.high - self.low) * capacity_bytes))
