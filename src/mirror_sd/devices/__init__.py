"""Where a compiled draft runs: devices exchange numpy arrays, and block the thread, not the GIL."""
