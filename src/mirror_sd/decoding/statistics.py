"""What happened, counted and timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .length import Plan
from .work import NO_REPORT, Report


@dataclass(frozen=True)
class Cycle:
    """One turn of the loop.

    Attributes:
        tokens: what it emitted, in order; empty only where a choice was put off to the next pass.
        plan: what the policy had decided.
        depth: tokens of context before it.
        proposed: the drafted tokens that were verified.
        drafted: how many tokens were drafted; more than were verified if the policy trimmed.
        accepted: how many of `tokens` were drafted ones; they come first.
        confidences: the drafter's chance for each drafted token, if the policy asked for them.
        finish_reason: "stop" after an end token or stop string, "length" at the limit, else None.
        logprobs: [n + 1, V] the target's log probabilities; row i scores `tokens[i]`.
        draft_seconds: from the start of the cycle until the draft was computed.
        verify_seconds: from there until the target's decision was computed.
        seconds: the whole cycle.
        steady: a plain cycle whose pass was queued ahead, and that queued the next one.
        redone: rows of earlier cycles that were run again before it, one by one (exact decoding).
        redo_seconds: how long that took; part of `seconds`.
        began: when it began, by `time.perf_counter`.
        report: what the drafter with a device of its own has done, if there is one.
    """

    tokens: list[int]
    plan: Plan
    depth: int
    proposed: list[int]
    drafted: int
    accepted: int
    confidences: Sequence[float] | None
    finish_reason: str | None
    logprobs: mx.array
    draft_seconds: float
    verify_seconds: float
    seconds: float
    steady: bool
    redone: int = 0
    redo_seconds: float = 0.0
    began: float = 0.0
    report: Report = NO_REPORT


@dataclass
class Statistics:
    """Sums over the cycles of one answer."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_seconds: float = 0.0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    redone: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    redo_seconds: float = 0.0
    seconds: float = 0.0
    first: tuple[int, float] = (0, 0.0)  # tokens and seconds of the first cycle
    passes_by_source: dict[str, int] = field(default_factory=dict)

    def add(self, cycle: Cycle) -> None:
        """Count a cycle in."""
        if not self.passes:
            self.first = len(cycle.tokens), cycle.seconds
        self.tokens += len(cycle.tokens)
        self.passes += 1
        self.drafted += cycle.drafted
        self.accepted += cycle.accepted
        self.redone += cycle.redone
        self.draft_seconds += cycle.draft_seconds
        self.verify_seconds += cycle.verify_seconds
        self.redo_seconds += cycle.redo_seconds
        self.seconds += cycle.seconds
        source = cycle.plan.source or "plain"
        self.passes_by_source[source] = self.passes_by_source.get(source, 0) + 1

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per target pass, the target's own token included."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second. The first cycle counts with the prefill, as the first token
        does in mlx-lm, unless it is the only one.
        """
        tokens, seconds = self.first if self.passes > 1 else (0, 0.0)
        spent = self.seconds - seconds
        return (self.tokens - tokens) / spent if spent else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens per second of prefill; reused tokens cost nothing and do not count."""
        fresh = self.prompt_tokens - self.reused_tokens
        return fresh / self.prefill_seconds if self.prefill_seconds else 0.0
