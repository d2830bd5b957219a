"""Shared-noise sampling against rejection sampling: how much of a draft each accepts.

    python benchmarks/sampling.py [--temperatures 0.6 1.0] [--block-size 4] [--tokens 48]
                                  [--seeds 2] [--per-kind 2]

Both draw exactly from the target's distribution, so only acceptance can tell them apart. For each
prompt, temperature and seed both answer; the table shows mean tokens per target pass over all
answers, with the standard error of the paired difference.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys

import mirror_sd
from mirror_sd.api import make_session
from mirror_sd.bench import environment, prompts
from mirror_sd.decoding.acceptance import RejectionAcceptance, SharedNoiseAcceptance
from mirror_sd.decoding.output import until
from mirror_sd.decoding.sampling import SamplingSettings

METHODS = {"shared noise": SharedNoiseAcceptance, "rejection": RejectionAcceptance}


def acceptance_length(pair, tokens, method, sampling, settings) -> float:
    session = make_session(pair, block_size=settings.block_size, sampling=sampling)
    session.acceptance = METHODS[method](sampling, pair.target.vocab_size)
    session.prefill(tokens)
    for _ in session.stream(settings.tokens, until(pair.eos_token_ids)):
        pass
    return session.statistics.acceptance_length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6, 1.0])
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--block-size", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--per-kind", type=int, default=2)
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load(settings.model, settings.draft)
    chosen = prompts.builtin(settings.per_kind)
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))
    print(f"{len(chosen)} prompts, {settings.seeds} seeds, at most {settings.tokens} tokens\n")
    print("| temperature | shared noise | rejection | difference |\n|---|---|---|---|")
    for temperature in settings.temperatures:
        found: dict[str, list[float]] = {method: [] for method in METHODS}
        for seed in range(settings.seeds):
            sampling = SamplingSettings(temperature=temperature, top_p=settings.top_p, seed=seed)
            for prompt in chosen:
                tokens = prompt.encode(tokenizer)
                for method in METHODS:
                    figure = acceptance_length(pair, tokens, method, sampling, settings)
                    found[method].append(figure)
                print(f"{temperature}: {len(found[method])}", end="\r", file=sys.stderr)
        gaps = [b - a for a, b in zip(*found.values(), strict=True)]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        means = [statistics.mean(figures) for figures in found.values()]
        gap = statistics.mean(gaps)
        print(
            f"| {temperature} | {means[0]:.3f} | {means[1]:.3f} | {gap:+.3f} ± {error:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
