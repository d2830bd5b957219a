"""What a draft is given in real decoding: the text for calibrating and checking its programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..models.draft import DFlashDraft
from ..models.loading import Pair
from ..models.requests import Request
from .acceptance import decode


@dataclass(frozen=True)
class Cycle:
    """One draft.

    Attributes:
        features: [n, taps * hidden] of tokens committed since the cycle before.
        block: [b, hidden] embedded, as the first layer is given it.
        starts: whether a new text begins.
    """

    features: np.ndarray
    block: np.ndarray
    starts: bool = False


class Recording:
    """A draft that writes down what it is given."""

    def __init__(self, draft: DFlashDraft):
        self.config = draft.config
        self.cycles: list[Cycle] = []
        self._draft = draft
        self._pending: list[np.ndarray] = []
        self._starts = False
        self.select = draft.select

    def make_context(self, window: int | None = None, sinks: int = 0) -> Sequence[Any]:
        """A new text."""
        self._pending, self._starts = [], True
        return self._draft.make_context(window, sinks)

    def extend(self, features: mx.array, context: Any) -> None:
        """Features [1, n, taps * H]."""
        self._pending.append(np.array(features[0].astype(mx.float32)))
        self._draft.extend(features, context)

    def __call__(self, embedded: mx.array, context: Any) -> mx.array:
        """Hidden states [1, b, H]."""
        block = np.array(self._draft.enter(embedded)[0].astype(mx.float32))
        self.cycles.append(Cycle(np.concatenate(self._pending), block, self._starts))
        self._pending, self._starts = [self._pending[-1][:0]], False
        return self._draft(embedded, context)


def record(
    pair: Pair, tokenizer: TokenizerWrapper, requests: Sequence[Request], tokens: int
) -> list[Cycle]:
    """Decode answers greedily with whole blocks, and keep what the draft was given."""
    assert pair.draft is not None
    recording = Recording(pair.draft.model)
    for request in requests:
        eos, prompt = frozenset(pair.eos_token_ids), request.encode(tokenizer)
        decode(recording, pair.target, eos, prompt, tokens)
    return recording.cycles
