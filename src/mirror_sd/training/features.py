"""What the target gives for training texts: computed when needed, or once and kept on disk.

Either way a text's features are computed in a batch that depends on nothing but the data, so a run
that is resumed sees the same bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import mlx.core as mx
import numpy as np

from ..models.taps import TappedModel
from ..models.target import TargetModel
from .batches import Batch
from .data import Text

Progress = Callable[[int, int], None]
GROUP = 16  # texts per pass when features are written to disk
CHUNK = 512  # rows of logits at a time
SAVE_EVERY = 32  # groups


@dataclass(frozen=True)
class Outputs:
    """The target's outputs on a batch's texts; rows behind a text's end are arbitrary.

    Attributes:
        features: [b, S, taps * H].
        likeliest: [b, S, K] ids of the target's likeliest next tokens, if they are learnt from.
        probabilities: [b, S, K] of these.
    """

    features: mx.array
    likeliest: mx.array | None = None
    probabilities: mx.array | None = None


class Features(Protocol):
    """Gives the target's outputs on a batch."""

    def __call__(self, batch: Batch) -> Outputs:
        """Of the batch's texts."""


class Computed:
    """Runs the target over every batch.

    Args:
        target: frozen.
        taps: layers whose outputs the draft wants.
        likeliest: how many of the target's likeliest tokens are wanted as well.
    """

    def __init__(self, target: TargetModel, taps: Sequence[int], likeliest: int = 0):
        self._target, self.likeliest = target, likeliest
        self._tapped = TappedModel(target.model, target.structure, taps)
        self.width = len(taps) * target.hidden_size
        self.name = f"{target.name} {list(taps)} {likeliest}"

    def __call__(self, batch: Batch) -> Outputs:
        """Causal, so what pads a text on the right does not matter."""
        return self.of(batch.ids)

    def of(self, ids: np.ndarray) -> Outputs:
        """Of token ids [b, S]; evaluated, so that the target's buffers are free again before the
        draft's graph is built.
        """
        trace = self._tapped(mx.array(ids), None)
        assert trace.taps
        features = mx.stop_gradient(mx.concatenate(trace.taps, axis=-1))
        mx.eval(features, trace.hidden if self.likeliest else [])
        if not self.likeliest:
            return Outputs(features)
        return Outputs(features, *self._likeliest(mx.stop_gradient(trace.hidden)))

    def _likeliest(self, hidden: mx.array) -> tuple[mx.array, mx.array]:
        rows = hidden.reshape(-1, hidden.shape[-1])
        found = []
        for start in range(0, rows.shape[0], CHUNK):
            logits = self._target.logits(rows[start : start + CHUNK]).astype(mx.float32)
            ids = mx.argpartition(-logits, self.likeliest - 1, axis=-1)[:, : self.likeliest]
            chances = mx.take_along_axis(mx.softmax(logits, axis=-1), ids, axis=-1)
            mx.eval(ids, chances)
            found.append((ids, chances))
        ids, chances = (mx.concatenate(part) for part in zip(*found, strict=True))
        shape = (*hidden.shape[:2], self.likeliest)
        return ids.reshape(shape), chances.reshape(shape)


class Stored:
    """Outputs in one file, written once: features in bfloat16, probabilities in float16.

    Args:
        file: is written if it is missing or was made from other texts, and resumed if unfinished.
        texts: as the schedule has them.
        computed: makes the outputs.
        progress: told (texts done, texts in all).
    """

    def __init__(
        self,
        file: Path,
        texts: Sequence[Text],
        computed: Computed,
        progress: Progress | None = None,
    ):
        self._starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        self._width, self._likeliest = computed.width, computed.likeliest
        shape = (int(self._starts[-1]), self._width + 3 * self._likeliest)
        state, key = file.with_suffix(".json"), _fingerprint(texts, computed.name)
        done = _done(state, key) if file.exists() else None
        mode = "w+" if done is None else "r+"
        self._rows = np.lib.format.open_memmap(file, mode=mode, dtype=np.uint16, shape=shape)
        order = np.argsort([len(text) for text in texts], kind="stable")
        for number, start in enumerate(range(done or 0, len(order), GROUP)):
            self._write(order[start : start + GROUP], texts, computed)
            finished = min(start + GROUP, len(order))
            if finished == len(order) or number % SAVE_EVERY == SAVE_EVERY - 1:
                self._rows.flush()
                state.write_text(json.dumps({"key": key, "done": finished}), encoding="utf-8")
            if progress:
                progress(finished, len(order))

    def __call__(self, batch: Batch) -> Outputs:
        """Read from disk."""
        rows = np.zeros((*batch.ids.shape, self._rows.shape[1]), np.uint16)
        for row, index in enumerate(batch.texts):
            start, end = self._starts[index], self._starts[index + 1]
            rows[row, : end - start] = self._rows[start:end]
        features = mx.array(rows[..., : self._width]).view(mx.bfloat16)
        if not self._likeliest:
            return Outputs(features)
        low, high, chances = np.split(rows[..., self._width :], 3, axis=-1)
        ids = mx.array(low.astype(np.uint32) | high.astype(np.uint32) << 16)
        return Outputs(features, ids, mx.array(np.ascontiguousarray(chances)).view(mx.float16))

    def _write(self, group: np.ndarray, texts: Sequence[Text], computed: Computed) -> None:
        ids = np.zeros((len(group), max(len(texts[i]) for i in group)), np.int64)
        for row, index in enumerate(group):
            ids[row, : len(texts[index])] = texts[index].ids
        packed = _pack(computed.of(ids))
        for row, index in enumerate(group):
            start, end = self._starts[index], self._starts[index + 1]
            self._rows[start:end] = packed[row, : end - start]


def _pack(outputs: Outputs) -> np.ndarray:
    """[b, S, taps * H + 3 K] of 16 bits: features, lower and upper half of ids, probabilities."""
    columns = [np.array(outputs.features.astype(mx.bfloat16).view(mx.uint16))]
    if outputs.likeliest is not None and outputs.probabilities is not None:
        ids = np.array(outputs.likeliest).astype(np.uint32)
        chances = np.array(outputs.probabilities.astype(mx.float16)).view(np.uint16)
        columns += [ids.astype(np.uint16), (ids >> 16).astype(np.uint16), chances]
    return np.concatenate(columns, axis=-1)


def _fingerprint(texts: Sequence[Text], name: str) -> str:
    digest = hashlib.sha256(f"{name} {len(texts)}".encode())
    for text in texts:
        digest.update(text.ids.astype(np.int64).tobytes())
    return digest.hexdigest()


def _done(state: Path, key: str) -> int | None:
    """How many texts are written already; None for another or no file."""
    try:
        content = json.loads(state.read_text(encoding="utf-8"))
        return int(content["done"]) if content["key"] == key else None
    except (OSError, ValueError, KeyError):
        return None
