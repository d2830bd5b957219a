"""The options of `mirror-sd train`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import DraftBits

DATA, DRAFT, OBJECTIVE, STEPS = "Data", "Draft", "Objective", "Steps"


class Precision(StrEnum):
    """Number formats to train in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


Out = Annotated[Path, typer.Option(help="Folder for the draft; a run that was killed goes on.")]
Target = Annotated[
    str,
    typer.Option("--target", "-t", help="A model folder, a repository, or [bold]demo[/]."),
]

Prompts = Annotated[
    str | None,
    typer.Option(
        help="What the target is to answer: a text file with a prompt a line, JSONL, or "
        "[bold]builtin[/].",
        rich_help_panel=DATA,
    ),
]
Count = Annotated[
    int | None,
    typer.Option(min=1, help="How many built-in prompts. Default: 20,000.", rich_help_panel=DATA),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder with answers made earlier, not --prompts.", rich_help_panel=DATA
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=2, help="Of an answer. Default: 256.", rich_help_panel=DATA)
]
OnlyData = Annotated[
    bool, typer.Option("--only-data", help="Answer the prompts and stop.", rich_help_panel=DATA)
]
StoreFeatures = Annotated[
    bool,
    typer.Option(
        "--store-features",
        help="Compute the target's features once, to disk.",
        rich_help_panel=DATA,
    ),
]

InitFrom = Annotated[
    str | None,
    typer.Option(
        help="Go on from this draft: a folder, a repository, or [bold]demo[/]. Default: a new one.",
        rich_help_panel=DRAFT,
    ),
]
Layers = Annotated[
    int | None, typer.Option(min=1, help="Of a new draft. Default: 5.", rich_help_panel=DRAFT)
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Anchor and drafted tokens. Default: the given draft's, or 16.",
        rich_help_panel=DRAFT,
    ),
]
ExportBits = Annotated[
    DraftBits | None,
    typer.Option(
        help="Quantise the draft that is written; other loaders may not read it.",
        rich_help_panel=DRAFT,
    ),
]
MaskTokenId = Annotated[
    int | None,
    typer.Option(
        min=0, help="Of a new draft. Default: a token that no text has.", rich_help_panel=DRAFT
    ),
]

Steps = Annotated[int, typer.Option(min=1, help="Updates.", rich_help_panel=STEPS)]
Batch = Annotated[
    int, typer.Option(min=1, help="Texts per step, over all machines.", rich_help_panel=STEPS)
]
Anchors = Annotated[int, typer.Option(min=1, help="Blocks per text.", rich_help_panel=STEPS)]
LearningRate = Annotated[
    float, typer.Option("--lr", min=0.0, help="At its peak.", rich_help_panel=STEPS)
]
Accumulate = Annotated[int, typer.Option(min=1, help="Batches per update.", rich_help_panel=STEPS)]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision", help="Of the passes; weights are kept in float32.", rich_help_panel=STEPS
    ),
]
CheckpointEvery = Annotated[
    int, typer.Option(min=1, help="Steps between states on disk.", rich_help_panel=STEPS)
]
EvaluateEvery = Annotated[
    int,
    typer.Option(
        min=0,
        help="Steps between evaluations on held-out prompts; 0 for none.",
        rich_help_panel=STEPS,
    ),
]
EvaluatePrompts = Annotated[
    int,
    typer.Option(min=1, help="Held-out prompts to decode in an evaluation.", rich_help_panel=STEPS),
]
Patience = Annotated[
    int,
    typer.Option(
        min=0,
        help="Stop after so many evaluations without a better one; 0 for never.",
        rich_help_panel=STEPS,
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything.", rich_help_panel=STEPS)]

Negatives = Annotated[
    int,
    typer.Option(
        min=0,
        help="Random tokens in the sampled softmax; 0 uses all tokens.",
        rich_help_panel=OBJECTIVE,
    ),
]
VisiblePrefix = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of blocks that begin with known tokens.",
        rich_help_panel=OBJECTIVE,
    ),
]
FeatureLag = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of blocks whose features end early.",
        rich_help_panel=OBJECTIVE,
    ),
]
TapDropout = Annotated[
    float,
    typer.Option(
        min=0.0, max=0.9, help="Chance of a tap to be left out.", rich_help_panel=OBJECTIVE
    ),
]
Dpace = Annotated[
    bool,
    typer.Option(
        "--dpace",
        help="Weight positions by their present worth (D-PACE), not by a fixed decay.",
        rich_help_panel=OBJECTIVE,
    ),
]
Distill = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of the loss that goes by the target's probabilities.",
        rich_help_panel=OBJECTIVE,
    ),
]
