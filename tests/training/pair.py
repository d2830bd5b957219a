"""A tiny target, prompts for it, and a run on its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mirror_sd  # noqa: F401  before mlx: it loads the BLAS

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

from mirror_sd.training import data, generate
from mirror_sd.training.batches import Sampling, Schedule
from mirror_sd.training.features import Computed
from mirror_sd.training.new_draft import config_for, new_draft
from mirror_sd.training.objective import Objective
from mirror_sd.training.trainer import Settings, Trainer
from tests import tiny

BLOCK = 4
TARGET = tiny.target(num_hidden_layers=6)
TARGET.lend()
PLAN = generate.Plan(max_tokens=40, temperatures=(0.0,), held_out=0.0, group=8, batch=4)
PROMPTS = [generate.Prompt([5, 17, n, 31], "count") for n in range(16)]
CONFIG = config_for(TARGET, 260, layers=2, block_size=BLOCK, taps=3)
TAPS = CONFIG["dflash_config"]["target_layer_ids"]
SAMPLING = Sampling(
    batch=8, anchors=12, block_size=BLOCK, visible_prefix=0.2, feature_lag=0.2, tap_dropout=0.2
)
SHORT = Settings(steps=6, checkpoint_every=2, negatives=30, full_from=0.5)


def answers(folder: Path) -> list[data.Text]:
    """The target's answers to all prompts."""
    list(generate.answer_all(TARGET, [tiny.EOS], folder, PROMPTS, PLAN))
    return data.read(folder, "train", tiny.VOCAB)


def trainer(
    texts: list[data.Text],
    folder: Path,
    settings: Settings = SHORT,
    sampling: Sampling = SAMPLING,
    evaluate: Any = None,
    **facts: Any,
) -> Trainer:
    """A run from a new draft, or on from what lies in the folder."""
    draft = new_draft(CONFIG, TARGET, seed=1)
    objective: Objective = settings.objective
    likeliest = objective.distill_top if objective.distill else 0
    features = Computed(TARGET, draft.config.taps, likeliest)
    schedule = Schedule(texts, sampling, len(draft.config.taps))
    return Trainer(draft, TARGET, schedule, features, settings, folder, facts, evaluate)


def weights(running: Trainer) -> dict[str, mx.array]:
    """Of its draft, by name."""
    return dict(tree_flatten(running.draft.parameters()))


def same(one: dict[str, mx.array], other: dict[str, mx.array]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(mx.array_equal(one[n], other[n]) for n in one)
