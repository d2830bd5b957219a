"""The built-in training prompts: templates of many forms with words put in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np

from ..models.requests import Request, asked

_SLOT = re.compile(r"\{(\w+)\}")
PATIENCE = 1000  # rounds without a new prompt


def builtin(count: int, seed: int = 0) -> list[Request]:
    """Distinct prompts drawn from the templates, evenly over their kinds. They are not the
    built-in prompts that drafts are judged by.

    Args:
        count: how many; fewer come where templates give no more.
        seed: of the drawing.
    """
    file = resources.files("mirror_sd") / "data" / "training_prompts.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    kinds = [*content["templates"], "continuation", "turns"]
    draws = [
        _draw(content, kind, np.random.default_rng([seed, number]))
        for number, kind in enumerate(kinds)
    ]
    found: dict[Request, None] = {}
    stale = 0
    while len(found) < count and stale < PATIENCE:
        before = len(found)
        found.update(dict.fromkeys(next(draw) for draw in draws))
        stale = 0 if len(found) > before else stale + 1
    return list(found)[:count]


def _draw(content: Any, kind: str, rng: np.random.Generator) -> Iterator[Request]:
    slots = content["slots"]

    def fill(text: str) -> str:
        return _SLOT.sub(lambda m: _pick(slots[m[1]], rng) if m[1] in slots else m[0], text)

    while True:
        if kind == "continuation":
            yield Request(text=fill(_pick(content["continuations"], rng)), kind=kind)
        elif kind == "turns":
            filled = [fill(text) for text in _pick(content["turns"], rng)]
            roles = ("user", "assistant") * len(filled)
            yield Request(tuple(zip(roles, filled, strict=False)), kind=kind)
        else:
            yield asked(fill(_pick(content["templates"][kind], rng)), kind)


def _pick(choices: Any, rng: np.random.Generator) -> Any:
    return choices[rng.integers(len(choices))]
