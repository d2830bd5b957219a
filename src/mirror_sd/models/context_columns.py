"""A draft's context rows computed beside the target's own pass: exact, and ready when it is.

`fc` is linear over taps: the product with each tap can be computed as soon as the target has passed
that layer, and only the last one, and every layer's keys and values, are left at the end. A device
that is given these columns needs neither `fc` nor a call to take in context.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from ..caches.context import ContextCache
from .clone import clone
from .draft import DFlashDraft


class ContextColumns:
    """Keys and values of context rows for all layers of a draft, packed as [1, n, width]: all
    layers' keys, then all layers' values, each by heads.

    Args:
        draft: whose `fc`, K and V are used; `fc` is held a second time, divided by taps.
    """

    def __init__(self, draft: DFlashDraft):
        config = draft.config
        self._draft = draft
        self._shape = (2, config.num_layers, config.num_kv_heads, config.head_dim)
        self._pieces: list[nn.Module] = []

    @property
    def width(self) -> int:
        """Values of a row."""
        kinds, layers, heads, dim = self._shape
        return kinds * layers * heads * dim

    def of_features(self, features: mx.array, position: int) -> mx.array:
        """Packed rows of features [1, n, taps * H] whose first stands at `position`."""
        return self._packed(self._draft.project(features), position)

    def of_taps(self, taps: Sequence[mx.array], position: int) -> mx.array:
        """The same of single taps [1, n, H], as the sum of their products with `fc`."""
        if not self._pieces:
            self._pieces = divided(self._draft.fc, len(taps))
        if len(self._pieces) != len(taps):
            return self.of_features(mx.concatenate(taps, axis=-1), position)
        dtype = self._draft.fc_dtype
        parts = [p(tap.astype(dtype)) for p, tap in zip(self._pieces, taps, strict=True)]
        return self._packed(self._draft.hidden_norm(sum(parts[1:], parts[0])), position)

    def append(self, rows: mx.array, context: list[ContextCache]) -> None:
        """Append packed rows to the context of the draft in MLX."""
        _, count, _ = rows.shape
        by_layer = rows.reshape(1, count, *self._shape).transpose(2, 3, 0, 4, 1, 5)
        for layer, cache in enumerate(context):
            cache.append(by_layer[0, layer], by_layer[1, layer])

    def _packed(self, projected: mx.array, position: int) -> mx.array:
        layers = [layer.self_attn for layer in self._draft.layers]
        pairs = [layer.keys_values(projected, position) for layer in layers]
        both = [rows for kind in zip(*pairs, strict=True) for rows in kind]
        count = projected.shape[1]
        return mx.concatenate([x.transpose(0, 2, 1, 3).reshape(1, count, -1) for x in both], -1)


def divided(linear: nn.Module, count: int) -> list[nn.Module]:
    """A linear map without bias as maps of the `count` equal parts of what goes in; as itself
    alone where a quantised one's groups cross the parts.
    """
    names = [name for name in ("weight", "scales", "biases") if linear.get(name) is not None]
    if any(linear[name].shape[-1] % count for name in names):
        return [linear]
    pieces = [clone(linear) for _ in range(count)]
    for name in names:
        for piece, part in zip(pieces, mx.split(linear[name], count, axis=-1), strict=True):
            piece[name] = mx.contiguous(part)  # matmul would copy a view in every pass
    mx.eval([piece.parameters() for piece in pieces])
    return pieces
