"""What a draft's tensors are like on real text, and how a program answers it.

The residual stream, the features and the products inside an MLP may grow far beyond the rest. An
RMSNorm does not mind a factor (if its eps takes the square of it), and the other tensors pass
through linear maps, so each can be held at a power-of-two fraction of its value, exactly.

A few channels of the features are hundreds of times larger than the others: targets keep massive
activations in them. Rounding the weights that meet them to 8 bits would cost more than all other
rounding together, so the columns of `fc` for the largest quarter of the channels stay in fp16 (the
idea of LLM.int8, arXiv 2208.07339).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

# int8-weight operations were seen to saturate at activations beyond 4094 on several chips (see
# docs/ane.md); half of that leaves room for text that calibration has not seen.
LIMIT = 2047.0
OUTLIERS = 1 / 4  # share of the features' channels whose weights stay in fp16


@dataclass(frozen=True)
class Calibration:
    """How tensors are held.

    Attributes:
        residual: factor on the residual stream; the host multiplies the embedded block by it.
        features: factor on the target's features; the host multiplies them by it.
        inner: factor on the products inside every MLP.
        outliers: channels of the features that come first, and meet weights in fp16.
    """

    residual: float = 1.0
    features: float = 1.0
    inner: float = 1.0
    outliers: tuple[int, ...] = ()

    def order(self, channels: int) -> np.ndarray:
        """The order of the features' channels."""
        rest = np.setdiff1d(np.arange(channels), self.outliers)
        return np.concatenate([np.array(self.outliers, int), rest])


def choose(peaks: Mapping[str, float], features: np.ndarray) -> Calibration:
    """A calibration for real activations.

    Args:
        peaks: largest absolute values of "residual" and "inner".
        features: [channels] largest absolute values.
    """
    largest = np.sort(np.argsort(-features, kind="stable")[: int(OUTLIERS * len(features))])
    return Calibration(
        _fraction(peaks["residual"]),
        _fraction(float(features.max(initial=0))),
        _fraction(peaks["inner"]),
        tuple(int(channel) for channel in largest),
    )


def _fraction(peak: float) -> float:
    """The largest power of two, at most 1, that brings `peak` within the limit."""
    return 2.0 ** min(0, math.floor(math.log2(LIMIT / max(peak, 1e-6))))
