"""How much memory a target and its caches take, before anything is loaded.

The model is built without weights and run without evaluating: MLX knows every shape and byte of a
lazy array, so this is exact for any architecture and costs no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from mlx_lm.utils import _get_classes

from ..errors import UnsupportedError


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model.

    Attributes:
        stored: weights as they lie on disk, by their headers.
        parameters: how many weights there are.
        per_token: cache growth per token, in 16-bit values, while no window is full.
        windows: (bytes per token, tokens) of layers that stop growing after so many tokens.
        fixed: recurrent states.
    """

    stored: int
    parameters: int
    per_token: int
    windows: tuple[tuple[int, int], ...]
    fixed: int

    def caches(self, tokens: int, bytes_per_value: int = 2) -> int:
        """Bytes of the target's caches after `tokens` tokens."""
        growing = self.per_token - sum(size for size, _ in self.windows)
        bounded = sum(size * min(tokens, limit) for size, limit in self.windows)
        return (growing * tokens + bounded + self.fixed) * bytes_per_value // 2


def estimate(config: dict[str, Any], stored: int) -> Footprint:
    """The footprint of a model by its config.

    Args:
        config: config.json of the model.
        stored: bytes of its weights on disk.

    Raises:
        UnsupportedError: mlx-lm does not know the model.
    """
    try:
        model_class, args_class = _get_classes(config)
        model = model_class(args_class.from_dict(config))
        caches = make_prompt_cache(model)
        model(mx.zeros((1, 1), mx.int32), cache=caches)
    except Exception as error:  # whatever a model's constructor makes of a bad config
        raise UnsupportedError(f"cannot estimate this model's memory: {error}") from error
    per_token, fixed = 0, 0
    windows = []
    for cache in _flat(caches):
        if isinstance(cache, ArraysCache):
            fixed += sum(_halved(state) for state in cache.cache if state is not None)
            continue
        row = sum(_halved(a) // a.shape[2] for _, a in tree_flatten((cache.keys, cache.values)))
        per_token += row
        limit = _limit(cache)
        if limit is not None:
            windows.append((row, limit))
    parameters = sum(a.size for _, a in tree_flatten(model.parameters()))
    return Footprint(stored, parameters, per_token, tuple(windows), fixed)


def _flat(caches: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for cache in caches:
        found += _flat(cache.caches) if isinstance(cache, CacheList) else [cache]
    return found


def _limit(cache: Any) -> int | None:
    if isinstance(cache, RotatingKVCache):
        return cache.max_size
    return cache.chunk_size if isinstance(cache, ChunkedKVCache) else None


def _halved(array: mx.array) -> int:
    """Bytes in a 16-bit format: a model without weights is float32."""
    return array.size * 2
