"""A view of a model that also yields the outputs of chosen layers.

No class and no instance of the model is touched: the modules between the model and its layers are
cloned (sharing every weight), and the clones hold recording stand-ins. The model itself can be used
beside any number of views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .structure import Structure


class _Recorder:
    """Stands in for a module: calls it and keeps its last output (and first input)."""

    def __init__(self, module: nn.Module):
        self._module = module
        self.inputs: mx.array | None = None
        self.output: mx.array | None = None

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        self.inputs = x
        result = self._module(x, *args, **kwargs)
        self.output = result[0] if isinstance(result, tuple) else result
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def take(self) -> mx.array:
        """The last output; the recorder forgets it, so that no memory is kept alive."""
        output, self.output, self.inputs = self.output, None, None
        assert output is not None, "the layer was not called"
        return output


class TappedModel:
    """A model with taps.

    Args:
        model: as mlx-lm loaded it.
        structure: what `discover` found in it.
        taps: layer indices whose outputs are wanted, in the order to concatenate them.
    """

    def __init__(self, model: nn.Module, structure: Structure, taps: Sequence[int]):
        layers = list(structure.layers)
        for index in set(taps):
            layers[index] = _Recorder(layers[index])
        self._taps = [layers[index] for index in taps]
        chain = [_clone(model)]
        for name in structure.path:
            chain.append(_clone(chain[-1][name]))
        chain[-1][structure.layers_name] = layers
        self._body = _Recorder(chain[-1])
        child: Any = self._body
        for parent, name in zip(reversed(chain[:-1]), reversed(structure.path), strict=True):
            setattr(parent, name, child)
            child = parent
        self._model = child

    def __call__(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, mx.array | None]:
        """Logits [B, L, V] and features [B, L, taps * H] (None without taps)."""
        logits, features, _ = self.forward(tokens, cache)
        return logits, features

    def forward(
        self, tokens: mx.array, cache: list[Any]
    ) -> tuple[mx.array, mx.array | None, mx.array]:
        """As calling, and the hidden states [B, L, H] that the head was given."""
        logits = self._model(tokens, cache=cache)
        hidden = self._body.take()
        outputs = {id(tap): tap.take() for tap in set(self._taps)}
        if not self._taps:
            return logits, None, hidden
        features = mx.concatenate([outputs[id(tap)] for tap in self._taps], axis=-1)
        return logits, features, hidden


def _clone(module: nn.Module) -> nn.Module:
    """A module of the same class with the same weights and children, and its own attributes."""
    twin = module.__class__.__new__(module.__class__)
    dict.update(twin, module)
    twin.__dict__.update(module.__dict__)
    return twin
