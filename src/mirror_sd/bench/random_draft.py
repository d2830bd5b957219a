"""Random drafts of any shape: for tests, and for what published shapes cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..ane.host import Tables
from ..ane.shapes import DraftShape


class RandomTensors(Mapping[str, np.ndarray]):
    """Weights of a shape by their published names, made anew whenever they are read, so that a
    large draft takes no memory: always the same ones.
    """

    def __init__(self, shape: DraftShape, seed: int = 0):
        self.seed = seed
        self.sizes = _sizes(shape)

    def __getitem__(self, name: str) -> np.ndarray:
        size = self.sizes[name]
        values = np.random.default_rng([self.seed, *name.encode()]).standard_normal(
            size, np.float32
        )
        if len(size) == 1:
            return 0.1 * values if name.endswith("bias") else 1 + 0.1 * values
        values *= np.float32(size[1] ** -0.5)
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def parameters(self) -> int:
        """How many there are."""
        return sum(int(np.prod(size)) for size in self.sizes.values())


def _sizes(shape: DraftShape) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden)}
    attention["o"] = (hidden, queries)
    found: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, shape.taps * hidden)}
    found |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for layer in range(shape.layers):
        at = f"layers.{layer}"
        for name, size in attention.items():
            found[f"{at}.self_attn.{name}_proj.weight"] = size
            if shape.bias:
                found[f"{at}.self_attn.{name}_proj.bias"] = size[:1]
        for name in ("q_norm", "k_norm"):
            found[f"{at}.self_attn.{name}.weight"] = (shape.head_dim,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{name}.weight"] = (hidden,)
        for name in ("gate", "up"):
            found[f"{at}.mlp.{name}_proj.weight"] = (inner, hidden)
        found[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
    return found


def tables(shape: DraftShape, theta: float = 1e6) -> Tables:
    """Plain RoPE."""
    frequencies = theta ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)

    def at(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        angles = positions[:, None] * frequencies
        return np.cos(angles), np.sin(angles)

    return at
