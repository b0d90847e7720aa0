"""Where bytes lie: key + bytes -> bytes. A tier keeps and returns blocks; it never decides what to keep."""
