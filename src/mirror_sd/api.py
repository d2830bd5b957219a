"""load, stream_generate, generate: the public API, shaped like mlx_lm's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import mlx.core as mx
from mlx_lm.generate import generation_stream, wired_limit
from mlx_lm.tokenizer_utils import TokenizerWrapper

from . import blas
from .decoding.acceptance import (
    Acceptance,
    ExactGreedyAcceptance,
    GreedyAcceptance,
    RejectionAcceptance,
    SharedNoiseAcceptance,
)
from .decoding.adaptive import AdaptiveLength
from .decoding.device_drafter import DeviceDrafter
from .decoding.draft_vocab import choose
from .decoding.drafter import DFlashDrafter, Drafter
from .decoding.length import FixedLength, LengthPolicy
from .decoding.mirrored import MirroredDrafter
from .decoding.ngram import NgramDrafter
from .decoding.output import Output
from .decoding.profile import Profile
from .decoding.sampling import SamplingSettings, Scorer
from .decoding.session import PrefillProgress, Session
from .decoding.statistics import Cycle, Statistics
from .decoding.trace import TraceWriter
from .devices.kind import DeviceKind
from .errors import PromptError
from .hosting import place, place_in_mlx
from .models import draft_head, precision
from .models.demo import Progress
from .models.draft_head import DraftHead
from .models.dtype import Dtype
from .models.loading import Pair, load_pair
from .models.target import Target

# Until the best size is known here. Measured on the demo pair: half of the draft's time for 1% of
# its acceptance (benchmarks/draft_head.py).
DRAFT_VOCAB = 8192


class SessionSettings(TypedDict, total=False):
    """Keyword arguments of `make_session` that `generate` and `stream_generate` take as well."""

    block_size: int | None
    draft_window: int | None
    draft_vocab: int | Literal["auto", "full"]
    exact: bool
    mirror: bool
    sampling: SamplingSettings | None


@dataclass
class GenerationResponse:
    """One token of an answer, with mlx_lm's fields and speculation's own.

    Attributes:
        text: the text that became final with this token; may be empty.
        token: the token id.
        logprobs: [V] the target's log probabilities at this position, after penalties and bias and
            before filters and temperature, as mlx_lm reports them; lazy.
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

    def top_logprobs(self, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest tokens at this position with their log probabilities, best first;
        the token itself need not be among them.
        """
        logprobs = self.logprobs.astype(mx.float32)
        ids = mx.argsort(-logprobs)[:count]
        return list(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))


def load(
    target: str,
    draft: str | None = None,
    *,
    drafting: bool = True,
    dtype: str = "auto",
    draft_bits: int | None = None,
    programs: str | Path | None = None,
    device: str = "auto",
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
        programs: a compiled draft (`mirror-sd compile`): it drafts on a device of its own. Should
            that fail, the MLX draft takes over, with a notice.
        device: for `programs`: on a Mac "coreml" (in this process, through pyobjc) or
            "coreml-worker" (in one of its own), "emulator", or "auto". Without programs: "mlx", the
            draft in float32 on the CPU, in a process of its own.
        progress: called with (label, share done or None) while the demo pair is prepared.

    Returns:
        The pair, to be passed to `generate` and `stream_generate`, and the tokenizer.

    Raises:
        MirrorError: something is missing, damaged, or does not fit; one line says what to do.
    """
    pair, tokenizer = load_pair(
        target,
        draft,
        drafting=drafting,
        dtype=Dtype(dtype),
        draft_bits=draft_bits,
        progress=progress,
    )
    kind = DeviceKind(device)
    if programs is None and kind not in (DeviceKind.auto, DeviceKind.mlx):
        raise PromptError(f"the device {kind.value} runs programs, which are not given")
    if programs is None and kind is DeviceKind.auto:
        return pair, tokenizer
    if pair.draft is None:
        raise PromptError("a device is for the draft: without a draft there is nothing to place")
    placed = (
        place_in_mlx(pair.draft) if programs is None else place(pair.draft, Path(programs), kind)
    )
    pair.draft.placed = placed
    return pair, tokenizer


def make_session(
    model: Pair,
    *,
    block_size: int | None = None,
    draft_window: int | None = None,
    draft_vocab: int | Literal["auto", "full"] = "auto",
    exact: bool = False,
    mirror: bool = True,
    sampling: SamplingSettings | None = None,
    drafters: Sequence[Drafter] | None = None,
    policy: LengthPolicy | None = None,
) -> Session:
    """A conversation that keeps its caches from answer to answer.

    Args:
        model: from `load`.
        block_size: anchor and drafted tokens per cycle, 1 for plain decoding; None adapts it, so
            that decoding is never slower than plain.
        draft_window: bounds the draft's context to so many recent tokens (and a few first ones).
        draft_vocab: lets the draft propose so many likeliest tokens, besides those of the context,
            which makes drafting cheaper; "full" is all. "auto" starts with 8192 for a draft that
            brings a ranking of tokens, else with all; once it has seen enough of what the target
            says, it ranks tokens by that and takes the size that pays most here.
        exact: the text is plain decoding's even where rounding decides between nearly equal
            tokens; before such a choice, drafted tokens are run again one by one.
        mirror: a draft on a device of its own also drafts while the target verifies, behind the
            likeliest outcomes; without such a device it means nothing.
        sampling: how tokens are drawn; None is greedy decoding.
        drafters: replace the pair's own draft and the n-gram drafter.
        policy: replaces the length policy.

    Raises:
        PromptError: a setting is out of range, or two contradict each other.
    """
    sampling = sampling or SamplingSettings()
    profile = None
    if policy is None and block_size is None:
        profile = _profile(model, draft_vocab)
    if drafters is None:
        drafters = _drafters(model, block_size, draft_window, draft_vocab, mirror, profile)
    longest = max((drafter.longest for drafter in drafters), default=0)
    if block_size is not None and not 1 <= block_size <= longest + 1:
        raise PromptError(
            f"block size {block_size} is out of range: this draft takes 1 to {longest + 1}"
        )
    if policy is None:
        policy = AdaptiveLength(profile) if block_size is None else FixedLength(block_size - 1)
    target = Target(model.target, next((d.taps for d in drafters if d.taps), ()))
    acceptance = _acceptance(sampling, model.target.vocab_size, exact)
    return Session(target, drafters, acceptance, policy, Scorer(sampling.processors()))


def _drafters(
    model: Pair,
    block_size: int | None,
    draft_window: int | None,
    draft_vocab: int | str,
    mirror: bool,
    profile: Profile | None,
) -> list[Drafter]:
    """The pair's draft; and copying from the context, where the policy may choose."""
    if model.draft is None or block_size == 1:
        return []
    if model.draft.placed is not None and draft_window is not None:
        raise PromptError(
            "a draft window cannot be set for compiled programs: their context has a fixed width; "
            "compile with another --context"
        )
    head = _draft_head(model, draft_vocab, profile or Profile())
    placed = model.draft.placed
    if placed is not None:
        kind = MirroredDrafter if mirror else DeviceDrafter
        draft: DFlashDrafter = kind(placed, model.target, head)
    else:
        draft = DFlashDrafter(model.draft.model, model.target, draft_window, head=head)
    return [draft] if block_size else [draft, NgramDrafter(draft.longest)]


def _draft_head(model: Pair, draft_vocab: int | str, profile: Profile) -> DraftHead:
    """The target's head over the tokens that the draft may propose."""
    assert model.draft is not None
    target, longest = model.target, model.draft.model.config.block_size - 1
    ranking = model.draft.ranking
    if isinstance(draft_vocab, int) and draft_vocab < 1:
        raise PromptError(f"draft_vocab is {draft_vocab}: the draft needs tokens to propose")
    size: int | None = draft_vocab if isinstance(draft_vocab, int) else None
    if draft_vocab == "auto":
        default = DRAFT_VOCAB if ranking else None
        time = partial(draft_head.seconds, target, rows=longest)
        size = choose(profile, DFlashDrafter.name, longest, target.vocab_size, default, time)
    return DraftHead(target, size, profile.usage.order(ranking), profile.usage)


def _profile(model: Pair, draft_vocab: int | str) -> Profile:
    """What is remembered of this pair on this machine."""
    target, draft = model.target, model.draft
    facts = [mx.__version__, mx.device_info(), blas.activate().name]
    facts += [target.name, target.depth, target.hidden_size, precision.describe(target.model)]
    if draft is not None:
        facts += [draft.name, precision.describe(draft.model), draft_vocab]
    return Profile.open(facts)


def _acceptance(sampling: SamplingSettings, vocab_size: int, exact: bool) -> Acceptance:
    sampling.check(vocab_size)
    if sampling.temperature == 0:
        return ExactGreedyAcceptance() if exact else GreedyAcceptance()
    if exact:
        raise PromptError(
            "exact decides near ties of greedy decoding; with a temperature use a seed"
        )
    if sampling.seed is not None:
        return SharedNoiseAcceptance(sampling, vocab_size)
    return RejectionAcceptance(sampling, vocab_size)


def stream_generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    max_tokens: int = 256,
    *,
    stop: Sequence[str] = (),
    session: Session | None = None,
    trace: TraceWriter | None = None,
    prompt_progress_callback: PrefillProgress | None = None,
    **settings: Unpack[SessionSettings],
) -> Iterator[GenerationResponse]:
    """Answer a prompt, token by token.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: text (encoded as mlx_lm does) or token ids.
        max_tokens: at most so many; fewer where the model's context ends.
        stop: strings that end the answer; they are no part of it.
        session: continues a conversation; `prompt` is then the whole of it, and what the session
            has seen of it is reused.
        trace: is told every cycle.
        prompt_progress_callback: told (tokens done, tokens in all) during prefill.
        settings: block_size, draft_window, draft_vocab, exact, sampling: see `make_session`.

    Yields:
        One response a token; the last has a finish reason.

    Raises:
        PromptError: the prompt is empty or too long, a setting is out of range, or settings are
            given beside a session.
    """
    if max_tokens < 1:
        raise PromptError(f"max_tokens is {max_tokens}: at least one token must be asked for")
    tokens = encode(tokenizer, prompt)
    if session is None:
        session = make_session(model, **settings)
    elif settings:
        raise PromptError(
            f"the session has its own {', '.join(settings)}: give settings to make_session"
        )
    with wired_limit(model.target.model, [generation_stream]):
        session.prefill(tokens, prompt_progress_callback)
        limit = model.target.context_limit
        room = max_tokens if limit is None else min(max_tokens, limit - len(tokens))
        output = Output(tokenizer, model.eos_token_ids, stop)
        emitted = 0
        for cycle in session.stream(room, output.take):
            if trace:
                trace.add(cycle)
            for index, segment in enumerate(output.segments):
                emitted += 1
                yield _response(cycle, index, emitted, segment, session.statistics)


def generate(
    model: Pair,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int] | mx.array,
    verbose: bool = False,
    **settings: Any,
) -> str:
    """Answer a prompt.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: text or token ids.
        verbose: print the answer as it comes, and figures at its end.
        settings: see `stream_generate`.

    Returns:
        The answer's text.
    """
    pieces, last = [], None
    for last in stream_generate(model, tokenizer, prompt, **settings):
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
    cycle: Cycle, index: int, emitted: int, segment: str, statistics: Statistics
) -> GenerationResponse:
    is_last = index == len(cycle.tokens) - 1
    seconds = statistics.seconds
    return GenerationResponse(
        text=segment,
        token=cycle.tokens[index],
        logprobs=cycle.logprobs[index],
        from_draft=index < cycle.accepted,
        prompt_tokens=statistics.prompt_tokens,
        prompt_tps=statistics.prompt_tokens_per_second,
        generation_tokens=emitted,
        generation_tps=emitted / seconds if seconds else 0.0,
        peak_memory=mx.get_peak_memory() / 1e9,
        finish_reason=cycle.finish_reason if is_last else None,
        acceptance_length=statistics.acceptance_length,
        statistics=statistics,
    )
