"""Which texts and anchors a step learns from: a function of the seed and the step alone.

Nothing is drawn from a generator that remembers, so a run that is resumed, or shared by several
machines, sees exactly what an uninterrupted run on one machine sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import CheckpointError
from .data import Text

POOL = 16  # batches that are sorted by length together, so that little is padding
DECAYS = {16: 7.0, 10: 5.0, 8: 4.0}


@dataclass(frozen=True)
class Sampling:
    """How blocks are drawn.

    Attributes:
        batch: sequences per step, over all machines.
        anchors: blocks per sequence.
        block_size: anchor and drafted tokens.
        decay: g of the loss weights exp(-(k - 1) / g) at position k; None for the paper's choice.
        visible_prefix: share of blocks whose first 1..B-2 tokens after the anchor are visible.
        feature_lag: share of blocks whose features end 1..B tokens before the anchor.
        tap_dropout: chance of each tap to be zero for a text, one at least being left.
        seed: of everything.
    """

    batch: int = 16
    anchors: int = 16
    block_size: int = 8
    decay: float | None = None
    visible_prefix: float = 0.0
    feature_lag: float = 0.0
    tap_dropout: float = 0.0
    seed: int = 0

    def for_block_size(self, size: int) -> Sampling:
        """The same for another block size."""
        return replace(self, block_size=size)

    @property
    def loss_decay(self) -> float:
        """g: as given, else 7, 5 and 4 for blocks of 16, 10 and 8 (arXiv 2602.06036), and in line
        with these for others.
        """
        return self.decay or DECAYS.get(self.block_size, max(1.0, self.block_size / 2))


@dataclass(frozen=True)
class Batch:
    """One step's blocks; b sequences, padded to S tokens, with A anchors of B tokens each.

    Attributes:
        ids: [b, S] tokens.
        texts: [b] indices of the texts.
        anchors: [b, A] positions of the anchors.
        ends: [b, A] positions at which the visible features end.
        labels: [b, A, B] the true tokens at and behind each anchor, 0 where the text has ended.
        visible: [b, A, B] whether the draft sees the token instead of a mask.
        weights: [b, A, B] of the loss, 0 at visible positions and behind the text's end.
        kept_taps: [b, taps] whether the draft sees the features of a tap.
    """

    ids: np.ndarray
    texts: np.ndarray
    anchors: np.ndarray
    ends: np.ndarray
    labels: np.ndarray
    visible: np.ndarray
    weights: np.ndarray
    kept_taps: np.ndarray


class Schedule:
    """The batches of all steps.

    Args:
        texts: to learn from; those without two tokens of answer are left out.
        sampling: how blocks are drawn.
        taps: of the draft.

    Raises:
        CheckpointError: no text is usable.
    """

    def __init__(self, texts: Sequence[Text], sampling: Sampling, taps: int = 1):
        self.sampling, self.taps = sampling, taps
        self._texts = texts
        self._usable = np.array([i for i, t in enumerate(texts) if len(t) - t.prompt >= 2])
        if not len(self._usable):
            raise CheckpointError("no training text has an answer of at least two tokens")
        self.steps_per_epoch = max(1, len(self._usable) // sampling.batch)
        self._order: tuple[int, np.ndarray] | None = None

    @property
    def batch_size(self) -> int:
        """Texts per step."""
        return min(self.sampling.batch, len(self._usable))

    def common_tokens(self, vocab_size: int) -> np.ndarray:
        """Ids that occur in any text, ascending."""
        seen = np.zeros(vocab_size, bool)
        for text in self._texts:
            seen[text.ids] = True
        return np.flatnonzero(seen)

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The blocks of a step, or one machine's share of them.

        Args:
            step: counted from 0.
            rank: which machine.
            ranks: how many machines, at most as many as texts in a batch.
        """
        epoch, index = divmod(step, self.steps_per_epoch)
        size = self.batch_size
        chosen = self._epoch(epoch)[index * size : (index + 1) * size][rank::ranks]
        return self._build(chosen, epoch)

    def _epoch(self, epoch: int) -> np.ndarray:
        """The order of texts: shuffled, sorted by length within pools, and batches mixed again."""
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.sampling.seed, epoch])
            order = rng.permutation(self._usable)
            size = self.sampling.batch
            batches = []
            for start in range(0, len(order), POOL * size):
                pool = order[start : start + POOL * size]
                pool = pool[np.argsort([len(self._texts[i]) for i in pool], kind="stable")]
                batches += [pool[i : i + size] for i in range(0, len(pool), size)]
            whole = [part for part in batches if len(part) == size] or batches
            mixed = [whole[i] for i in rng.permutation(len(whole))]
            self._order = epoch, np.concatenate(mixed)
        return self._order[1]

    def _build(self, chosen: np.ndarray, epoch: int) -> Batch:
        sampling, block = self.sampling, self.sampling.block_size
        width = max(len(self._texts[i]) for i in chosen)
        ids = np.zeros((len(chosen), width + block), np.int64)
        shape = (len(chosen), sampling.anchors)
        anchors, ends, shown = (np.zeros(shape, np.int64) for _ in range(3))
        used = np.zeros(shape, bool)
        kept = np.ones((len(chosen), self.taps), bool)
        for row, index in enumerate(chosen):
            text = self._texts[index]
            ids[row, : len(text)] = text.ids
            rng = np.random.default_rng([sampling.seed, epoch, int(index)])
            anchors[row], used[row] = _anchors(text, sampling.anchors, rng)
            lag = rng.integers(1, block + 1, sampling.anchors)
            lagging = rng.random(sampling.anchors) < sampling.feature_lag
            ends[row] = np.maximum(1, anchors[row] - lag * lagging)
            prefix = rng.integers(1, max(2, block - 1), sampling.anchors)
            shown[row] = prefix * (rng.random(sampling.anchors) < sampling.visible_prefix)
            kept[row] = rng.random(self.taps) >= sampling.tap_dropout
            kept[row, rng.integers(self.taps)] = True
        places = anchors[..., None] + np.arange(block)
        lengths = np.array([len(self._texts[i]) for i in chosen])
        inside = (places < lengths[:, None, None]) & used[..., None]
        labels = np.take_along_axis(ids, places.reshape(len(chosen), -1), 1).reshape(places.shape)
        visible = np.arange(block) <= shown[..., None]
        weights = _decay(shown, block, sampling.loss_decay) * (inside & ~visible)
        return Batch(ids[:, :width], chosen, anchors, ends, labels, visible, weights, kept)


def _anchors(text: Text, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Distinct anchors, from the prompt's last token on; the rest is unused."""
    first = max(1, text.prompt - 1)
    found = first + rng.permutation(len(text) - 1 - first)[:count]
    anchors = np.full(count, first)
    anchors[: len(found)] = found
    return anchors, np.arange(count) < len(found)


def _decay(shown: np.ndarray, block: int, decay: float) -> np.ndarray:
    """Weights [b, A, B]: the first token that is not visible counts most."""
    ahead = np.arange(block) - shown[..., None] - 1
    return np.exp(-np.maximum(0, ahead) / decay)
