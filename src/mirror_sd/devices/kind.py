"""Names of devices."""

from __future__ import annotations

from enum import StrEnum


class DeviceKind(StrEnum):
    """What runs a compiled draft: Core ML in this process (through pyobjc) or in a worker (through
    coremltools), or the emulator. auto is Core ML on a Mac, and elsewhere the emulator.
    """

    auto = "auto"
    coreml = "coreml"
    coreml_worker = "coreml-worker"
    emulator = "emulator"
