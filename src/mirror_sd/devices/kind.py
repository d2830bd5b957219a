"""Names of devices."""

from __future__ import annotations

from enum import StrEnum


class DeviceKind(StrEnum):
    """What runs a compiled draft; auto is Core ML on a Mac, and elsewhere the emulator."""

    auto = "auto"
    coreml = "coreml"
    emulator = "emulator"
