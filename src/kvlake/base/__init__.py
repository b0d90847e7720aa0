"""Words that every room uses: errors, units, clock. Knows nothing of KV; standard library only."""
