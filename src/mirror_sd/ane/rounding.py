"""fp16 arithmetic on fp32 arrays."""

from __future__ import annotations

import numpy as np

SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)


def half(values: np.ndarray, flush: bool = False) -> np.ndarray:
    """Rounded to fp16, as fp32; beyond fp16's range infinite."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16).astype(np.float32)
    if flush:
        rounded[np.abs(rounded) < SMALLEST_NORMAL] = 0
    return rounded


def saturated(values: np.ndarray, limit: float, inclusive: bool = False) -> np.ndarray:
    """Values beyond the limit become infinite; a limit of 0 is none."""
    if not limit:
        return values
    beyond = np.abs(values) >= limit if inclusive else np.abs(values) > limit
    if not beyond.any():
        return values
    return np.where(beyond, np.copysign(np.float32(np.inf), values), values)


def narrow_sum(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A sum over axes, kept with size 1, of which every partial sum is rounded to fp16: a tree."""
    for axis in axes:
        while values.shape[axis] > 1:
            size = values.shape[axis]
            even = values.take(range(0, size - 1, 2), axis)
            odd = values.take(range(1, size, 2), axis)
            summed = half(even + odd)
            if size % 2:
                summed = np.concatenate([summed, values.take([size - 1], axis)], axis)
            values = summed
    return values


def product(a: np.ndarray, b: np.ndarray, terms: int) -> np.ndarray:
    """a [..., m, k] @ b [..., k, n]; the sum is rounded to fp16 after every `terms`, 0: never."""
    if not terms or a.shape[-1] <= terms:
        return np.matmul(a, b)
    total = half(np.matmul(a[..., :terms], b[..., :terms, :]))
    for start in range(terms, a.shape[-1], terms):
        stop = start + terms
        total = half(total + half(np.matmul(a[..., start:stop], b[..., start:stop, :])))
    return total
