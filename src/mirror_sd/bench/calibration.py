"""How a draft's tensors are on real text, for compiling it."""

from __future__ import annotations

import numpy as np

from ..ane.calibration import Calibration, choose
from ..ane.reference import ReferenceDraft, masks
from ..models.draft import DFlashDraft
from ..models.requests import Request
from ..programs import Tensors, rope_tables, shape_of
from .prompts import builtin
from .recording import Cycle


def calibration_requests() -> list[Request]:
    """A built-in prompt of each kind; `builtin(n)` begins at the other end."""
    last = {request.kind: request for request in builtin()}
    return list(last.values())


def calibrate(draft: DFlashDraft, cycles: list[Cycle]) -> tuple[Calibration, dict[str, float]]:
    """How a draft's tensors are to be held on text like this, and the peaks that this answers.

    Args:
        draft: whose they are.
        cycles: of real decoding.
    """
    shape, tensors, tables = shape_of(draft), dict(Tensors(draft)), rope_tables(draft)
    peaks = {"residual": 0.0, "inner": 0.0}
    features = np.zeros(shape.taps * shape.hidden, np.float32)
    reference = ReferenceDraft(shape, tensors, np.float32)
    for cycle in cycles:
        if cycle.starts:
            reference = ReferenceDraft(shape, tensors, np.float32)
        start = reference.keys[0].shape[1]
        end, rows = start + len(cycle.features), len(cycle.block)
        reference.extend(cycle.features, *tables(np.arange(start, end)))
        trace = reference(cycle.block, *tables(np.arange(end, end + rows)), masks(shape, end, rows))
        features = np.maximum(features, np.abs(cycle.features).max(axis=0, initial=0))
        peaks = {name: max(peak, trace.peaks[name]) for name, peak in peaks.items()}
    peaks_all = {**peaks, "features": float(features.max())}
    return choose(peaks, features), {name: round(peak, 1) for name, peak in peaks_all.items()}
