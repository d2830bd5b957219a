"""Weights as a program stores them.

Per-output-channel int8 with fp16 scales (W8A16), 6-bit or 4-bit palettes (lookup tables), or fp16.
Scales and tables are rounded to fp16 first and the weights coded against the rounded ones, so that
rounding them costs nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

F16 = np.float16
TINY = float(np.finfo(F16).tiny)
ROWS_PER_TABLE = {6: 16, 4: 8}  # output channels that share a table
ROUNDS = 8  # of Lloyd's algorithm
BINS = 2048


@dataclass(frozen=True)
class Half:
    """fp16 weights [out, in]."""

    values: np.ndarray

    def dequantized(self) -> np.ndarray:
        """[out, in] in fp32."""
        return self.values.astype(np.float32)

    @property
    def nbytes(self) -> int:
        """As stored."""
        return self.values.nbytes


@dataclass(frozen=True)
class Int8:
    """Codes [out, in] in int8, and fp16 scales [out]."""

    codes: np.ndarray
    scales: np.ndarray

    def dequantized(self) -> np.ndarray:
        """[out, in] in fp32."""
        return self.codes.astype(np.float32) * self.scales.astype(np.float32)[:, None]

    @property
    def nbytes(self) -> int:
        """As stored."""
        return self.codes.nbytes + self.scales.nbytes


@dataclass(frozen=True)
class Palette:
    """Indices [out, in] of `bits` bits, and fp16 tables [groups, 2 ** bits], each for as many
    consecutive output channels.
    """

    indices: np.ndarray
    tables: np.ndarray
    bits: int

    def dequantized(self) -> np.ndarray:
        """[out, in] in fp32."""
        groups = len(self.tables)
        grouped = self.indices.reshape(groups, -1)
        values = np.take_along_axis(self.tables.astype(np.float32), grouped, axis=1)
        return values.reshape(self.indices.shape)

    @property
    def nbytes(self) -> int:
        """As stored."""
        return self.indices.size * self.bits // 8 + self.tables.nbytes


Quantized = Half | Int8 | Palette


def half(weight: np.ndarray) -> Half:
    """Round to fp16."""
    return Half(weight.astype(F16))


def int8(weight: np.ndarray) -> Int8:
    """Symmetric, one scale per output channel (row)."""
    largest = np.abs(weight).max(axis=1)
    scales = np.maximum(largest / 127.0, TINY).astype(F16)
    codes = np.rint(weight / scales.astype(np.float32)[:, None])
    return Int8(np.clip(codes, -127, 127).astype(np.int8), scales)


def palette(bits: int) -> Callable[[np.ndarray], Palette]:
    """k-means palettes of `bits` bits."""

    def quantized(weight: np.ndarray) -> Palette:
        rows = ROWS_PER_TABLE[bits]
        groups = len(weight) // rows if len(weight) % rows == 0 else 1
        grouped = weight.reshape(groups, -1).astype(np.float32)
        tables = np.stack([_centroids(group, 2**bits) for group in grouped]).astype(F16)
        found = [_nearest(g, t.astype(np.float32)) for g, t in zip(grouped, tables, strict=True)]
        return Palette(np.stack(found).reshape(weight.shape), tables, bits)

    return quantized


def _centroids(values: np.ndarray, count: int) -> np.ndarray:
    """Lloyd's algorithm in one dimension, over a histogram; from quantiles."""
    weights, edges = np.histogram(values, BINS)
    middles = (edges[:-1] + edges[1:]) / 2
    share = np.cumsum(weights) / values.size
    centroids = np.interp((np.arange(count) + 0.5) / count, share, middles)
    for _ in range(ROUNDS):
        nearest = np.searchsorted((centroids[:-1] + centroids[1:]) / 2, middles)
        mass = np.bincount(nearest, weights, count)
        total = np.bincount(nearest, weights * middles, count)
        centroids = np.where(mass > 0, total / np.maximum(mass, 1), centroids)
    return np.sort(centroids)


def _nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    return np.searchsorted((table[:-1] + table[1:]) / 2, values).astype(np.uint8)


SCHEMES: dict[str, Callable[[np.ndarray], Quantized]] = {
    "int8": int8,
    "lut6": palette(6),
    "lut4": palette(4),
    "fp16": half,
}
SENSITIVE = frozenset({"fc"})  # features have a wide range: palettes leave these in int8


def stored(scheme: str, name: str, weight: np.ndarray) -> Quantized:
    """A matrix as a scheme stores it.

    Args:
        scheme: int8, lut6, lut4 or fp16.
        name: fc, or layers.N.self_attn.q_proj and the like.
        weight: [out, in].
    """
    if scheme.startswith("lut") and name in SENSITIVE:
        return int8(weight)
    return SCHEMES[scheme](weight)


BYTES_PER_PARAMETER = {"int8": 1.0, "lut6": 0.75, "lut4": 0.5, "fp16": 2.0}


def error(weight: np.ndarray, quantized: Quantized) -> float:
    """Root mean square of the difference, over that of the weights."""
    difference = quantized.dequantized() - weight
    return float(np.sqrt(np.mean(difference**2) / max(np.mean(weight**2), TINY)))
