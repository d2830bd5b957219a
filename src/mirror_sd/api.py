"""load, stream_generate, generate: the public API, shaped like mlx_lm's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.generate import generation_stream, wired_limit
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .decoding.acceptance import ExactGreedyAcceptance, GreedyAcceptance
from .decoding.drafter import DFlashDrafter, Drafter, NoDrafter
from .decoding.length import FixedLength
from .decoding.session import PrefillProgress, Session
from .decoding.statistics import Cycle, Statistics
from .decoding.text import TextStream
from .errors import PromptError
from .models.demo import Progress
from .models.dtype import Dtype
from .models.loading import Pair, load_pair
from .models.target import Target


@dataclass
class GenerationResponse:
    """One token of an answer, with mlx_lm's fields and speculation's own.

    Attributes:
        text: the text that became final with this token; may be empty.
        token: the token id.
        logprobs: [V] the target's log probabilities at this position; lazy.
        from_draft: whether the draft had proposed it.
        prompt_tokens: tokens of the prompt.
        prompt_tps: prompt tokens per second, those reused from a cache not counted.
        generation_tokens: tokens so far.
        generation_tps: tokens per second so far, prefill not counted.
        peak_memory: in GB.
        finish_reason: "stop" or "length" with the last token, else None.
        acceptance_length: mean tokens per target pass so far.
        statistics: counts and times so far; the same object all along.
    """

    text: str
    token: int
    logprobs: mx.array
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None
    acceptance_length: float
    statistics: Statistics


def load(
    target: str,
    draft: str | None = None,
    *,
    drafting: bool = True,
    dtype: str = "auto",
    draft_bits: int | None = None,
    progress: Progress | None = None,
) -> tuple[Pair, TokenizerWrapper]:
    """Load a target and its draft.

    Args:
        target: a model folder, a Hugging Face repository, or "demo" for the built-in pair.
        draft: a draft's folder or repository; None takes the one that the registry names.
        drafting: False loads no draft: plain decoding.
        dtype: "auto" keeps weights as stored on a GPU and computes in float32 on a CPU; "stored",
            "float32", "bfloat16", "float16", or "quantized" (float32 with quantised weights).
        draft_bits: quantise the draft to 8 or 4 bits.
        progress: called with (label, share done or None) while the demo pair is prepared.

    Returns:
        The pair, to be passed to `generate` and `stream_generate`, and the tokenizer.

    Raises:
        MirrorError: something is missing, damaged, or does not fit; one line says what to do.
    """
    return load_pair(
        target,
        draft,
        drafting=drafting,
        dtype=Dtype(dtype),
        draft_bits=draft_bits,
        progress=progress,
    )


def make_session(
    model: Pair,
    *,
    block_size: int | None = None,
    draft_window: int | None = None,
    exact: bool = False,
    drafter: Drafter | None = None,
) -> Session:
    """A conversation that keeps its caches from answer to answer.

    Args:
        model: from `load`.
        block_size: anchor and drafted tokens per cycle, 1 for plain decoding; None takes the
            size the draft was trained with.
        draft_window: bounds the draft's context to so many recent tokens (and a few first ones).
        exact: leave choices between nearly equal tokens to passes over a single row, as plain
            decoding makes them.
        drafter: replaces the pair's own.

    Raises:
        PromptError: the block size is out of range.
    """
    if drafter is None:
        drafter = NoDrafter()
        if model.draft is not None and block_size != 1:
            drafter = DFlashDrafter(model.draft.model, model.target, draft_window)
    longest = drafter.longest
    if block_size is not None and not 1 <= block_size <= longest + 1:
        raise PromptError(
            f"block size {block_size} is out of range: this draft takes 1 to {longest + 1}"
        )
    length = longest if block_size is None else block_size - 1
    target = Target(model.target, drafter.taps)
    acceptance = ExactGreedyAcceptance() if exact else GreedyAcceptance()
    return Session(target, drafter, acceptance, FixedLength(length))


def stream_generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    max_tokens: int = 256,
    *,
    block_size: int | None = None,
    draft_window: int | None = None,
    exact: bool = False,
    session: Session | None = None,
    prompt_progress_callback: PrefillProgress | None = None,
) -> Iterator[GenerationResponse]:
    """Answer a prompt, token by token. Decoding is greedy.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: text (encoded as mlx_lm does) or token ids.
        max_tokens: at most so many; fewer where the model's context ends.
        block_size: see `make_session`.
        draft_window: see `make_session`.
        exact: see `make_session`.
        session: continues a conversation; `prompt` is then the whole of it, and what the session
            has seen of it is reused.
        prompt_progress_callback: told (tokens done, tokens in all) during prefill.

    Yields:
        One response a token; the last has a finish reason.

    Raises:
        PromptError: the prompt is empty or too long, or a setting is out of range.
    """
    if max_tokens < 1:
        raise PromptError(f"max_tokens is {max_tokens}: at least one token must be asked for")
    tokens = encode(tokenizer, prompt)
    if session is None:
        session = make_session(model, block_size=block_size, draft_window=draft_window, exact=exact)
    with wired_limit(model.target.model, [generation_stream]):
        session.prefill(tokens, prompt_progress_callback)
        limit = model.target.context_limit
        room = max_tokens if limit is None else min(max_tokens, limit - len(tokens))
        text = TextStream(tokenizer)
        emitted = 0
        for cycle in session.stream(room, model.eos_token_ids):
            for index in range(len(cycle.tokens)):
                emitted += 1
                yield _response(cycle, index, emitted, text, session.statistics)


def generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    max_tokens: int = 256,
    *,
    verbose: bool = False,
    block_size: int | None = None,
    draft_window: int | None = None,
    exact: bool = False,
    session: Session | None = None,
    prompt_progress_callback: PrefillProgress | None = None,
) -> str:
    """Answer a prompt; see `stream_generate`.

    Args:
        verbose: print the answer as it comes, and figures at its end.

    Returns:
        The answer's text.
    """
    pieces, last = [], None
    for last in stream_generate(
        model,
        tokenizer,
        prompt,
        max_tokens,
        block_size=block_size,
        draft_window=draft_window,
        exact=exact,
        session=session,
        prompt_progress_callback=prompt_progress_callback,
    ):
        pieces.append(last.text)
        if verbose:
            print(last.text, end="", flush=True)
    if verbose and last is not None:
        print(
            f"\nPrompt: {last.prompt_tokens} tokens, {last.prompt_tps:.1f} tokens per second\n"
            f"Generation: {last.generation_tokens} tokens, {last.generation_tps:.1f} tokens per "
            f"second, acceptance length {last.acceptance_length:.2f}\n"
            f"Peak memory: {last.peak_memory:.2f} GB"
        )
    return "".join(pieces)


def encode(tokenizer: TokenizerWrapper, prompt: str | Sequence[int] | mx.array) -> list[int]:
    """A prompt's token ids, with a beginning-of-sequence token where mlx_lm would add one."""
    if isinstance(prompt, mx.array):
        return prompt.tolist()
    if not isinstance(prompt, str):
        return list(prompt)
    if not prompt:
        raise PromptError("the prompt is empty")
    bos = tokenizer.bos_token
    return tokenizer.encode(prompt, add_special_tokens=bos is None or not prompt.startswith(bos))


def _response(
    cycle: Cycle, index: int, emitted: int, text: TextStream, statistics: Statistics
) -> GenerationResponse:
    token = cycle.tokens[index]
    is_last = index == len(cycle.tokens) - 1
    reason = cycle.finish_reason if is_last else None
    segment = "" if reason == "stop" else text.add(token)
    if reason:
        segment += text.finish()
    logits = cycle.logits[index]
    seconds = statistics.seconds
    return GenerationResponse(
        text=segment,
        token=token,
        logprobs=logits - mx.logsumexp(logits, keepdims=True),
        from_draft=index < cycle.accepted,
        prompt_tokens=statistics.prompt_tokens,
        prompt_tps=statistics.prompt_tokens_per_second,
        generation_tokens=emitted,
        generation_tps=emitted / seconds if seconds else 0.0,
        peak_memory=mx.get_peak_memory() / 1e9,
        finish_reason=reason,
        acceptance_length=statistics.acceptance_length,
        statistics=statistics,
    )
