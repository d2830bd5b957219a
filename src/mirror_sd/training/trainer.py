"""The training loop: features, loss, gradients, update, checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from ..errors import CheckpointError, UnsupportedError
from ..models.draft import DFlashDraft
from ..models.target import TargetModel
from . import checkpoint
from .batches import Schedule
from .best import Best
from .checkpoint import State
from .features import Features, Outputs
from .objective import Objective, step_loss, total_weight, vocabulary

FINAL_RATE = 0.02  # of the peak
Evaluate = Callable[[DFlashDraft], float]


@dataclass(frozen=True)
class Settings:
    """How a draft is trained; the defaults are DFlash's (arXiv 2602.06036) where it tells.

    Attributes:
        steps: updates in all.
        learning_rate: at its peak.
        warm_up: share of the steps over which it rises.
        clip: largest norm of the gradient.
        weight_decay: on matrices.
        accumulate: batches per update.
        dtype: "float32", or "bfloat16" for the passes with float32 weights behind them.
        negatives: random tokens in the sampled softmax; 0 uses the whole vocabulary.
        full_from: share of the steps after which the whole vocabulary is used in any case.
        checkpoint_every: steps between states on disk.
        evaluate_every: steps between evaluations, 0 for none.
        patience: evaluations without a better one after which training stops, 0 for never.
        objective: the variant of the loss.
        seed: of everything.
    """

    steps: int = 1000
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.01
    accumulate: int = 1
    dtype: str = "float32"
    negatives: int = 4096
    full_from: float = 0.9
    checkpoint_every: int = 100
    evaluate_every: int = 0
    patience: int = 0
    objective: Objective = field(default_factory=Objective)
    seed: int = 0


@dataclass(frozen=True)
class Report:
    """What a step showed.

    Attributes:
        step: steps done.
        loss: of the step.
        acceptance: mean tokens per block, teacher-forced on the training texts.
        predicted: tokens predicted per second, of this step.
        gradient_norm: before clipping.
        learning_rate: used.
        held_out: acceptance length of an evaluation after this step, None without one.
    """

    step: int
    loss: float
    acceptance: float
    predicted: float
    gradient_norm: float
    learning_rate: float
    held_out: float | None = None


class Trainer:
    """One run; it continues from the latest state in its folder.

    Args:
        draft: in float32; learns in place.
        target: frozen.
        schedule: the batches.
        features: of the batches.
        settings: how to train.
        folder: where states are kept.
        facts: of the data and draft; a state made with others is refused.
        evaluate: gives a draft's held-out acceptance length; the best draft is kept.

    Raises:
        CheckpointError: the folder holds the state of another run.
        UnsupportedError: there are more machines than texts in a batch.
    """

    def __init__(
        self,
        draft: DFlashDraft,
        target: TargetModel,
        schedule: Schedule,
        features: Features,
        settings: Settings,
        folder: Path,
        facts: dict[str, Any],
        evaluate: Evaluate | None = None,
    ):
        self.draft, self.settings = draft, settings
        self.step = 0
        self.best = Best(folder, settings.patience)
        self._target, self._schedule, self._features = target, schedule, features
        self._folder, self._evaluate = folder, evaluate
        self._facts = {"settings": asdict(settings), "run": facts}
        self._group = mx.distributed.init()
        if self._group.size() > schedule.batch_size:
            raise UnsupportedError(
                f"{self._group.size()} machines cannot share batches of {schedule.batch_size} "
                "texts; raise --batch"
            )
        self._optimizer = _optimizer(settings)
        self._weights = _ordered(draft.trainable_parameters())
        self._optimizer.init(self._weights)
        self._common = schedule.common_tokens(target.vocab_size)
        self._resume()

    @property
    def leads(self) -> bool:
        """Whether this machine is the one of several that writes and evaluates."""
        return self._group.rank() == 0

    def run(self) -> Iterator[Report]:
        """Train to the end, or until evaluations get no better; a report per step."""
        while self.step < self.settings.steps and not self.best.is_over:
            report = self._update()
            every = self.settings.evaluate_every
            done = self.step == self.settings.steps
            if every and self._evaluate and (done or self.step % every == 0):
                report = replace(report, held_out=self._held_out())
            if done or self.best.is_over or self.step % self.settings.checkpoint_every == 0:
                self.save()
            yield report

    def save(self) -> None:
        """Write the state; of several machines one does."""
        if self.leads:
            weights = dict(tree_flatten(self._weights))
            facts = {**self._facts, "best": self.best.state}
            state = State(self.step, weights, self._optimizer.state, facts)
            checkpoint.save(self._folder, state)

    def use_best(self) -> None:
        """Give the draft the weights of the best evaluation, if there was one."""
        weights = self.best.weights()
        if weights is not None:
            self.draft.load_weights(list(weights.items()))

    def _resume(self) -> None:
        state = checkpoint.load(self._folder)
        if state is None:
            return
        known = {key: state.facts.get(key) for key in self._facts}
        if known != self._facts:
            raise CheckpointError(
                f"{self._folder} holds a run with other settings or data; give another --out, or "
                "remove it to start anew"
            )
        self.draft.load_weights(list(state.weights.items()))
        self._weights = _ordered(self.draft.trainable_parameters())
        self._optimizer.state = state.optimizer
        self.best.state = state.facts["best"]
        self.step = state.step

    def _held_out(self) -> float:
        """One machine evaluates and tells the others, so that all stop at the same step."""
        assert self._evaluate is not None
        value = self._evaluate(self.draft) if self.leads else 0.0
        if self._group.size() > 1:
            value = mx.distributed.all_sum(mx.array(value), group=self._group).item()
        self.best.add(self.step, value, self._weights if self.leads else None)
        return value

    def _update(self) -> Report:
        start = time.perf_counter()
        rate = learning_rate(self.settings, self.step)
        for optimizer in self._optimizer.optimizers:
            optimizer.learning_rate = rate
        gradients, shown, predicted = self._accumulate()
        gradients, norm = optim.clip_grad_norm(gradients, self.settings.clip)
        self._weights = _ordered(self._optimizer.apply_gradients(gradients, self._weights))
        mx.eval(self._weights, self._optimizer.state, norm)
        self.draft.update(self._weights)
        self.step += 1
        loss, acceptance = shown.tolist()
        took = time.perf_counter() - start
        return Report(self.step, loss, acceptance, predicted / took, norm.item(), rate)

    def _accumulate(self) -> tuple[Any, mx.array, int]:
        """Mean gradients, [2] mean loss and acceptance, and tokens predicted, of one update."""
        parts = self.settings.accumulate
        gradients, shown, predicted = None, mx.zeros(2), 0
        for part in range(parts):
            values, found, count = self._gradients(self.step * parts + part)
            gradients = found if gradients is None else tree_map(mx.add, gradients, found)
            shown = shown + values
            predicted += count
            mx.eval(gradients, shown)
        return tree_map(lambda g: g / parts, gradients), shown / parts, predicted

    def _gradients(self, index: int) -> tuple[mx.array, Any, int]:
        """[2] loss and acceptance, gradients, and tokens predicted, over all machines."""
        rank, ranks = self._group.rank(), self._group.size()
        whole = self._schedule.batch(index)
        batch = self._schedule.batch(index, rank, ranks) if ranks > 1 else whole
        objective = self.settings.objective
        outputs = self._features(batch)
        tokens = self._vocabulary(outputs, index)
        total = total_weight(whole, objective)
        dtype = getattr(mx, self.settings.dtype)

        def loss_of(weights: Any) -> tuple[mx.array, mx.array]:
            self.draft.update(tree_map(lambda w: w.astype(dtype), weights))
            step = step_loss(self.draft, self._target, outputs, batch, tokens, total, objective)
            return step.loss, mx.stop_gradient(mx.stack([step.loss * ranks, step.acceptance]))

        (_, shown), gradients = mx.value_and_grad(loss_of)(self._weights)
        if ranks > 1:
            # Every machine has its share of the mean: shares add up.
            mean = nn.average_gradients(gradients, self._group)
            gradients = tree_map(lambda g: g * ranks, mean)
            shown = mx.distributed.all_sum(shown, group=self._group) / ranks
        return shown, gradients, int((whole.weights > 0).sum())

    def _vocabulary(self, outputs: Outputs, index: int) -> np.ndarray | None:
        done = self.step / max(1, self.settings.steps)
        if not self.settings.negatives or done >= self.settings.full_from:
            return None
        rng = np.random.default_rng([self.settings.seed, 1, index])
        size = self._target.vocab_size
        random = rng.integers(0, size, self.settings.negatives)
        return vocabulary(outputs, self._common, random, size)


def learning_rate(settings: Settings, step: int) -> float:
    """Linear rise, then half a cosine down to a fiftieth."""
    rise = max(1, round(settings.warm_up * settings.steps))
    if step < rise:
        return settings.learning_rate * (step + 1) / rise
    done = (step - rise) / max(1, settings.steps - rise)
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * (FINAL_RATE + (1 - FINAL_RATE) * cosine)


def _ordered(tree: Any) -> Any:
    """By name: MultiOptimizer leaves its trees in an order that differs from process to process,
    by which sums would round, and machines would add up what does not belong together.
    """
    return tree_unflatten(sorted(tree_flatten(tree)))


def _optimizer(settings: Settings) -> optim.MultiOptimizer:
    """AdamW, with weight decay on matrices alone."""
    return optim.MultiOptimizer(
        [
            optim.AdamW(1.0, weight_decay=settings.weight_decay, bias_correction=True),
            optim.AdamW(1.0, weight_decay=0.0, bias_correction=True),
        ],
        [lambda _, weight: weight.ndim > 1],
    )
