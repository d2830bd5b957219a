"""Modules that share everything with another one but can be changed on their own."""

from __future__ import annotations

import mlx.nn as nn


def clone(module: nn.Module) -> nn.Module:
    """A module of the same class with the same weights and children, and its own attributes."""
    twin = module.__class__.__new__(module.__class__)
    dict.update(twin, module)
    twin.__dict__.update(module.__dict__)
    return twin
