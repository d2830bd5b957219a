"""Devices that behave, and devices that do not; made in a worker, so they live in a module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mirror_sd.ane import plan as plans
from mirror_sd.ane import reader
from mirror_sd.ane.emulator import Emulator


class Doubling:
    """Gives back twice its input, from part 0."""

    def __call__(self, part, arrays):
        return {"y": arrays["x"] * np.float16(2)}

    def close(self):
        pass


@dataclass
class Emulated:
    """Makes a device of a compiled draft's programs."""

    folder: Path
    function: str

    def __call__(self) -> Any:
        plan = plans.read(self.folder)
        parts = [
            Emulator(reader.read(plan.package(self.folder, index))[self.function])
            for index in range(len(plan.parts))
        ]

        class Device:
            def __call__(self, part, arrays):
                return parts[part](arrays)

            def close(self):
                pass

        return Device()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(3600)  # longer than the tests take: a thread that hangs must not go on later


def refuse() -> None:
    raise RuntimeError("no such function")


@dataclass
class Failing:
    """Makes a device that works for some calls, and then does something else."""

    make: Callable[[], Any]
    calls: int
    how: str  # die, hang, refuse, nan, garbage

    def __call__(self) -> Any:
        device, left, how = self.make(), [self.calls], self.how

        class Device:
            def __call__(self, part, arrays):
                found = dict(device(part, arrays))
                left[0] -= 1
                if left[0] >= 0:
                    return found
                if how in ("die", "hang", "refuse"):
                    globals()[how]()
                rng = np.random.default_rng(0)
                for name, values in found.items():
                    wrong = np.nan if how == "nan" else rng.standard_normal(values.shape) * 100
                    found[name] = np.full(values.shape, 1, values.dtype) * wrong
                    found[name] = found[name].astype(values.dtype)
                return found

            def close(self):
                pass

        return Device()


@dataclass
class Slow:
    """Takes long to make."""

    seconds: float

    def __call__(self) -> Any:
        time.sleep(self.seconds)
        return Doubling()


def broken() -> Any:
    raise OSError("no such package")
