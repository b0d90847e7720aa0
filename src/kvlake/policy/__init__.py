"""What to keep: entries -> keys and moves. Pure functions: no bytes, clocks, locks or threads."""
