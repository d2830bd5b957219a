"""A picture of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import MirrorError
from .trainer import Report

WINDOW = 25  # steps that the drawn line averages


def plot(reports: Sequence[Report], file: Path) -> None:
    """Draw loss, and acceptance in training and on held-out prompts, by step, as a PNG.

    Raises:
        MirrorError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [report.step for report in reports]
    for panel, name, values in (
        (left, "loss", [report.loss for report in reports]),
        (right, "acceptance length", [report.acceptance for report in reports]),
    ):
        panel.plot(steps, values, color="#d0d0d0", linewidth=0.8)
        panel.plot(steps, _smooth(values), color="#2c7fb8", label="training, teacher-forced")
        panel.set(xlabel="step", ylabel=name)
        panel.spines[["top", "right"]].set_visible(False)
    held = [(report.step, report.held_out) for report in reports if report.held_out is not None]
    if held:
        right.plot(*zip(*held, strict=True), "o-", color="#e08214", label="held out, decoded")
    right.legend(frameon=False)
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise MirrorError(f"cannot write the plot {file}: {error.strerror}") from error


def _smooth(values: Sequence[float]) -> np.ndarray:
    """Mean of the latest values at each step."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - WINDOW)
    return (sums[ends] - sums[starts]) / (ends - starts)
