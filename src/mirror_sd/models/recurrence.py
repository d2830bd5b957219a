"""Recurrent layers, run again over accepted rows without running their projections again.

After a verify, a recurrent state (GatedDeltaNet, Mamba, short convolutions, RWKV) has seen rejected
rows too. The marked state must be advanced over the accepted rows alone. To do that for any
architecture, the modules that are handed a recurrent cache are called again with the rows they
were given, cut to the accepted ones; their linear projections, which map each row by itself, hand
out the rows they computed during the verify. What is left to compute is convolution and
recurrence. MLX is lazy: whatever does not lead to the state is never computed.

All of this works on clones that share every weight; the model itself is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, CacheList

from ..errors import UnsupportedError
from .clone import clone

ROW_WISE = (nn.Linear, nn.QuantizedLinear)


@dataclass
class _Call:
    """One call of a recurrent module during a verify."""

    module: _Recurrence
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    projections: list[mx.array] = field(default_factory=list)


class Recurrences:
    """All recurrent modules of one view of a model; a `Replayer`.

    `recording` is switched on for a verify, whose rows may have to be taken back.
    """

    def __init__(self) -> None:
        self.recording = False
        self._calls: dict[int, list[_Call]] = {}  # by cache
        self._active: _Call | None = None
        self._pending: Iterator[mx.array] | None = None
        self._keep = 0

    def watch(self, layer: nn.Module) -> nn.Module:
        """A twin of `layer` whose recurrent modules can be replayed."""
        twin = clone(layer)
        for name, child in layer.items():
            if isinstance(child, nn.Module):
                twin[name] = _Recurrence(child, self)
        return twin

    def start(self) -> None:
        """Record from here on; forget what was recorded before."""
        self._calls = {}
        self.recording = True

    def stop(self) -> None:
        """Record no more; what was recorded stays until the next `start` or `forget`."""
        self.recording = False

    def forget(self) -> None:
        """Let go of recorded arrays."""
        self._calls = {}

    def check(self, caches: Sequence[Any], name: str) -> None:
        """After a recorded forward: every recurrent cache was written by a module that is known.

        Raises:
            UnsupportedError: one was not; it could not be rewound.
        """
        self.stop()
        if any(id(cache) not in self._calls for cache in recurrent(caches)):
            raise UnsupportedError(
                f"{name}: a layer handles its recurrent state itself, so mirror-sd cannot rewind it"
            )

    def replay(self, cache: ArraysCache, keep: int) -> None:
        """Advance `cache`, put back to its marked state, over the first `keep` recorded rows."""
        for call in self._calls[id(cache)]:
            self._keep = keep
            self._pending = iter(call.projections)
            try:
                call.module.run(_cut(call.args, keep), _cut(call.kwargs, keep))
            finally:
                self._pending = None

    def record(
        self, module: _Recurrence, cache: ArraysCache, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a recurrent module and keep what a replay needs."""
        call = _Call(module, args, kwargs)
        self._calls.setdefault(id(cache), []).append(call)
        self._active = call
        try:
            return module.run(args, kwargs)
        finally:
            self._active = None

    def project(self, linear: Any, x: mx.array, args: tuple[Any, ...]) -> mx.array:
        """A projection's rows: computed and kept while recording, handed out in a replay."""
        if self._pending is not None:
            return next(self._pending)[:, : self._keep]
        rows = linear(x, *args)
        if self._active is not None:
            self._active.projections.append(rows)
        return rows


def recurrent(caches: Sequence[Any]) -> list[ArraysCache]:
    """The recurrent caches among a model's caches, at any depth."""
    found: list[ArraysCache] = []
    for cache in caches:
        if isinstance(cache, ArraysCache):
            found.append(cache)
        elif isinstance(cache, CacheList):
            found += recurrent(cache.caches)
    return found


def has_recurrence(caches: Sequence[Any]) -> bool:
    """Whether any layer has a recurrent state."""
    return bool(recurrent(caches))


class _Recurrence:
    """Stands in for a child of a layer; notices whether it is handed a recurrent cache."""

    def __init__(self, module: nn.Module, owner: Recurrences):
        self._module = module
        self._owner = owner
        self._twin: nn.Module | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        cache = _recurrent_cache(args, kwargs)
        if cache is None or not self._owner.recording:
            return self._module(*args, **kwargs)
        return self._owner.record(self, cache, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module with its projections under the owner's control."""
        if self._twin is None:
            self._twin = _with_projections(self._module, self._owner)
        return self._twin(*args, **kwargs)


class _Projection:
    """Stands in for a linear layer inside a recurrent module."""

    def __init__(self, linear: Any, owner: Recurrences):
        self._linear = linear
        self._owner = owner

    def __call__(self, x: mx.array, *args: Any) -> mx.array:
        return self._owner.project(self._linear, x, args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._linear, name)


def _recurrent_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArraysCache | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, ArraysCache):
            return value
    return None


def _with_projections(module: nn.Module, owner: Recurrences) -> nn.Module:
    """A twin of `module` in which every linear layer, at any depth, is a `_Projection`."""
    twin = clone(module)
    for name, child in module.items():
        twin[name] = _replace(child, owner)
    return twin


def _replace(child: Any, owner: Recurrences) -> Any:
    if isinstance(child, ROW_WISE):
        return _Projection(child, owner)
    if isinstance(child, nn.Module):
        return _with_projections(child, owner)
    if isinstance(child, list):
        return [_replace(item, owner) for item in child]
    return child


def _cut(value: Any, keep: int) -> Any:
    """The first `keep` rows of every [B, L, ...] array among a call's arguments."""
    if isinstance(value, mx.array):
        return value[:, :keep] if value.ndim >= 2 else value
    if isinstance(value, tuple):
        return tuple(_cut(item, keep) for item in value)
    if isinstance(value, dict):
        return {name: _cut(item, keep) for name, item in value.items()}
    return value
