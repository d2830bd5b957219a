"""A device that takes a set time: what a Neural Engine does to a schedule, on any machine."""

from __future__ import annotations

import time

from .device import Arrays, Device


class LatencyDevice:
    """Another device's results, after a set time.

    Args:
        device: computes; its own time counts towards the set one.
        seconds: that a call takes at least.
        holds_gil: wait as a library does that does not release Python's lock: nothing else in the
            process runs meanwhile.
    """

    def __init__(self, device: Device, seconds: float, holds_gil: bool = False):
        self._device, self._seconds, self._holds_gil = device, seconds, holds_gil

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name."""
        end = time.monotonic() + self._seconds
        found = self._device(part, arrays)
        if self._holds_gil:
            hold_until(end)
        else:
            time.sleep(max(0.0, end - time.monotonic()))
        return found

    def close(self) -> None:
        """Close the device."""
        self._device.close()


def hold_until(end: float) -> None:
    """Wait in C without giving up the lock, in slices of which no other thread gets one."""
    import ctypes

    left = end - time.monotonic()
    if left > 0:
        ctypes.PyDLL(None).usleep(int(left * 1e6))  # PyDLL keeps the lock, CDLL would not
