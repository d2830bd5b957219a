"""Options that several commands share, and how they become a loaded pair."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..devices.kind import DeviceKind
from ..models.dtype import Dtype as DtypeChoice
from . import view

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..decoding.sampling import SamplingSettings
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
Programs = Annotated[
    Path | None,
    typer.Option(help="A compiled draft (mirror-sd compile): it drafts on a device of its own."),
]
Device = Annotated[
    DeviceKind,
    typer.Option(
        help="For --programs: [bold]coreml[/] on a Mac, in this process through pyobjc; "
        "[bold]coreml-worker[/] in one of its own; [bold]emulator[/] anywhere (slow); or "
        "[bold]auto[/]. Without programs: [bold]mlx[/], the draft on the CPU in float32, in a "
        "process of its own."
    ),
]
Mirror = Annotated[
    bool,
    typer.Option(
        "--mirror/--no-mirror",
        help="With --programs: also draft while the target verifies, behind likely outcomes.",
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Byte for byte the text of plain decoding: near ties are decided by its own passes.",
    ),
]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", min=0.0, help="0 takes the likeliest token.")
]
TopP = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Draw among the tokens that together have this.")
]
TopK = Annotated[int, typer.Option(min=0, help="Draw among so many likeliest tokens; 0 is off.")]
MinP = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Drop tokens below this share of the likeliest.")
]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same text, whatever the draft.")
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Factor against repeating one of the latest tokens; 1 is off.")
]
PresencePenalty = Annotated[
    float, typer.Option(help="Subtracted from the logit of a token among the latest ones.")
]
FrequencyPenalty = Annotated[float, typer.Option(help="The same for each time it occurs there.")]
LogitBias = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", help="ID=VALUE, added to the logit of a token id. Repeatable."),
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="String that ends the answer. Repeatable.")
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", help="Write every decision to this file; mirror-sd trace reads it."),
]
DraftVocab = Annotated[
    str,
    typer.Option(
        help="Let the draft propose so many likeliest tokens (and those of the context), "
        "[bold]full[/], or [bold]auto[/]: 8192 where the draft brings a ranking."
    ),
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", min=1, help="Length of the answer at most.")
]
System = Annotated[str | None, typer.Option(help="System prompt.")]
ShowAccepted = Annotated[
    bool, typer.Option("--show-accepted", help="Colour the tokens that the draft had right.")
]


def sampling(
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    seed: int | None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: list[str] | None = None,
) -> SamplingSettings:
    """The sampling settings of a command line.

    Raises:
        PromptError: a setting that would do nothing, or cannot be read.
    """
    from ..api import SamplingSettings
    from ..errors import PromptError

    if temperature == 0 and (seed is not None or 0 < top_p < 1 or top_k or min_p):
        raise PromptError(
            "--seed, --top-p, --top-k and --min-p do nothing at temperature 0; add --temperature"
        )
    bias = {}
    for text in logit_bias or []:
        token, _, value = text.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise PromptError(f"--logit-bias {text}: give ID=VALUE, as 42=-3.5") from None
    return SamplingSettings(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=bias,
    )


def draft_vocab(text: str) -> int | Literal["auto", "full"]:
    """The value of --draft-vocab.

    Raises:
        PromptError: neither a number nor one of the words.
    """
    from ..errors import PromptError

    words: dict[str, Literal["auto", "full"]] = {"auto": "auto", "full": "full"}
    if text in words:
        return words[text]
    if not text.isdigit() or int(text) < 1:
        raise PromptError(f"--draft-vocab {text}: give a number of tokens, auto, or full")
    return int(text)


def load_pair(
    model: str,
    draft: str | None,
    no_draft: bool,
    dtype: DtypeChoice,
    bits: DraftBits | None,
    programs: Path | None = None,
    device: DeviceKind = DeviceKind.auto,
) -> tuple[Pair, TokenizerWrapper]:
    """Load with a progress display."""
    from ..api import load
    from ..errors import PromptError

    if no_draft and (draft or bits or programs or device is DeviceKind.mlx):
        raise PromptError(
            "--no-draft contradicts --draft, --draft-bits, --programs and --device; leave one out"
        )
    if device not in (DeviceKind.auto, DeviceKind.mlx) and programs is None:
        raise PromptError("--device says where to run --programs, which is not given")
    with view.Loading(f"Loading {model}") as progress:
        return load(
            model,
            draft,
            drafting=not no_draft,
            dtype=dtype.value,
            draft_bits=int(bits.value) if bits else None,
            programs=programs,
            device=device.value,
            progress=progress,
        )


def write(file: Path, text: str) -> None:
    """Write a report, into a folder that is made.

    Raises:
        MirrorError: it cannot be written.
    """
    from ..errors import MirrorError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MirrorError(f"cannot write {file}: {error.strerror}") from error
