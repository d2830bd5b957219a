"""A draft's tensors by their published names, as a program wants them.

Queries are ordered so that those of one group of heads lie together: (group, K/V head, dim) rather
than (K/V head, group, dim). A group is then a slice of channels, and can be laid beside the others
on the position axis, where all of them meet the same keys (`program.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .calibration import Calibration
from .shapes import DraftShape


class DraftWeights:
    """Reads tensors one at a time, in fp32, as a calibration wants them.

    Args:
        shape: of the draft.
        tensors: published name -> array; read when asked for.
        calibration: its factors are powers of two: folding them in is exact.
    """

    def __init__(
        self, shape: DraftShape, tensors: Mapping[str, np.ndarray], calibration: Calibration
    ):
        self.shape, self.calibration = shape, calibration
        self._tensors = tensors

    def matrix(self, name: str, channels: range | None = None) -> np.ndarray:
        """A matrix [out, in]; of `fc`, the columns that are no outliers.

        Args:
            name: published, without ".weight".
            channels: of an MLP's matrix, which intermediate channels.
        """
        if name == "fc":
            return self._features()[:, len(self.calibration.outliers) :]
        weight = np.asarray(self._tensors[f"{name}.weight"], np.float32)
        return self._arranged(name, weight, channels)

    def outliers(self) -> np.ndarray | None:
        """`fc`'s columns [hidden, in] for the outliers, None without any."""
        count = len(self.calibration.outliers)
        return self._features()[:, :count] if count else None

    def _features(self) -> np.ndarray:
        weight = np.asarray(self._tensors["fc.weight"], np.float32)
        return weight[:, self.calibration.order(weight.shape[1])]

    def bias(self, name: str) -> np.ndarray | None:
        """A bias [out], None if there is none."""
        if not self.shape.bias or not name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")):
            return None
        bias = np.asarray(self._tensors[f"{name}.bias"], np.float32)
        if name.endswith("q_proj"):
            return bias[self._query_order()]
        return bias * self.calibration.residual if name.endswith("o_proj") else bias

    def gain(self, name: str) -> np.ndarray:
        """An RMSNorm's gain; a query's carries the 1 / sqrt(head_dim) of attention."""
        gain = np.asarray(self._tensors[f"{name}.weight"], np.float32)
        return gain * self.shape.head_dim**-0.5 if name.endswith("q_norm") else gain

    def _arranged(self, name: str, weight: np.ndarray, channels: range | None) -> np.ndarray:
        cut = slice(channels.start, channels.stop) if channels is not None else slice(None)
        if name.endswith("q_proj"):
            return weight[self._query_order()]
        if name.endswith("o_proj"):
            return weight[:, self._query_order()] * self.calibration.residual
        if name.endswith("gate_proj"):
            return weight[cut]
        if name.endswith("up_proj"):
            return weight[cut] * self.calibration.inner
        if name.endswith("down_proj"):
            return weight[:, cut] * (self.calibration.residual / self.calibration.inner)
        return weight

    def _query_order(self) -> np.ndarray:
        shape = self.shape
        rows = np.arange(shape.heads * shape.head_dim)
        return rows.reshape(shape.kv_heads, shape.groups, -1).transpose(1, 0, 2).reshape(-1)
