"""What a step minimises (arXiv 2602.06036, section on training), and its variants.

Cross entropy of the target's own tokens at every masked position of a block, positions weighted by
what they are worth. Only the draft learns; embedding and head are the target's, frozen.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..models.draft import DFlashDraft
from ..models.target import TargetModel
from .batches import Batch
from .features import Outputs
from .forward import Blocks, hidden_states
from .loss import cross_entropy, head_over


@dataclass(frozen=True)
class Objective:
    """Variants of the loss.

    Attributes:
        dpace: weight positions by what they contribute to the expected accepted length at present
            (D-PACE, arXiv 2605.18810, eq. 7 to 9) instead of by a fixed decay.
        dpace_floor: its alpha: confidences q are raised to (1 - alpha) q + alpha.
        distill: share of the loss that goes by the target's likeliest tokens and their
            probabilities; the rest goes by the token that was said.
        distill_top: how many likeliest tokens.
    """

    dpace: bool = False
    dpace_floor: float = 0.5
    distill: float = 0.0
    distill_top: int = 8


@dataclass(frozen=True)
class Step:
    """What a batch gave, lazy.

    Attributes:
        loss: this machine's share of the mean loss.
        acceptance: mean tokens per block that greedy acceptance would emit, the target's own one
            included; teacher-forced.
    """

    loss: mx.array
    acceptance: mx.array


def step_loss(
    draft: DFlashDraft,
    target: TargetModel,
    outputs: Outputs,
    batch: Batch,
    tokens: np.ndarray | None,
    total: float,
    objective: Objective,
) -> Step:
    """The loss of a batch.

    Args:
        draft: learns.
        target: lends embedding and head.
        outputs: the target's on these texts.
        batch: whose blocks.
        tokens: the softmax's vocabulary, ascending; None for all.
        total: `total_weight` of the batch of all machines together.
        objective: the variant.
    """
    features = _drop_taps(outputs.features, batch.kept_taps)
    hidden = hidden_states(draft, features, _blocks(batch, target, draft.config.mask_token_id))
    rows = np.flatnonzero(batch.weights[:, :, 1:].reshape(-1) > 0)
    states = hidden[:, :, 1:].reshape(-1, hidden.shape[-1])[mx.array(rows)]
    if draft.config.output_multiplier != 1.0:
        states = states * draft.config.output_multiplier
    head = head_over(
        target, draft.config.logit_softcap, None if tokens is None else mx.array(tokens)
    )
    labels, shares = _labels(outputs, batch, rows, tokens, objective)
    losses, hits = cross_entropy(head, states, labels, shares)
    weights = _weights(batch, rows, losses, objective)
    return Step((losses * weights).sum() / total, _acceptance(hits, rows, batch))


def total_weight(batch: Batch, objective: Objective) -> float:
    """What a batch's loss is divided by; it depends on no draft, so machines agree on it."""
    return float((batch.weights > 0).sum() if objective.dpace else batch.weights.sum())


def vocabulary(outputs: Outputs, common: np.ndarray, random: np.ndarray, size: int) -> np.ndarray:
    """Tokens of a sampled softmax, ascending.

    Args:
        outputs: whose likeliest tokens are in, where they are learnt from.
        common: ids that occur in any text, so all labels.
        random: more ids.
        size: of the whole vocabulary.
    """
    keep = np.zeros(size, bool)
    keep[common] = True
    keep[random] = True
    if outputs.likeliest is not None:
        keep[np.array(outputs.likeliest).reshape(-1)] = True
    return np.flatnonzero(keep)


def _blocks(batch: Batch, target: TargetModel, mask_token_id: int) -> Blocks:
    """A batch's blocks as the draft is given them."""
    tokens = np.where(batch.visible, batch.labels, mask_token_id)
    return Blocks(target.embed(mx.array(tokens)), mx.array(batch.anchors), mx.array(batch.ends))


def _drop_taps(features: mx.array, kept: np.ndarray) -> mx.array:
    if kept.all():
        return features
    apart = features.reshape(*features.shape[:2], kept.shape[1], -1)
    return (apart * mx.array(kept)[:, None, :, None]).reshape(features.shape)


def _labels(
    outputs: Outputs,
    batch: Batch,
    rows: np.ndarray,
    tokens: np.ndarray | None,
    objective: Objective,
) -> tuple[mx.array, mx.array]:
    """Labels [n, K] in the softmax's vocabulary, and their shares [n, K]."""
    ids = batch.labels[:, :, 1:].reshape(-1, 1)[rows]
    shares = mx.ones(ids.shape)
    if objective.distill:
        assert outputs.likeliest is not None
        assert outputs.probabilities is not None
        # The token at place p is scored by the target's row p - 1.
        places = batch.anchors[..., None] + np.arange(batch.labels.shape[2] - 1)
        flat = places + np.arange(len(places))[:, None, None] * batch.ids.shape[1]
        before = mx.array(flat.reshape(-1)[rows])
        width = objective.distill_top
        more = np.array(outputs.likeliest.reshape(-1, width)[before])
        ids = np.concatenate([ids, more], axis=1)
        likely = outputs.probabilities.reshape(-1, width)[before].astype(mx.float32)
        likely = likely / likely.sum(axis=-1, keepdims=True)
        shares = mx.concatenate(
            [shares * (1 - objective.distill), likely * objective.distill], axis=1
        )
    found = ids if tokens is None else np.searchsorted(tokens, ids)
    return mx.array(found), shares


def _weights(batch: Batch, rows: np.ndarray, losses: mx.array, objective: Objective) -> mx.array:
    """[n] what each row's loss weighs; detached."""
    fixed = batch.weights[:, :, 1:]
    if not objective.dpace:
        return mx.array(fixed.reshape(-1)[rows].astype(np.float32))
    counted = mx.array(fixed > 0)
    chances = mx.ones(fixed.size)
    floor = objective.dpace_floor
    chances[mx.array(rows)] = (1 - floor) * mx.exp(-mx.stop_gradient(losses)) + floor
    reached = mx.cumprod(chances.reshape(fixed.shape), axis=-1) * counted
    worth = mx.cumsum(reached, axis=-1, reverse=True)
    return mx.stop_gradient(worth.reshape(-1)[mx.array(rows)])


def _acceptance(hits: mx.array, rows: np.ndarray, batch: Batch) -> mx.array:
    """Tokens per block, over blocks with anything to predict."""
    counted = batch.weights[:, :, 1:] > 0
    right = mx.ones(counted.size)  # visible tokens break no chain
    right[mx.array(rows)] = hits.astype(mx.float32)
    passed = mx.cumprod(right.reshape(counted.shape), axis=-1) * mx.array(counted)
    blocks = max(1, int(counted.any(axis=-1).sum()))
    return passed.sum() / blocks + 1
