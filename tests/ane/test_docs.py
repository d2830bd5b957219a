"""docs/ane.md lists the rules as they are."""

from __future__ import annotations

from pathlib import Path

from mirror_sd.ane.hardware import PRESETS
from mirror_sd.ane.quantize import SCHEMES
from mirror_sd.ane.rules import RULES

DOCS = (Path(__file__).parents[2] / "docs" / "ane.md").read_text(encoding="utf-8")


def test_every_rule_is_listed():
    for rule in RULES:
        assert f"| `{rule.id}` | {rule.level.value} | {rule.text} | {rule.source} |" in DOCS


def test_every_preset_and_scheme_is_described():
    for name in (*PRESETS, *SCHEMES):
        assert f"| `{name}`" in DOCS
