"""What is remembered between cycles: the target's caches and the draft's context."""
