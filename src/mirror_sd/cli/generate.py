"""mirror-sd generate: answer one prompt."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, view
from .answer import stream

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.loading import Pair


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; [bold]-[/] reads stdin.")],
    model: options.Model = "demo",
    draft: options.Draft = None,
    system: options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")
    ] = False,
    max_tokens: options.MaxTokens = 256,
    block_size: options.BlockSize = None,
    no_draft: options.NoDraft = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too, and compare text and speed.")
    ] = False,
    show_accepted: options.ShowAccepted = False,
    exact: options.Exact = False,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 0.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    stop: options.Stop = None,
    trace: options.Trace = None,
    draft_window: options.DraftWindow = None,
    draft_vocab: options.DraftVocab = "auto",
    draft_bits: options.Bits = None,
    programs: options.Programs = None,
    device: options.Device = options.DeviceKind.auto,
    mirror: options.Mirror = True,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Answer one prompt and say how fast it was."""
    from ..api import make_session
    from ..decoding.divergence import find
    from ..decoding.trace import TraceWriter
    from ..errors import PromptError

    settings = options.sampling(
        temperature,
        top_p,
        top_k,
        min_p,
        seed,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
    )
    if compare and (temperature or stop or settings.processors()):
        raise PromptError("--compare compares greedy decoding; leave out the sampling settings")
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise PromptError("the prompt is empty")
    if raw and system is not None:
        raise PromptError("--system needs a chat template, which --raw switches off")
    pair, tokenizer = options.load_pair(model, draft, no_draft, dtype, draft_bits, programs, device)
    tokens = _encode(tokenizer, text, system, raw)
    session = make_session(
        pair,
        block_size=block_size,
        draft_window=draft_window,
        draft_vocab=options.draft_vocab(draft_vocab),
        mirror=mirror,
        exact=exact,
        sampling=settings,
    )
    with TraceWriter(trace) if trace else nullcontext() as writer:
        answer = [
            response.token
            for response in stream(
                pair, tokenizer, tokens, max_tokens, session, show_accepted, stop or (), writer
            )
        ]
    statistics = session.statistics
    if not compare:
        view.err.print(view.statistics_table(statistics))
        return
    plain = _plain(pair, tokenizer, tokens, len(answer))
    divergence = find(pair.target, tokens, answer, plain.tokens)
    view.err.print(view.comparison_table(statistics, plain, divergence))
    if statistics.tokens_per_second < plain.tokens_per_second and not no_draft:
        view.show_note(
            "drafting did not pay here: the draft was right too seldom for what verifying costs "
            "on this machine; try a smaller --block-size"
        )
    if divergence and not divergence.is_tie:
        raise typer.Exit(1)


def _encode(tokenizer: TokenizerWrapper, text: str, system: str | None, raw: bool) -> list[int]:
    from ..api import encode
    from ..decoding.prompt import chat_tokens

    if raw:
        return encode(tokenizer, text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return chat_tokens(tokenizer, [*messages, {"role": "user", "content": text}])


def _plain(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    tokens: list[int],
    count: int,
) -> view.PlainRun:
    from ..decoding import plain

    label = "Decoding plainly with mlx-lm, to compare"
    with view.Loading(label) as progress:
        return plain.run(
            pair.target, tokenizer, tokens, count, lambda done: progress(label, done / count)
        )
