from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mirror_sd.models.target import TargetModel
from mirror_sd.training.batches import Schedule
from mirror_sd.training.features import Computed, Outputs
from mirror_sd.training.forward import hidden_states
from mirror_sd.training.loss import cross_entropy, head_over
from mirror_sd.training.new_draft import new_draft
from mirror_sd.training.objective import Objective, _blocks, step_loss, total_weight
from tests import tiny
from tests.families import FAMILIES
from tests.training.pair import CONFIG, SAMPLING, TAPS, TARGET

N = 37


def target(family: str, quantised: bool) -> TargetModel:
    model = tiny.model(FAMILIES[family])
    if quantised:
        nn.quantize(model, group_size=32, bits=4)
    found = TargetModel(model, FAMILIES[family], family)
    found.lend()
    return found


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2"])  # gemma2: tied, scaled, softcapped
@pytest.mark.parametrize("some", [False, True])
def test_loss_and_gradient_are_those_of_the_whole_logits(family, quantised, some):
    lender = target(family, quantised)
    ids = mx.arange(0, tiny.VOCAB, 2) if some else None
    hidden = mx.random.normal((N, 64), key=mx.random.key(1))
    labels = mx.random.randint(0, 100, (N, 3), key=mx.random.key(2))
    shares = mx.softmax(mx.random.normal((N, 3), key=mx.random.key(4)), axis=-1)
    weights = mx.random.uniform(0, 1, (N,), key=mx.random.key(3))

    def whole(states):
        logits = lender.logits(states)
        logits = logits if ids is None else logits[:, ids]
        each = [nn.losses.cross_entropy(logits, labels[:, k]) * shares[:, k] for k in range(3)]
        return (sum(each) * weights).sum()

    def pieces(states):
        losses, _ = cross_entropy(head_over(lender, None, ids), states, labels, shares, chunk=8)
        return (losses * weights).sum()

    wanted, wanted_gradient = mx.value_and_grad(whole)(hidden)
    got, gradient = mx.value_and_grad(pieces)(hidden)
    assert abs(got.item() - wanted.item()) < 1e-3
    assert mx.abs(gradient - wanted_gradient).max().item() < 1e-4


def test_hits_are_true_tokens_that_are_likeliest():
    lender = target("llama", False)
    hidden = mx.random.normal((N, 64), key=mx.random.key(1))
    best = mx.argmax(lender.logits(hidden), axis=-1)
    labels = mx.where(mx.arange(N) % 3 == 0, (best + 1) % tiny.VOCAB, best)
    both = mx.stack([labels, best], axis=-1)  # only the first label is the true token
    losses, hits = cross_entropy(
        head_over(lender, None, None), hidden, both, mx.full((N, 2), 0.5), chunk=16
    )
    assert hits.tolist() == [i % 3 != 0 for i in range(N)]
    assert losses.shape == (N,)


def straightforward(draft, batch, outputs, objective) -> tuple[float, float]:
    """Loss and acceptance, position by position, from full logits."""
    hidden = hidden_states(draft, outputs.features, _blocks(batch, TARGET, 260))
    logits = np.array(TARGET.logits(hidden)).astype(np.float64)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    target_chances = np.array(mx.softmax(TARGET.model(mx.array(batch.ids)), axis=-1))
    loss, lengths = 0.0, []
    for row, column in np.ndindex(batch.anchors.shape):
        masked = np.flatnonzero(batch.weights[row, column] > 0)
        if not len(masked):
            continue
        entropies = {}
        for k in masked:
            own = -np.log(chances[row, column, k, batch.labels[row, column, k]])
            teacher = target_chances[row, batch.anchors[row, column] + k - 1]
            top = np.argsort(-teacher)[: objective.distill_top]
            soft = -(teacher[top] / teacher[top].sum() * np.log(chances[row, column, k, top])).sum()
            entropies[k] = (1 - objective.distill) * own + objective.distill * soft
        for k in masked:
            weight = batch.weights[row, column, k]
            if objective.dpace:  # arXiv 2605.18810, eq. 7 and 8
                floor = objective.dpace_floor
                smooth = {m: (1 - floor) * np.exp(-entropies[m]) + floor for m in masked}
                weight = sum(
                    np.prod([smooth[i] for i in masked if i <= m]) for m in masked if m >= k
                )
            loss += weight * entropies[k]
        right = [logits[row, column, k].argmax() == batch.labels[row, column, k] for k in masked]
        lengths.append(np.cumprod(right).sum() + 1)
    return loss / total_weight(batch, objective), float(np.mean(lengths))


@pytest.mark.parametrize(
    "objective",
    [Objective(), Objective(dpace=True), Objective(distill=0.4), Objective(True, 0.3, 1.0, 4)],
)
def test_the_objective_is_what_the_papers_say(texts, objective):
    batch = Schedule(texts, replace(SAMPLING, tap_dropout=0.0), 3).batch(1)
    likeliest = objective.distill_top if objective.distill else 0
    outputs = Computed(TARGET, TAPS, likeliest)(batch)
    draft = new_draft(CONFIG, TARGET, seed=1)
    total = total_weight(batch, objective)
    got = step_loss(draft, TARGET, outputs, batch, None, total, objective)
    loss, acceptance = straightforward(draft, batch, outputs, objective)
    assert got.loss.item() == pytest.approx(loss, rel=1e-4)
    assert got.acceptance.item() == pytest.approx(acceptance, rel=1e-5)


def test_a_dropped_tap_is_not_seen(texts):
    sampling = replace(SAMPLING, tap_dropout=0.6)
    batch = Schedule(texts, sampling, 3).batch(0)
    assert batch.kept_taps.any(axis=1).all()
    assert not batch.kept_taps.all()
    outputs = Computed(TARGET, TAPS)(batch)
    draft = new_draft(CONFIG, TARGET, seed=1)
    apart = outputs.features.reshape(*outputs.features.shape[:2], 3, -1)
    noise = mx.where(mx.array(batch.kept_taps)[:, None, :, None], 0.0, 3.0)
    noisy = Outputs((apart + noise).reshape(outputs.features.shape))
    one, other = (
        step_loss(draft, TARGET, o, batch, None, 1.0, Objective()).loss for o in (outputs, noisy)
    )
    assert one.item() == other.item()
