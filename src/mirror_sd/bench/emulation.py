"""A compiled draft against the MLX draft it came from, on recorded text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..ane.emulator import cosine
from ..models.draft import DFlashDraft
from ..models.target import TargetModel
from .emulated import Programs, context_rows, hosted
from .recording import Cycle

FINAL = "final norm"


@dataclass
class Agreement:
    """How near two tensors were, over all cycles.

    Attributes:
        cosines: one for every block, all its rows together.
        largest: largest absolute difference.
        scale: largest absolute value.
    """

    cosines: list[float] = field(default_factory=list)
    largest: float = 0.0
    scale: float = 0.0
    _products: np.ndarray = field(default_factory=lambda: np.zeros(3))

    def note(self, got: np.ndarray, wanted: np.ndarray) -> None:
        """Take in rows [b, H]."""
        self.cosines.append(cosine(got, wanted))
        x, y = got.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
        self._products += [x @ y, x @ x, y @ y]
        self.largest = max(self.largest, float(np.abs(got - wanted).max()))
        self.scale = max(self.scale, float(np.abs(wanted).max()))

    @property
    def cosine(self) -> float:
        """Of all rows of all blocks together."""
        both, x, y = self._products
        return float(both / np.sqrt(x * y)) if x * y > 0 else -1.0

    @property
    def worst(self) -> float:
        """The smallest cosine of a block; NaN counts as none at all."""
        return min((-1.0 if np.isnan(c) else c for c in self.cosines), default=-1.0)


def compare(
    programs: Programs,
    draft: DFlashDraft,
    cycles: Sequence[Cycle],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Agreement]:
    """Hidden states after every layer and after the final norm, of both drafts given the same.

    Args:
        programs: compiled from the draft.
        draft: computes in its own format.
        cycles: of real decoding. Contexts longer than the ring are bounded in both.
        progress: is told (cycles done, of how many).
    """
    plan, width = programs.plan, programs.bucket.context
    names = {f"layer_{layer}": f"layer {layer}" for layer in range(plan.shape.layers)}
    programs.keep = tuple(names)
    found = {label: Agreement() for label in (*names.values(), FINAL)}
    emulated, context = hosted(programs, draft), draft.make_context(width)
    for number, cycle in enumerate(cycles, 1):
        if cycle.starts:
            emulated, context = hosted(programs, draft), draft.make_context(width)
        rows = len(cycle.block)
        given = context_rows(programs, draft, cycle.features, emulated.length)
        got = emulated(emulated.absorb(given), cycle.block)
        if len(cycle.features):
            draft.extend(mx.array(cycle.features)[None], context)
        states = list(_states(draft, cycle, context))
        for (name, label), state in zip(names.items(), states[:-1], strict=True):
            columns = programs.kept[name][0, :, 0, :rows].T.astype(np.float32)
            found[label].note(columns / plan.calibration.residual, state)
        found[FINAL].note(got, states[-1])
        if progress is not None:
            progress(number, len(cycles))
    programs.keep = ()
    return found


def agreement_of_head(
    programs: Programs, target: TargetModel, draft: DFlashDraft, cycles: Sequence[Cycle]
) -> float:
    """Share of drafted positions whose likeliest token is the same by the compiled head and by the
    target's, both given the MLX draft's hidden states.
    """
    context, same, count = draft.make_context(), 0, 0
    for cycle in cycles:
        if cycle.starts:
            context = draft.make_context()
        if len(cycle.features):
            draft.extend(mx.array(cycle.features)[None], context)
        hidden = _states(draft, cycle, context)[-1][1:] * draft.config.output_multiplier
        wanted = mx.argmax(target.head(mx.array(hidden).astype(draft.fc_dtype)), axis=-1)
        same += int((programs.top(hidden)[0][:, 0] == np.array(wanted)).sum())
        count += len(hidden)
    return same / max(count, 1)


def _states(draft: DFlashDraft, cycle: Cycle, context: list) -> list[np.ndarray]:
    """[b, H] after every layer and after the final norm."""
    block = mx.array(cycle.block)[None].astype(draft.fc_dtype)
    outputs = list(draft.layer_outputs(block, context))
    return [np.array(x[0].astype(mx.float32)) for x in (*outputs, draft.norm(outputs[-1]))]
