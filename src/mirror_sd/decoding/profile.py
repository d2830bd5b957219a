"""What was learnt of a pair on this machine, kept on disk: costs, survival, and token counts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..models.cachedir import cache_dir
from ..models.token_usage import TokenUsage
from .costs import CostTable
from .survival import Survival

PRIOR_WEIGHT = 8.0  # trials that remembered survival counts for


def folder() -> Path:
    """Where profiles lie."""
    return cache_dir() / "profiles"


@dataclass
class Profile:
    """What is known of a pair.

    Attributes:
        costs: of target passes and drafts.
        survival: per source.
        usage: what the target says.
        head_seconds: of drafting's head by how many tokens it scores, 0 for all.
        draft_vocab: how many tokens it scores now, 0 for all; None before that was decided.
        file: where it is kept; None keeps it in memory only.
    """

    costs: CostTable = field(default_factory=CostTable)
    survival: dict[str, Survival] = field(default_factory=dict)
    usage: TokenUsage = field(default_factory=TokenUsage)
    head_seconds: dict[int, float] = field(default_factory=dict)
    draft_vocab: int | None = None
    file: Path | None = None

    @classmethod
    def open(cls, facts: Sequence[Any]) -> Profile:
        """The profile for a machine and pair that these facts identify; new if there is none, or if
        it is of another version or damaged.
        """
        key = hashlib.sha256(json.dumps([str(fact) for fact in facts]).encode()).hexdigest()[:16]
        file = folder() / f"{key}.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            survival = {
                source: Survival([float(chance) for chance in chances], PRIOR_WEIGHT)
                for source, chances in content["survival"].items()
                if chances
            }
            vocabulary = content["vocabulary"]
            return cls(
                CostTable.from_dict(content["costs"]),
                survival,
                TokenUsage.from_dict(vocabulary["usage"]),
                {int(size): float(took) for size, took in vocabulary["head_seconds"].items()},
                vocabulary["size"],
                file,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(file=file)

    def save(self) -> None:
        """Write it; a folder that cannot be written costs measuring again, nothing else."""
        if self.file is None:
            return
        content = {
            "costs": self.costs.as_dict(),
            "survival": {name: known.as_list() for name, known in self.survival.items()},
            "vocabulary": {
                "usage": self.usage.as_dict(),
                "head_seconds": self.head_seconds,
                "size": self.draft_vocab,
            },
        }
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            scratch = self.file.with_suffix(".new")
            scratch.write_text(json.dumps(content), encoding="utf-8")
            scratch.replace(self.file)
        except OSError:
            return
