"""A training run's state on disk: it appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import CheckpointError

KEPT = 2  # latest states


@dataclass(frozen=True)
class State:
    """Everything a run continues from.

    Attributes:
        step: steps done.
        weights: of the draft, by name, in float32.
        optimizer: the optimizer's state.
        facts: settings and progress, JSON.
    """

    step: int
    weights: dict[str, mx.array]
    optimizer: Any
    facts: dict[str, Any]


def save(folder: Path, state: State) -> None:
    """Write a state beside the earlier ones, and remove all but the latest few."""
    final = folder / f"step-{state.step:08d}"
    scratch = folder / f".{final.name}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    mx.save_safetensors(str(scratch / "weights.safetensors"), state.weights)
    flat = dict(tree_flatten(state.optimizer))
    mx.save_safetensors(str(scratch / "optimizer.safetensors"), flat)
    facts = {"step": state.step, **state.facts}
    (scratch / "state.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    for file in scratch.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    shutil.rmtree(final, ignore_errors=True)
    scratch.rename(final)
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)


def load(folder: Path) -> State | None:
    """The latest state, None if there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    found = sorted(folder.glob("step-*"))
    if not found:
        return None
    latest = found[-1]
    try:
        facts = json.loads((latest / "state.json").read_text(encoding="utf-8"))
        weights = mx.load(str(latest / "weights.safetensors"))
        flat = mx.load(str(latest / "optimizer.safetensors"))
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the training state {latest} is damaged ({error}); remove it to go on from the one "
            "before"
        ) from error
    assert isinstance(weights, dict)
    assert isinstance(flat, dict)
    return State(int(facts["step"]), weights, tree_unflatten(list(flat.items())), facts)
