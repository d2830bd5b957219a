"""Which published draft belongs to which target.

The rows are the drafts that z-lab publishes; a row names its targets by their bare model names, so
that quantised conversions by others resolve to the same draft.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What converters append to a model's name: precision, quantisation, format.
_SUFFIX = re.compile(
    r"[-_.](?:\d+[-_]?bits?|bf16|fp16|fp32|q\d+|mxfp[48]|nvfp4|fp8|awq|gptq|dwq|mlx|gs\d+|it|hf"
    r"|unsloth|int[48]|\d{6})$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class DraftRow:
    """One published draft.

    Attributes:
        draft: Hugging Face repository of the draft.
        targets: bare names (no owner) of the models it was trained for.
        block_size: block length it was trained with, in tokens.
        note: what a reader should know, or "".
    """

    draft: str
    targets: tuple[str, ...]
    block_size: int
    note: str = ""


ROWS: tuple[DraftRow, ...] = (
    DraftRow("z-lab/Qwen3-4B-DFlash-b16", ("Qwen3-4B",), 16),
    DraftRow("z-lab/Qwen3-8B-DFlash-b16", ("Qwen3-8B",), 16),
    DraftRow("z-lab/Qwen3.5-4B-DFlash", ("Qwen3.5-4B",), 16),
    DraftRow("z-lab/Qwen3.5-9B-DFlash", ("Qwen3.5-9B",), 16),
    DraftRow("z-lab/Qwen3.5-27B-DFlash", ("Qwen3.5-27B",), 16),
    DraftRow(
        "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        ("Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B-Instruct"),
        10,
    ),
    DraftRow(
        "z-lab/Qwen3-Coder-30B-A3B-DFlash",
        ("Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-30B-A3B"),
        16,
    ),
    DraftRow("z-lab/Qwen3.5-35B-A3B-DFlash", ("Qwen3.5-35B-A3B",), 16),
    DraftRow("z-lab/Qwen3.6-27B-DFlash", ("Qwen3.6-27B",), 16),
    DraftRow("z-lab/Qwen3.6-35B-A3B-DFlash", ("Qwen3.6-35B-A3B",), 16),
    DraftRow("z-lab/gpt-oss-20b-DFlash", ("gpt-oss-20b",), 8),
    DraftRow("z-lab/gpt-oss-120b-DFlash", ("gpt-oss-120b",), 10),
    DraftRow("z-lab/Qwen3.8-27B-DFlash2", ("Qwen3.8-27B",), 8, "DFlash 2"),
)


def bare_name(model: str) -> str:
    """The model's name without owner, precision and quantisation: `mlx-community/Qwen3-8B-4bit`
    becomes `qwen3-8b`.
    """
    name = model.rstrip("/").rsplit("/", 1)[-1]
    while (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    return name.lower()


def find(target: str) -> DraftRow | None:
    """The row of the draft for a target's repository, folder or name; None if there is none."""
    wanted = bare_name(target)
    for row in ROWS:
        if any(bare_name(name) == wanted for name in row.targets):
            return row
    return None
