"""The target's caches, taken back to what was accepted.

A verify writes one row per drafted token into every layer's cache; `mark` before it and `rewind`
after it leave exactly the rows of accepted tokens.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from ..errors import UnsupportedError

# Kinds whose rows stand in order behind one offset, so that forgetting rows is exact.
TRIMMABLE = (KVCache, QuantizedKVCache)


class TargetCache:
    """The caches of all layers for one sequence.

    Args:
        model: an mlx-lm model.

    Raises:
        UnsupportedError: a layer uses a cache that cannot be rewound; the message names it.
    """

    def __init__(self, model: nn.Module):
        self.layers: list[Any] = make_prompt_cache(model)
        self.length = 0
        self._mark: int | None = None
        kinds = {type(c).__name__ for c in self.layers if type(c) not in TRIMMABLE}
        if kinds:
            raise UnsupportedError(
                f"the target's layers use {' and '.join(sorted(kinds))}, which mirror-sd cannot "
                "rewind yet; it needs plain KV caches"
            )

    def advance(self, rows: int) -> None:
        """Note that the model has just written `rows` rows."""
        self.length += rows

    def mark(self) -> None:
        """Remember this state: the next `rewind` counts from here."""
        self._mark = self.length

    def rewind(self, keep: int) -> None:
        """Forget all rows written since `mark` but the first `keep`."""
        assert self._mark is not None, "rewind without mark"
        self.trim_to(self._mark + keep)
        self._mark = None

    def trim_to(self, length: int) -> None:
        """Forget everything behind the first `length` rows."""
        assert 0 <= length <= self.length, f"cannot trim {self.length} rows to {length}"
        for cache in self.layers:
            cache.trim(cache.offset - length)
        self.length = length

    def restore(self) -> None:
        """Forget a forward pass or a verify that was cut short, if there was one."""
        self.trim_to(self.length if self._mark is None else self._mark)
        self._mark = None

    @property
    def arrays(self) -> list[mx.array]:
        """Everything to evaluate so that the caches are up to date."""
        return [cache.state for cache in self.layers]
