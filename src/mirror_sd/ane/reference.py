"""The draft in plain numpy, [positions, channels], independent of programs and of MLX.

DFlash, arXiv 2602.06036: context features pass `fc` and `hidden_norm` once, then each layer's K and
V; a block sees the context and itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .shapes import SLIDING, DraftShape


@dataclass
class Trace:
    """What a pass went through.

    Attributes:
        layers: hidden states [positions, hidden] after every layer.
        hidden: after the final norm.
        peaks: largest absolute values of the residual stream, the features and inside MLPs.
    """

    layers: list[np.ndarray] = field(default_factory=list)
    hidden: np.ndarray = field(default_factory=lambda: np.zeros(0))
    peaks: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, values: np.ndarray) -> None:
        """Remember how large values get."""
        if values.size:
            self.peaks[name] = max(self.peaks.get(name, 0.0), float(np.abs(values).max()))


class ReferenceDraft:
    """A draft that keeps its context from call to call.

    Args:
        shape: of the draft.
        tensors: published name -> array.
        dtype: to compute in.
    """

    def __init__(
        self, shape: DraftShape, tensors: Mapping[str, np.ndarray], dtype: type = np.float64
    ):
        self.shape, self.dtype = shape, dtype
        self._tensors = tensors
        empty: np.ndarray = np.zeros((shape.kv_heads, 0, shape.head_dim), dtype)
        self.keys = [empty] * shape.layers
        self.values = [empty] * shape.layers

    def extend(self, features: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:
        """Append context columns; features [n, taps * hidden], tables [n, head_dim / 2]."""
        context = self._norm("hidden_norm", self._linear("fc", features.astype(self.dtype)))
        for layer in range(self.shape.layers):
            keys, values = self._keys_values(layer, context, cos, sin)
            self.keys[layer] = np.concatenate([self.keys[layer], keys], axis=1)
            self.values[layer] = np.concatenate([self.values[layer], values], axis=1)

    def __call__(
        self, block: np.ndarray, cos: np.ndarray, sin: np.ndarray, masks: Mapping[str, np.ndarray]
    ) -> Trace:
        """Hidden states of an embedded block [b, hidden].

        Args:
            block: embedded.
            cos: [b, head_dim / 2].
            sin: [b, head_dim / 2].
            masks: per kind of attention, [b, context + b], added to scores.
        """
        trace = Trace()
        x: np.ndarray = block.astype(self.dtype)
        trace.note("residual", x)
        for layer in range(self.shape.layers):
            name = f"layers.{layer}"
            normed = self._norm(f"{name}.input_layernorm", x)
            mask = masks[self.shape.mask(layer)]
            x = x + self._attention(layer, normed, cos, sin, mask)
            trace.note("residual", x)
            x = x + self._mlp(name, self._norm(f"{name}.post_attention_layernorm", x), trace)
            trace.note("residual", x)
            trace.layers.append(x)
        trace.hidden = self._norm("norm", x)
        return trace

    def _mlp(self, name: str, x: np.ndarray, trace: Trace) -> np.ndarray:
        gate = self._linear(f"{name}.mlp.gate_proj", x)
        inner = gate / (1 + np.exp(-gate)) * self._linear(f"{name}.mlp.up_proj", x)
        trace.note("inner", inner)
        return self._linear(f"{name}.mlp.down_proj", inner)

    def _attention(
        self, layer: int, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        name, shape = f"layers.{layer}.self_attn", self.shape
        queries = self._heads(self._linear(f"{name}.q_proj", x), shape.heads)
        queries = rotate(self._norm(f"{name}.q_norm", queries), cos, sin)
        keys, values = self._keys_values(layer, x, cos, sin)
        keys = np.repeat(np.concatenate([self.keys[layer], keys], axis=1), shape.groups, axis=0)
        values = np.repeat(
            np.concatenate([self.values[layer], values], axis=1), shape.groups, axis=0
        )
        scores = queries @ keys.transpose(0, 2, 1) * shape.head_dim**-0.5 + mask
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
        out = (chances @ values).transpose(1, 0, 2).reshape(len(x), -1)
        return self._linear(f"{name}.o_proj", out)

    def _keys_values(
        self, layer: int, x: np.ndarray, cos: np.ndarray, sin: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        name, heads = f"layers.{layer}.self_attn", self.shape.kv_heads
        keys = self._norm(f"{name}.k_norm", self._heads(self._linear(f"{name}.k_proj", x), heads))
        return rotate(keys, cos, sin), self._heads(self._linear(f"{name}.v_proj", x), heads)

    def _heads(self, x: np.ndarray, heads: int) -> np.ndarray:
        return x.reshape(len(x), heads, -1).transpose(1, 0, 2)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        gain: np.ndarray = np.asarray(self._tensors[f"{name}.weight"], self.dtype)
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.shape.eps) * gain

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = x @ np.asarray(self._tensors[f"{name}.weight"], self.dtype).T
        if self.shape.bias and "self_attn" in name:
            y = y + np.asarray(self._tensors[f"{name}.bias"], self.dtype)
        return y


def masks(shape: DraftShape, start: int, rows: int) -> dict[str, np.ndarray]:
    """What a block of `rows` behind `start` context columns sees, per kind of attention."""
    keys, places = np.arange(start + rows), np.arange(start, start + rows)[:, None]
    found = {}
    for kind in shape.masks:
        seen = np.ones((rows, start + rows), bool)
        if kind == SLIDING:
            assert shape.window is not None
            seen = (keys >= start) | (places - keys < shape.window)
        if shape.causal[shape.layer_of(kind)]:
            seen = seen & (keys <= places)
        found[kind] = np.where(seen, 0.0, -np.inf)
    return found


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Split-half RoPE of [heads, n, d]."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
