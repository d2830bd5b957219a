"""What DFlash 2 adds to a draft: dynamic convolutions in the block, and a candidate selector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from .draft_config import DFlash2Config

# (scores [n, V or k], offset of the first row, candidates [n, k] or None) -> ids [n]
Draw = Callable[[mx.array, int, mx.array | None], mx.array]


@dataclass(frozen=True)
class Selection:
    """Which tokens a draft proposes; lazy arrays.

    Attributes:
        tokens: [n] ids.
        scores: [n, V], or [n, k] over `candidates` alone.
        candidates: [n, k] ids, or None where any token may be proposed.
    """

    tokens: mx.array
    scores: mx.array
    candidates: mx.array | None = None


class DynamicConv(nn.Module):
    """A depthwise causal convolution whose kernel depends on the position's own hidden state.

    It wraps a sublayer: one kernel acts on what goes in, another on what comes out, and both are
    read off the input. Each kernel is a learnt one per channel plus a predicted one per group of
    channels.
    """

    def __init__(self, hidden_size: int, config: DFlash2Config):
        super().__init__()
        self.taps, self.group = config.conv_kernel_size, config.conv_group_size
        groups = hidden_size // self.group
        self.base_kernel = mx.zeros((2, self.taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * self.taps * groups, bias=False)

    def kernels(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """The two kernels [1, b, taps, H] for inputs [1, b, H]."""
        predicted = self.kernel_projection(x).reshape(*x.shape[:2], 2, self.taps, -1)
        whole = self.base_kernel + mx.repeat(predicted, self.group, axis=-1)
        return whole[:, :, 0], whole[:, :, 1]

    @staticmethod
    def convolve(x: mx.array, kernel: mx.array) -> mx.array:
        """Weighted sum of each position and the ones before it in the block, [1, b, H]."""
        total = kernel[:, :, 0] * x
        for back in range(1, kernel.shape[2]):
            earlier = mx.pad(x, [(0, 0), (back, 0), (0, 0)])[:, : x.shape[1]]
            total = total + kernel[:, :, back] * earlier
        return total


class CandidateSelector(nn.Module):
    """Picks a path through the likeliest tokens of each position, judging each step by the token
    before it.
    """

    def __init__(self, hidden_size: int, vocab_size: int, config: DFlash2Config):
        super().__init__()
        self.top_k = config.selector_top_k
        self.predecessor_codebook = mx.zeros((vocab_size, config.selector_rank))
        self.successor_codebook = mx.zeros((vocab_size, config.selector_rank))
        self.hidden_projection = nn.Linear(hidden_size, config.selector_rank, bias=False)

    def __call__(
        self,
        hidden: mx.array,
        logits: mx.array,
        anchor: int,
        draw: Draw,
        ids: mx.array | None = None,
    ) -> Selection:
        """The walk from the anchor.

        Args:
            hidden: [n, H] final hidden states.
            logits: [n, N] the draft's logits.
            anchor: the token before the first position.
            draw: chooses among the candidates of a position.
            ids: [N] the tokens that the logits stand for, None for the whole vocabulary.
        """
        candidates = mx.argpartition(logits, -self.top_k, axis=-1)[:, -self.top_k :]
        unary = mx.take_along_axis(logits, candidates, axis=-1)
        if ids is not None:
            candidates = ids[candidates]
        gates = self.hidden_projection(hidden)
        successors = self.successor_codebook[candidates]  # [n, k, r]
        token = mx.array(anchor)
        path, rows = [], []
        for position in range(hidden.shape[0]):
            step = self.predecessor_codebook[token] * gates[position]
            scores = unary[position] + successors[position] @ step
            token = draw(scores[None], position, candidates[position : position + 1])[0]
            path.append(token)
            rows.append(scores)
        return Selection(mx.stack(path), mx.stack(rows), candidates)
