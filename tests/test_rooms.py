"""Imports point one way (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "mirror_sd"
ALLOWED = {
    "caches": set(),
    "devices": set(),
    "models": {"caches"},
    "ane": {"devices"},
    "decoding": {"models", "caches", "devices"},
    "training": {"models", "caches"},
}
WITHOUT_MLX = ("ane", "devices")


def imported(file: Path) -> set[str]:
    """Rooms and packages that a file imports."""
    package = file.relative_to(SOURCE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {(*base, *name.split("."))[0] for name in names}
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_point_one_way(room):
    rooms = {folder.name for folder in SOURCE.iterdir() if folder.is_dir()}
    for file in (SOURCE / room).rglob("*.py"):
        wrong = (imported(file) & rooms) - ALLOWED[room] - {room}
        assert not wrong, f"{file.relative_to(SOURCE)} imports {wrong}"
        if room in WITHOUT_MLX:
            assert not imported(file) & {"mlx", "mlx_lm"}, file


def test_only_the_builder_knows_coremltools():
    users = [f.name for f in SOURCE.rglob("*.py") if "coremltools" in imported(f)]
    assert sorted(users) == ["devices.py", "placement.py", "toolkit.py"]
