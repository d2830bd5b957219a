"""The target: an mlx-lm model that is verified against, and one sequence running on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..caches.target_cache import Checkpoint, TargetCache
from ..errors import UnsupportedError
from .recurrence import Recurrences, has_recurrence
from .structure import discover
from .taps import TappedModel, Trace

PREFILL_CHUNK = 512
_PROBE = (1, 2, 3, 5, 8)


@dataclass(frozen=True)
class Verification:
    """What one target pass over [anchor, drafted tokens] gives; lazy arrays.

    Attributes:
        logits: [n + 1, V]; row i scores the token after the i-th input.
        features: [1, n + 1, taps * H], or None for a target without taps.
        taps: [1, n + 1, H] for each tap: what `features` is made of.
    """

    logits: mx.array
    features: mx.array | None
    taps: Sequence[mx.array] = ()


class TargetModel:
    """A decoder as mlx-lm loaded it, with what a draft borrows: embedding and head.

    Args:
        model: the mlx-lm model; it is not changed and can be used beside this.
        config: its config.json.
        name: how the user named it, for messages.

    Raises:
        UnsupportedError: its layers cannot be found, or reading them changes its logits.
    """

    def __init__(self, model: nn.Module, config: dict[str, Any], name: str = "target"):
        self.model = model
        self.name = name
        self.config = {**config, **config.get("text_config", {})}
        self.structure = discover(model)
        self.embedding_scale = 1.0
        self.logit_scale = 1.0
        self.softcap: float | None = self.config.get("final_logit_softcapping") or self.config.get(
            "logits_soft_cap"
        )
        self._trace = self._check_taps()

    @property
    def depth(self) -> int:
        """How many layers it has."""
        return len(self.structure.layers)

    @property
    def hidden_size(self) -> int:
        """Width of its hidden states."""
        return self.structure.hidden_size

    @property
    def vocab_size(self) -> int:
        """Rows of its embedding; a tokenizer may use fewer."""
        return self.structure.vocab_size

    @property
    def context_limit(self) -> int | None:
        """The most tokens it was made for, prompt and answer together, if its config tells."""
        return self.config.get("max_position_embeddings")

    def embed(self, tokens: mx.array) -> mx.array:
        """Token ids [..., n] to what the first layer is given, [..., n, H]."""
        embedded = self.structure.embedding(tokens)
        return embedded if self.embedding_scale == 1.0 else embedded * self.embedding_scale

    def head(self, hidden: mx.array) -> mx.array:
        """Normed hidden states [..., H] to logits [..., V], without scale and softcap."""
        if self.structure.head is not None:
            return self.structure.head(hidden)
        return self.structure.embedding.as_linear(hidden)

    def logits(self, hidden: mx.array, softcap: float | None = None) -> mx.array:
        """Normed hidden states [..., H] to logits [..., V] as the target itself would give them;
        `softcap` replaces the target's own.
        """
        return self.finish(self.head(hidden), softcap)

    def finish(self, logits: mx.array, softcap: float | None = None) -> mx.array:
        """Scale and softcap of the head's outputs."""
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        cap = softcap if softcap is not None else self.softcap
        return mx.tanh(logits / cap) * cap if cap else logits

    def head_rows(self, ids: mx.array) -> tuple[mx.array, ...]:
        """The head's weights for some tokens, for `product`: one array, or weight, scales and
        biases of a quantised head.
        """
        module = self.structure.head or self.structure.embedding
        names = [n for n in ("weight", "scales", "biases") if module.get(n) is not None]
        rows = tuple(module[name][ids] for name in names)
        mx.eval(rows)
        return rows

    def product(self, hidden: mx.array, rows: tuple[mx.array, ...]) -> mx.array:
        """Normed hidden states [..., H] times `head_rows`, [..., N]."""
        module = self.structure.head or self.structure.embedding
        if len(rows) == 1:
            return hidden @ rows[0].T
        return mx.quantized_matmul(
            hidden,
            *rows,
            transpose=True,
            group_size=module.group_size,
            bits=module.bits,
            mode=module.mode,
        )

    def lend(self) -> None:
        """Find out by numbers how embedding and head are used, before a draft borrows them.

        Raises:
            UnsupportedError: they do not give what the target itself computes.
        """
        tokens, trace = self._trace
        assert trace.entering is not None
        self._measure_embedding(tokens, trace.entering)
        self._measure_head(trace.hidden, trace.logits)

    def _check_taps(self) -> tuple[mx.array, Trace]:
        """The tapped forward must give the model's own logits, bit for bit, and every recurrent
        cache must be written where it can be replayed.
        """
        tokens = mx.array([[token % self.vocab_size for token in _PROBE]])
        own = self.model(tokens, cache=make_prompt_cache(self.model))
        recurrences = Recurrences()
        tapped = TappedModel(self.model, self.structure, range(self.depth), recurrences)
        cache = make_prompt_cache(self.model)
        recurrences.start()
        trace = tapped(tokens, cache)
        recurrences.check(cache, self.name)
        if not mx.array_equal(own, trace.logits, equal_nan=True):
            raise UnsupportedError(
                f"{self.name}: reading its layers' outputs changes its logits; "
                "please report this model"
            )
        mx.eval(trace.hidden, trace.entering)
        return tokens, replace(trace, taps=())

    def _measure_embedding(self, tokens: mx.array, entering: mx.array) -> None:
        plain = self.structure.embedding(tokens).astype(mx.float32)
        entering = entering.astype(mx.float32)
        scale = ((plain * entering).sum() / (plain * plain).sum()).item()
        if not _close(plain * scale, entering):
            raise UnsupportedError(
                f"{self.name}: its first layer is not given its token embedding; "
                "a draft cannot borrow it"
            )
        self.embedding_scale = 1.0 if abs(scale - 1) < 1e-3 else scale

    def _measure_head(self, hidden: mx.array, logits: mx.array) -> None:
        wanted = logits.astype(mx.float32)
        if self.softcap and not _close(self.logits(hidden), wanted):
            self.softcap = None  # configured, but not applied by this model
        plain = self.logits(hidden).astype(mx.float32)
        if not self.softcap:
            scale = ((plain * wanted).sum() / (plain * plain).sum()).item()
            self.logit_scale = 1.0 if abs(scale - 1) < 1e-3 else scale
        if not _close(self.logits(hidden), wanted):
            raise UnsupportedError(
                f"{self.name}: its head was not found (head and final norm do not give its own "
                "logits); a draft cannot borrow it"
            )


def _close(got: mx.array, wanted: mx.array) -> bool:
    """Equal up to rounding in a 16-bit format."""
    got, wanted = got.astype(mx.float32), wanted.astype(mx.float32)
    error = mx.abs(got - wanted).max().item()
    size = mx.abs(wanted).max().item()
    return math.isfinite(error) and error <= 0.02 * size + 1e-6


class Target:
    """One sequence on a target: prefill, then verify and commit in turn.

    Args:
        model: the weights, shared by any number of sequences.
        taps: layers whose outputs the draft wants.

    Raises:
        UnsupportedError: the model's caches cannot be rewound.
    """

    def __init__(self, model: TargetModel, taps: Sequence[int] = ()):
        self.model = model
        self._recurrences = Recurrences()
        self.cache = TargetCache(make_prompt_cache(model.model), self._recurrences)
        watched = self._recurrences if has_recurrence(self.cache.layers) else None
        self._tapped = TappedModel(model.model, model.structure, taps, watched)

    @property
    def length(self) -> int:
        """How many committed tokens the caches hold."""
        return self.cache.length

    def prefill(
        self, tokens: Sequence[int], chunk: int | None = None
    ) -> Iterator[tuple[int, mx.array | None]]:
        """Commit known tokens, chunk by chunk, computing no logits.

        Args:
            tokens: ids.
            chunk: rows per pass; None for the usual number.

        Yields:
            For each chunk how many tokens it held, and their features [1, n, taps * H].
        """
        chunk = chunk or PREFILL_CHUNK
        for start in range(0, len(tokens), chunk):
            part = mx.array(tokens[start : start + chunk])[None]
            features = self._forward(part, rejectable=False).features
            mx.eval(self.cache.arrays, features)
            self.cache.rewind(part.shape[1])
            mx.clear_cache()
            yield part.shape[1], features

    def verify(self, tokens: mx.array, rejectable: bool | None = None) -> Verification:
        """Run the target over [anchor, drafted tokens], [n + 1] ids. `commit` must follow.

        Args:
            tokens: ids.
            rejectable: whether rows may be rejected; None: unless there is but one.
        """
        several = tokens.shape[0] > 1
        if several:
            self._recurrences.start()
        trace = self._forward(tokens[None], several if rejectable is None else rejectable)
        self._recurrences.stop()
        return Verification(trace.logits[0], trace.features, trace.taps)

    def commit(self, rows: int) -> None:
        """Keep the first `rows` rows of the verified tokens and forget the rest."""
        self.cache.rewind(rows)
        self._recurrences.forget()

    def save(self) -> Checkpoint:
        """The present state of the caches."""
        return self.cache.save()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Forget everything since a saved state, committed or not."""
        self._recurrences.forget()
        self.cache.restore(checkpoint)

    def recover(self) -> None:
        """Forget a prefill chunk or a verify that was interrupted, if there is one."""
        self._recurrences.stop()
        self.cache.recover()

    def trim_to(self, length: int) -> int:
        """Forget all tokens behind the first `length`, or all tokens where the model's caches
        cannot forget some only.

        Returns:
            How many tokens are left.
        """
        return self.cache.trim_to(length)

    def _forward(self, tokens: mx.array, rejectable: bool) -> Trace:
        self.cache.mark(rejectable)
        trace = self._tapped(tokens, self.cache.layers)
        self.cache.written(tokens.shape[1])
        return trace
