"""Random numbers that depend on a seed and a position only, never on who asks or how often."""

from __future__ import annotations

import mlx.core as mx

# Different uses of the same seed and position must not share numbers.
SHARED, DRAFT, ACCEPT, RESIDUAL = range(4)
_GOLDEN = 0x9E3779B1


def key(seed: int, position: int, use: int) -> mx.array:
    """A key for mlx.random, one per (seed, position, use)."""
    return mx.array([_low(seed, use), position & 0xFFFFFFFF], mx.uint32)


def _keys(seed: int, position: int, rows: int, use: int) -> mx.array:
    """Keys [rows, 2] of consecutive positions."""
    low = _low(seed, use)
    return mx.array([[low, (position + i) & 0xFFFFFFFF] for i in range(rows)], mx.uint32)


def _low(seed: int, use: int) -> int:
    return (seed ^ (seed >> 32) ^ (use * _GOLDEN)) & 0xFFFFFFFF


def gumbel(seed: int, position: int, rows: int, width: int, use: int) -> mx.array:
    """Gumbel noise [rows, width] for consecutive positions."""
    keys = _keys(seed, position, rows, use)
    return mx.vmap(lambda k: mx.random.gumbel((width,), key=k))(keys)


def uniform(seed: int, position: int, rows: int, use: int) -> mx.array:
    """Uniform numbers [rows] in [0, 1) for consecutive positions."""
    return mx.vmap(lambda k: mx.random.uniform(key=k))(_keys(seed, position, rows, use))
