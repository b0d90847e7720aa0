"""The disk tier: packed segments, a journal, and jobs that move many blocks at a time.

`tier` is the front; `segments` is the space, `record` the bytes, `journal` the log, `transfer` blocks <-> jobs,
`device` the disk itself (`aio` its kernel queue), `recover` what happens at open and in an audit.
"""

from kvlake.tiers.disk.device import Device
from kvlake.tiers.disk.tier import DiskTier

__all__ = ["Device", "DiskTier"]
