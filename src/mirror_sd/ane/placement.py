"""Where macOS would run a program's operations. Needs a Mac; nothing here was run on one yet."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError


@dataclass(frozen=True)
class Placement:
    """Where an operation goes.

    Attributes:
        operation: its name.
        type: of MIL.
        preferred: the device that is planned.
        supported: devices that could.
        cost: its estimated share of the whole, None if not told.
    """

    operation: str
    type: str
    preferred: str
    supported: tuple[str, ...]
    cost: float | None


def plan(package: Path, function: str) -> list[Placement]:
    """Ask Core ML's compute plan about a function, with CPU and Neural Engine allowed.

    Raises:
        UnsupportedError: not on a Mac, or coremltools is missing.
    """
    if platform.system() != "Darwin":
        raise UnsupportedError(
            "placement is decided by Core ML: run this on a Mac. Elsewhere, mirror-sd ane lint "
            "tells what is known to keep programs off the Neural Engine"
        )
    try:
        import coremltools as ct
        from coremltools.models.compute_plan import MLComputePlan
    except ImportError as missing:
        raise UnsupportedError(
            f"placement needs coremltools ({missing}); install it with: "
            "pip install 'mirror-sd[ane]'"
        ) from missing
    compiled = ct.utils.compile_model(str(package))
    found = MLComputePlan.load_from_path(compiled, compute_units=ct.ComputeUnit.CPU_AND_NE)
    return list(placements(found, function))


def placements(compute_plan: Any, function: str) -> list[Placement]:
    """A compute plan's operations, constants left out."""
    found = []
    for operation in compute_plan.model_structure.program.functions[function].block.operations:
        usage = compute_plan.get_compute_device_usage_for_mlprogram_operation(operation)
        if usage is None:
            continue
        cost = compute_plan.get_estimated_cost_for_mlprogram_operation(operation)
        found.append(
            Placement(
                operation.outputs[0].name if operation.outputs else operation.operator_name,
                operation.operator_name,
                device(usage.preferred_compute_device),
                tuple(device(one) for one in usage.supported_compute_devices),
                None if cost is None else cost.weight,
            )
        )
    return found


def device(one: Any) -> str:
    """A device's short name."""
    names = {"NeuralEngine": "Neural Engine", "GPU": "GPU", "CPU": "CPU"}
    kind = type(one).__name__
    return next((short for key, short in names.items() if key in kind), kind)
