"""Reading Core ML's compute plan, against a stand-in with the attributes of coremltools' own."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from mirror_sd.ane.placement import Placement, placements
from mirror_sd.cli.ane import _placements


class MLNeuralEngineComputeDevice: ...


class MLCPUComputeDevice: ...


def operation(name: str, kind: str):
    return SimpleNamespace(operator_name=kind, outputs=[SimpleNamespace(name=name)])


class Plan:
    """Constants have no usage; the softmax has no cost."""

    def __init__(self):
        block = SimpleNamespace(
            operations=[
                operation("w", "const"),
                operation("y", "ios18.conv"),
                operation("p", "ios18.softmax"),
            ]
        )
        functions = {"main": SimpleNamespace(block=block)}
        self.model_structure = SimpleNamespace(program=SimpleNamespace(functions=functions))

    def get_compute_device_usage_for_mlprogram_operation(self, one):
        both = [MLNeuralEngineComputeDevice(), MLCPUComputeDevice()]
        found = {"ios18.conv": both, "ios18.softmax": both[1:]}.get(one.operator_name)
        if found is None:
            return None
        return SimpleNamespace(preferred_compute_device=found[0], supported_compute_devices=found)

    def get_estimated_cost_for_mlprogram_operation(self, one):
        return SimpleNamespace(weight=0.75) if one.operator_name == "ios18.conv" else None


def test_operations_and_where_they_go():
    found = placements(Plan(), "main")
    assert found == [
        Placement("y", "ios18.conv", "Neural Engine", ("Neural Engine", "CPU"), 0.75),
        Placement("p", "ios18.softmax", "CPU", ("CPU",), None),
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(_placements(found, "part-0 main"))
    text = console.export_text()
    assert "Neural Engine: 1, CPU: 1" in text
    assert "75.0%" in text
