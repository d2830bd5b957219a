"""Where an mlx-lm model keeps its layers, embedding and head.

mlx-lm has no common interface for these and moves them between releases, so they are discovered by
structure, never by a list of attribute names; target.py then checks them by numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from ..errors import UnsupportedError


@dataclass(frozen=True)
class Structure:
    """What was found.

    Attributes:
        path: attribute names from the model to the module that holds the layers.
        layers_name: the attribute of that module that is the list of layers.
        layers: the decoder layers.
        embedding: token ids to vectors.
        head: hidden states to logits, or None where the embedding serves (tied).
    """

    path: tuple[str, ...]
    layers_name: str
    layers: list[nn.Module]
    embedding: nn.Embedding | nn.QuantizedEmbedding
    head: nn.Module | None

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.embedding.weight.shape[0]

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        scales = self.embedding.get("scales")
        if scales is None:
            return self.embedding.weight.shape[1]
        return scales.shape[1] * self.embedding.group_size


def discover(model: nn.Module) -> Structure:
    """Find the parts of a decoder that mlx-lm loaded.

    Raises:
        UnsupportedError: a part is missing; the message names it.
    """
    name = type(model).__module__.rsplit(".", 1)[-1]
    layers = list(getattr(model, "layers", ()))
    if not layers:
        raise UnsupportedError(f"the {name} model has no list of layers to tap")
    found = next(_holders(model, layers), None)
    if found is None:
        raise UnsupportedError(f"the layers of the {name} model are not in one module")
    path, layers_name = found
    if not path:
        raise UnsupportedError(f"the {name} model keeps its layers beside its head: cannot tap it")
    chain = _chain(model, path)
    embedding = _widest(chain, (nn.Embedding, nn.QuantizedEmbedding))
    if embedding is None:
        raise UnsupportedError(f"the {name} model has no token embedding")
    vocab_size = embedding.weight.shape[0]
    head = _widest(chain[:-1], (nn.Linear, nn.QuantizedLinear))
    if head is not None and head.weight.shape[0] != vocab_size:
        head = None
    return Structure(path, layers_name, layers, embedding, head)


def _holders(
    module: nn.Module, layers: list[nn.Module], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, child in module.items():
        if isinstance(child, list) and len(child) == len(layers):
            if all(a is b for a, b in zip(child, layers, strict=True)):
                yield path, name
        elif isinstance(child, nn.Module):
            yield from _holders(child, layers, (*path, name))


def _chain(model: nn.Module, path: tuple[str, ...]) -> list[nn.Module]:
    chain = [model]
    for name in path:
        chain.append(chain[-1][name])
    return chain


def _widest(chain: list[nn.Module], kinds: tuple[type, ...]) -> Any:
    found: list[Any] = [m for module in chain for m in module.values() if isinstance(m, kinds)]
    return max(found, key=lambda m: m.weight.shape[0], default=None)
