"""What runs: the target, the draft, and how they are found, loaded and paired."""
