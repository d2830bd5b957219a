"""What a smaller vocabulary for drafting saves, and what it costs in acceptance.

    python benchmarks/draft_head.py [--sizes 2048 4096 8192 16384 full] [--tokens 48] [--per-kind 1]

Times are of drafting a whole block, the median over all cycles; ratios are against the full head
in the same run.
"""

from __future__ import annotations

import argparse
import statistics

import mirror_sd
from mirror_sd.bench import environment, prompts
from mirror_sd.decoding.output import until


def measure(pair, tokenizer, chosen, size: int | None, tokens: int) -> tuple[float, float]:
    """Median draft milliseconds and acceptance length."""
    block = pair.draft.model.config.block_size
    times, emitted, passes = [], 0, 0
    for prompt in chosen:
        session = mirror_sd.make_session(pair, block_size=block, draft_vocab=size or "full")
        session.prefill(prompt.encode(tokenizer))
        cycles = list(session.stream(tokens, until(pair.eos_token_ids)))
        times += [c.draft_seconds for c in cycles[1:] if c.drafted == block - 1]
        emitted += session.statistics.tokens
        passes += session.statistics.passes
    return statistics.median(times) * 1e3, emitted / passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--sizes", nargs="+", default=["full", "16384", "8192", "4096", "2048"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--per-kind", type=int, default=1)
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load(settings.model, settings.draft)
    chosen = prompts.builtin(settings.per_kind)
    sizes = sorted({None if s == "full" else int(s) for s in settings.sizes} | {None}, key=str)
    sizes.sort(key=lambda size: -(size or 10**9))
    results = {size: measure(pair, tokenizer, chosen, size, settings.tokens) for size in sizes}
    full_time, full_acceptance = results[None]
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))
    print(f"{len(chosen)} prompts, at most {settings.tokens} tokens\n")
    print("| draft vocabulary | draft, ms | of the full head's | acceptance length | of full |")
    print("|---|---|---|---|---|")
    for size, (took, acceptance) in results.items():
        print(
            f"| {size or 'full'} | {took:.1f} | {took / full_time:.2f} | {acceptance:.3f} "
            f"| {acceptance / full_acceptance:.3f} |"
        )


if __name__ == "__main__":
    main()
