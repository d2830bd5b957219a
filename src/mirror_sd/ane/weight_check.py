"""Compares the weights in a saved package with those of the draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .constants import resolve
from .hardware import EXACT
from .parts import MLP, Part, projections
from .reader import Function, Operation
from .weights import DraftWeights


def int8_steps(
    functions: Sequence[Function], parts: Sequence[Part], weights: DraftWeights
) -> float:
    """The largest error of an int8 weight, in steps of its channel's scale.

    Weights coded against the scale as it is stored are off by half a step at most; those coded
    before the scale was rounded are off by more.

    Args:
        functions: one of each part's package.
        parts: in the same order.
        weights: what they were compiled from.
    """
    worst = 0.0
    for function, part in zip(functions, parts, strict=True):
        stored = {o.outputs[0]: o for o in function.operations if o.type.startswith("constexpr_")}
        for unit in part.units:
            for name, at in projections(unit).values():
                operation = stored.get(f"{name}_weight")
                if operation is None or operation.type != "constexpr_affine_dequantize":
                    continue
                wanted = weights.matrix(at, unit.channels if unit.kind == MLP else None)
                worst = max(worst, _steps(operation, function, wanted))
    return worst


def _steps(operation: Operation, function: Function, wanted: np.ndarray) -> float:
    found = resolve(operation, function.constants, EXACT).values.reshape(wanted.shape)
    scale = operation.inputs["scale"][0]
    scale = function.constants[scale] if isinstance(scale, str) else scale
    steps = np.abs(found - wanted) / np.asarray(scale, np.float32)[:, None]
    return float(steps.max())
