"""Sizes and times as people write them -> integers and floats, once, at the edge."""

import re
from collections.abc import Mapping

from kvlake.base.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": 1 << 40, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SECOND_UNITS = {
    "": 1.0, "s": 1.0, "sec": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0,
    "days": 86400.0,
}  # fmt: skip
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*")


def _parse(text: str, units: Mapping[str, float], example: str) -> float:
    matched = _NUMBER.fullmatch(text)
    unit = matched.group(2).lower() if matched else "?"
    if matched is None or unit not in units:
        raise ConfigError(f"{text!r} is not a quantity kvlake can read; write it like {example}")
    return float(matched.group(1)) * units[unit]


def parse_bytes(value: str | int) -> int:
    """`"1.5 GiB"` -> 1610612736. Binary units are KiB, MiB, GiB, TiB (also K, M, G, T); decimal ones KB, MB, GB, TB."""
    if isinstance(value, int):
        if value < 0:
            raise ConfigError(f"a size cannot be negative: {value}")
        return value
    return int(_parse(value, _BYTE_UNITS, "'512 MiB', '1.5 GiB' or '100 GB'"))


def parse_seconds(value: str | float) -> float:
    """`"5 min"` -> 300.0. Units are ms, s, min, h, d; a bare number is seconds."""
    if isinstance(value, str):
        return _parse(value, _SECOND_UNITS, "'30 s', '5 min' or '2 h'")
    if value < 0:
        raise ConfigError(f"a duration cannot be negative: {value}")
    return float(value)


def format_bytes(nbytes: float) -> str:
    """1610612736 -> `"1.50 GiB"`: binary units, three significant figures."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    if unit == "B":
        return f"{int(size)} B"
    return f"{size:.{max(0, 3 - len(str(int(abs(size)))))}f} {unit}"


def format_seconds(seconds: float) -> str:
    """0.0123 -> `"12.3 ms"`, 75 -> `"1.2 min"`: the unit in which the figure is easiest to read."""
    for limit, scale, unit in ((1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min"), (172800.0, 1 / 3600, "h")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 86400:.3g} d"
