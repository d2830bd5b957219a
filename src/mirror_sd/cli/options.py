"""Options that several commands share, and how they become a loaded pair."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..models.dtype import Dtype as DtypeChoice
from . import view

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.loading import Pair


class DraftBits(StrEnum):
    """Widths that a draft can be quantised to."""

    eight = "8"
    four = "4"


Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="Target: a folder, a repository, or [bold]demo[/] (built in)."
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(help="Draft: a folder or repository. Default: the registry's for the target."),
]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="Decode plainly.")]
Dtype = Annotated[
    DtypeChoice,
    typer.Option(
        help="Number format. [bold]auto[/]: as stored on a GPU, float32 on a CPU. "
        "[bold]quantized[/]: stored weights with float32 activations."
    ),
]
Bits = Annotated[DraftBits | None, typer.Option("--draft-bits", help="Quantise the draft at load.")]
BlockSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Anchor and drafted tokens per cycle; 1 is plain decoding. Default: as trained.",
    ),
]
DraftWindow = Annotated[
    int | None,
    typer.Option(min=1, help="Let the draft see only so many recent tokens (and 4 first ones)."),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Leave near ties to one-row passes, as plain decoding makes them."
    ),
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", min=1, help="Length of the answer at most.")
]
System = Annotated[str | None, typer.Option(help="System prompt.")]
ShowAccepted = Annotated[
    bool, typer.Option("--show-accepted", help="Colour the tokens that the draft had right.")
]


def load_pair(
    model: str,
    draft: str | None,
    no_draft: bool,
    dtype: DtypeChoice,
    bits: DraftBits | None,
) -> tuple[Pair, TokenizerWrapper]:
    """Load with a progress display."""
    from ..api import load
    from ..errors import PromptError

    if no_draft and (draft or bits):
        raise PromptError("--no-draft contradicts --draft and --draft-bits; leave one out")
    with view.Loading(f"Loading {model}") as progress:
        return load(
            model,
            draft,
            drafting=not no_draft,
            dtype=dtype.value,
            draft_bits=int(bits.value) if bits else None,
            progress=progress,
        )
