"""Names of devices."""

from __future__ import annotations

from enum import StrEnum


class DeviceKind(StrEnum):
    """What runs a draft: for a compiled one Core ML in this process (through pyobjc) or in a worker
    (through coremltools), or the emulator; auto is Core ML on a Mac, and elsewhere the emulator.
    mlx runs the draft itself on the CPU, in a worker.
    """

    auto = "auto"
    coreml = "coreml"
    coreml_worker = "coreml-worker"
    emulator = "emulator"
    mlx = "mlx"
