"""The built-in prompts: natural requests of six kinds, on which no draft is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

KINDS = ("code", "maths", "edit", "json", "chat", "prose")


@dataclass(frozen=True)
class Prompt:
    """A user's message and what kind of answer it asks for, one of `KINDS`."""

    kind: str
    text: str


def builtin(per_kind: int | None = None) -> list[Prompt]:
    """All built-in prompts, or the first `per_kind` of each kind, kind by kind."""
    file = resources.files("mirror_sd") / "data" / "prompts.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    prompts = [Prompt(row["kind"], row["prompt"]) for row in rows]
    return [p for kind in KINDS for p in [q for q in prompts if q.kind == kind][:per_kind]]
