"""What runs a compiled draft's programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ..errors import MirrorError

Arrays = Mapping[str, np.ndarray]


class DeviceError(MirrorError):
    """A device did not load, crashed, hung, or gave what cannot be."""


class Device(Protocol):
    """Runs programs, one call at a time."""

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name of one program; raises DeviceError if there are none."""

    def close(self) -> None:
        """Give back what it holds."""


class Hosted(Protocol):
    """A draft with its own context, whose programs run on a device."""

    @property
    def length(self) -> int:
        """Committed positions in its context."""

    def absorb(self, features: np.ndarray) -> np.ndarray:
        """Take in all but the last call's worth of features [n, taps * H]; the rest is returned."""

    def __call__(
        self,
        features: np.ndarray,
        block: np.ndarray,
        positions: np.ndarray | None = None,
        seen: np.ndarray | None = None,
    ) -> np.ndarray:
        """Commit features [n, taps * H]; hidden states [b, H] of an embedded block. Its rows stand
        at `positions` and see each other as `seen` [b, b] says; None: as in a plain block.
        """

    def trim_to(self, length: int) -> None:
        """Forget the positions behind the first `length`."""


class Checked:
    """A device whose results must be finite."""

    def __init__(self, device: Device):
        self._device = device

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name.

        Raises:
            DeviceError: a value is infinite or not a number.
        """
        found = self._device(part, arrays)
        for name, values in found.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise DeviceError(f"it gave values in {name} that are not finite")
        return found

    def close(self) -> None:
        """Close the device."""
        self._device.close()
