"""A view of a model that also yields the outputs of chosen layers.

No class and no instance of the model is touched: the modules between the model and its layers are
cloned (sharing every weight), and the clones hold recording stand-ins. The model itself can be used
beside any number of views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .clone import clone
from .recurrence import Recurrences
from .structure import Structure


class _Recorder:
    """Stands in for a module: calls it and keeps its latest input and output."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._latest: tuple[mx.array, mx.array] | None = None

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        result = self._module(x, *args, **kwargs)
        self._latest = x, result[0] if isinstance(result, tuple) else result
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def take(self) -> tuple[mx.array, mx.array]:
        """Input and output; the recorder lets go of them, so that no memory is kept alive."""
        latest, self._latest = self._latest, None
        assert latest is not None, "the module was not called"
        return latest


@dataclass(frozen=True)
class Trace:
    """What one tapped forward saw; lazy arrays.

    Attributes:
        logits: [B, L, V].
        taps: [B, L, H] for each tap, in order.
        entering: [B, L, H], the input of the first tapped layer, None without taps.
        hidden: [B, L, H], what the head was given.
    """

    logits: mx.array
    taps: Sequence[mx.array]
    entering: mx.array | None
    hidden: mx.array

    @property
    def features(self) -> mx.array | None:
        """[B, L, taps * H], None without taps."""
        return mx.concatenate(self.taps, axis=-1) if self.taps else None


class TappedModel:
    """A model with taps.

    Args:
        model: as mlx-lm loaded it.
        structure: what `discover` found in it.
        taps: layer indices whose outputs are wanted, in the order to concatenate them.
        recurrences: watches the layers, so that recurrent ones can be replayed; None for models
            without.
    """

    def __init__(
        self,
        model: nn.Module,
        structure: Structure,
        taps: Sequence[int],
        recurrences: Recurrences | None = None,
    ):
        layers: list[Any] = list(structure.layers)
        if recurrences is not None:
            layers = [recurrences.watch(layer) for layer in layers]
        for index in set(taps):
            layers[index] = _Recorder(layers[index])
        self._taps: list[_Recorder] = [layers[index] for index in taps]
        self._body, self._model = _graft(model, structure, layers)

    def __call__(self, tokens: mx.array, cache: list[Any] | None) -> Trace:
        """Run token ids [B, L] through the model, from the start where there is no cache."""
        logits = self._model(tokens, cache=cache)
        _, hidden = self._body.take()
        seen = {tap: tap.take() for tap in dict.fromkeys(self._taps)}
        if not seen:
            return Trace(logits, (), None, hidden)
        taps = [seen[tap][1] for tap in self._taps]
        return Trace(logits, taps, seen[self._taps[0]][0], hidden)


def _graft(model: nn.Module, structure: Structure, layers: list[Any]) -> tuple[_Recorder, Any]:
    """Clones of the modules from the model down to its layers, with `layers` put in.

    Returns:
        The recorder around the module that holds the layers, and the clone of the model.
    """
    chain = [clone(model)]
    for name in structure.path:
        chain.append(clone(chain[-1][name]))
    chain[-1][structure.layers_name] = layers
    body: Any = _Recorder(chain[-1])
    child = body
    for parent, name in zip(reversed(chain[:-1]), reversed(structure.path), strict=True):
        setattr(parent, name, child)
        child = parent
    return body, child
