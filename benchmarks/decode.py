"""Plain mlx-lm against mirror-sd on the same weights, prompt by prompt, in one run.

    python benchmarks/decode.py [--model demo] [--block-sizes 2 4 8] [--tokens 64] [--runs 3]
                                [--per-kind 2] [--json FILE]

Setups: *adaptive*, the default, which chooses between the draft, copying from the context, and
plain decoding; *n-gram*, the same policy with copying alone; and the draft at fixed block sizes.
The first two start from nothing known of the machine and keep what they learn from prompt to
prompt, as on a user's disk. Speeds leave out the first cycle: mlx-lm counts the first token with
the prompt.

Every figure is a ratio to plain runs just before and after; of several runs of a prompt the median
counts, and prompts are averaged. Overhead is the wall
time of the whole loop over the sum of its forward passes measured alone (--overhead). Ratios from a
CPU say nothing about an Apple GPU, where checking several tokens costs little more than one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import mirror_sd
from mirror_sd.api import DRAFT_VOCAB, make_session
from mirror_sd.bench import environment, prompts, replay
from mirror_sd.decoding import plain
from mirror_sd.decoding.adaptive import AdaptiveLength
from mirror_sd.decoding.divergence import find
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.ngram import NgramDrafter
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.models.draft_head import DraftHead


@dataclass
class Row:
    """One prompt with one setup in one run."""

    kind: str
    prompt: int
    run: int
    setup: str
    tokens: int
    acceptance_length: float
    speedup: float
    overhead: float | None
    identical: bool
    tie: bool


def sessions(pair, block_sizes) -> dict[str, Callable[[], Session]]:
    """The setups: what makes a fresh session of each."""
    adaptive, ngram = AdaptiveLength(), AdaptiveLength()
    longest = pair.draft.model.config.block_size - 1
    return {
        "adaptive": lambda: make_session(pair, policy=adaptive),
        "n-gram": lambda: make_session(pair, drafters=[NgramDrafter(longest)], policy=ngram),
    } | {str(size): partial(make_session, pair, block_size=size) for size in block_sizes}


def measure(pair, tokens, settings, session, alone: bool) -> tuple[dict, list[int]]:
    session.prefill(tokens)
    cycles = list(session.stream(settings.tokens, until(pair.eos_token_ids)))
    answer = [token for cycle in cycles for token in cycle.tokens]
    s = session.statistics
    figures = {
        "tokens": s.tokens,
        "acceptance_length": s.acceptance_length,
        "rate": s.tokens_per_second,
        "overhead": None,
    }
    if alone:
        drafter = DFlashDrafter(pair.draft.model, pair.target, head=_head(pair))
        bare = replay.forward_times(pair.target, drafter, tokens, cycles)
        figures["overhead"] = s.seconds / bare.total
    return figures, answer


def _head(pair) -> DraftHead:
    """As `make_session` would give the draft."""
    ranking = pair.draft.ranking
    return DraftHead(pair.target, DRAFT_VOCAB if ranking else None, ranking)


def _is_tie(pair, tokens, answer, plain_tokens) -> bool:
    divergence = find(pair.target, tokens, answer, plain_tokens)
    return divergence is not None and divergence.is_tie


def run_prompt(pair, tokenizer, index, prompt, run, setups, settings) -> list[Row]:
    """All setups, in two groups, each between two plain runs: their mean is the plain speed."""
    tokens = prompt.encode(tokenizer)
    rows = []
    before = plain.run(pair.target, tokenizer, tokens, settings.tokens)
    for group in [s for s in setups if not s.isdigit()], [s for s in setups if s.isdigit()]:
        measured = []
        for setup in group:
            alone = settings.overhead and setup.isdigit()
            measured.append(measure(pair, tokens, settings, setups[setup](), alone))
        after = plain.run(pair.target, tokenizer, tokens, settings.tokens)
        baseline = (before.tokens_per_second + after.tokens_per_second) / 2
        for setup, (figures, answer) in zip(group, measured, strict=True):
            identical = answer == after.tokens
            tie = not identical and _is_tie(pair, tokens, answer, after.tokens)
            rows.append(
                Row(
                    kind=prompt.kind,
                    prompt=index,
                    run=run,
                    setup=setup,
                    speedup=figures.pop("rate") / baseline,
                    identical=identical,
                    tie=tie,
                    **figures,
                )
            )
        before = after
    return rows


def _figure(value: float) -> str:
    return "" if value != value else f"{value:.3f}"


def show(rows: list[Row]) -> None:
    def mean(chosen: list[Row], key: str) -> float:
        """Over prompts, of each prompt's median over runs."""
        medians = []
        for prompt in {row.prompt for row in chosen}:
            figures = [getattr(row, key) for row in chosen if row.prompt == prompt]
            known = [figure for figure in figures if figure is not None]
            medians += [statistics.median(known)] if known else []
        return statistics.mean(medians) if medians else float("nan")

    print("| kind | setup | acceptance length | speed over plain | overhead | identical |")
    print("|---|---|---|---|---|---|")
    for kind in (*prompts.KINDS, "all"):
        for setup in dict.fromkeys(row.setup for row in rows):
            chosen = [r for r in rows if r.setup == setup and kind in (r.kind, "all")]
            if not chosen:
                continue
            same = sum(r.identical for r in chosen)
            ties = sum(r.tie for r in chosen)
            print(
                f"| {kind} | {setup if not setup.isdigit() else f'block {setup}'} "
                f"| {mean(chosen, 'acceptance_length'):.2f} "
                f"| {mean(chosen, 'speedup'):.2f}x | {_figure(mean(chosen, 'overhead'))} "
                f"| {same}/{len(chosen)}{f' ({ties} ties)' if ties else ''} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--per-kind", type=int, default=2)
    parser.add_argument("--overhead", action="store_true", help="measure the loop's overhead too")
    parser.add_argument("--json", help="also write every figure to this file")
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load(settings.model, settings.draft)
    if pair.draft is None:
        sys.exit("this target has no draft; name one with --draft")
    rows = []
    setups = sessions(pair, settings.block_sizes)
    chosen = prompts.builtin(settings.per_kind)
    for run in range(settings.runs):
        for index, prompt in enumerate(chosen):
            rows += run_prompt(pair, tokenizer, index, prompt, run, setups, settings)
            print(f"run {run + 1}: {index + 1}/{len(chosen)} prompts", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    facts = environment.describe()
    print("\n".join(f"{label}: {value}" for label, value in facts.items()))
    size = f"at most {settings.tokens} tokens, median of {settings.runs} runs"
    print(f"{len(chosen)} prompts, {size}\n")
    show(rows)
    if settings.json:
        with open(settings.json, "w", encoding="utf-8") as file:
            json.dump({"environment": facts, "rows": [asdict(r) for r in rows]}, file, indent=1)


if __name__ == "__main__":
    main()
