"""Same tokens, same key, on any machine, for ever: tokens, salt, namespace -> block keys."""
