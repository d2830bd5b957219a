"""What runs a compiled draft's programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from ..errors import MirrorError

Arrays = Mapping[str, np.ndarray]
# When something computed, in seconds by time.perf_counter: on Linux and macOS that is the system's
# monotonic clock, the same in every process.
Span = tuple[float, float]


class DeviceError(MirrorError):
    """A device did not load, crashed, hung, or gave what cannot be."""


class Device(Protocol):
    """Runs programs, one call at a time."""

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name of one program; raises DeviceError if there are none."""

    def close(self) -> None:
        """Give back what it holds."""


class Executor(Protocol):
    """A device that is at hand, in this process or behind it."""

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name of one program; raises DeviceError if there are none."""

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        """Zeros in fp16, in memory that the device reads: as an input, it is not copied."""

    def busy(self) -> list[Span]:
        """When it computed, for each call since this was asked last."""

    def close(self) -> None:
        """Give back what it holds."""


class Hosted(Protocol):
    """A draft with its own context, whose programs run on a device."""

    @property
    def length(self) -> int:
        """Committed positions in its context."""

    def skip(self, positions: int) -> None:
        """Committed positions come next that the context has no room for: they are not taken in."""

    def absorb(self, rows: np.ndarray) -> np.ndarray:
        """Take in all but the last call's worth of context rows; the rest is returned.

        Args:
            rows: [n, taps * H] features; or where the programs take none, all layers' keys and then
                all layers' values, by heads, [n, 2 * layers * kv_heads * head_dim].
        """

    def __call__(
        self,
        rows: np.ndarray,
        block: np.ndarray,
        positions: np.ndarray | None = None,
        seen: np.ndarray | None = None,
    ) -> np.ndarray:
        """Commit context rows; hidden states [b, H] of an embedded block. Its rows stand
        at `positions` and see each other as `seen` [b, b] says; None: as in a plain block.
        """

    def trim_to(self, length: int) -> None:
        """Forget the positions behind the first `length`."""

    def busy(self) -> list[Span]:
        """When its device computed since this was asked last."""


class Inline:
    """A device in this process.

    Args:
        device: called with a part's number and its inputs.
        close: gives back what it holds.
    """

    def __init__(
        self, device: Callable[[int, Arrays], Arrays], close: Callable[[], None] = lambda: None
    ):
        self._device, self._close = device, close
        self._busy: list[Span] = []

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name.

        Raises:
            DeviceError: whatever went wrong.
        """
        start = time.perf_counter()
        try:
            found = self._device(part, arrays)
        except DeviceError:
            raise
        except Exception as error:
            raise DeviceError(str(error) or type(error).__name__) from error
        self._busy.append((start, time.perf_counter()))
        return found

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        """Zeros in fp16."""
        return np.zeros(shape, np.float16)

    def busy(self) -> list[Span]:
        """When it computed since this was asked last."""
        busy, self._busy = self._busy, []
        return busy

    def close(self) -> None:
        """Close the device."""
        self._close()


class Checked:
    """An executor whose results must be finite."""

    def __init__(self, device: Executor):
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

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        """Zeros in fp16, where the device reads them."""
        return self._device.allocate(shape)

    def busy(self) -> list[Span]:
        """When it computed since this was asked last."""
        return self._device.busy()

    def close(self) -> None:
        """Close the device."""
        self._device.close()
