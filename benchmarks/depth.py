"""Decoding speed at several depths of context, adaptive against plain, on the same caches.

    python benchmarks/depth.py [--depths 0 1024 2048 4096] [--tokens 48] [--plot FILE]

Each depth is read once; plain decoding by mlx-lm and the adaptive policy then start from the same
caches, one after the other, `--runs` times. The median ratio counts.
"""

from __future__ import annotations

import argparse
import statistics
import time

import mirror_sd  # before mlx: it loads the BLAS

# isort: split
import mlx.core as mx
from mlx_lm.generate import generate_step

from mirror_sd.bench import environment, prompts
from mirror_sd.decoding.output import until


def plain_rate(session, count: int) -> float:
    """Tokens per second of mlx-lm's own loop on the session's caches, which are put back."""
    caches = session.target.cache.layers
    steps = generate_step(
        mx.array([session.anchor]), session.target.model.model, max_tokens=count,
        prompt_cache=caches,
    )  # fmt: skip
    next(steps)
    start = time.perf_counter()
    rest = sum(1 for _ in steps)
    took = time.perf_counter() - start
    for cache in caches:
        cache.trim(cache.offset - session.target.length)
    return rest / took


def measure(pair, tokenizer, depth: int, settings) -> tuple[int, float, float, float, str]:
    prompt = prompts.of_depth(tokenizer, depth)
    session = mirror_sd.make_session(pair)
    ratios, rates, plain_rates = [], [], []
    sources: dict[str, int] = {}
    for _ in range(settings.runs):
        session.prefill(prompt)  # reads it once, then finds it in the caches
        plain_rates.append(plain_rate(session, settings.tokens))
        for _ in session.stream(settings.tokens, until(pair.eos_token_ids)):
            pass
        rates.append(session.statistics.tokens_per_second)
        ratios.append(rates[-1] / plain_rates[-1])
        for source, count in session.statistics.passes_by_source.items():
            sources[source] = sources.get(source, 0) + count
    used = ", ".join(f"{source} {count}" for source, count in sources.items())
    middle = statistics.median
    return len(prompt), middle(plain_rates), middle(rates), middle(ratios), used


def plot(rows, file: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    depths = [row[0] for row in rows]
    axes.plot(depths, [row[1] for row in rows], marker="o", label="plain mlx-lm")
    axes.plot(depths, [row[2] for row in rows], marker="o", label="mirror-sd, adaptive")
    axes.set(xlabel="tokens of context", ylabel="tokens per second", ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 1024, 2048, 4096])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plot", help="draw it into this PNG file")
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load(settings.model, settings.draft)
    rows = [measure(pair, tokenizer, depth, settings) for depth in settings.depths]
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))
    print(f"{settings.tokens} tokens, median of {settings.runs} runs\n")
    print("| context | plain, tok/s | adaptive, tok/s | over plain | passes by source |")
    print("|---|---|---|---|---|")
    for depth, plain, rate, ratio, used in rows:
        print(f"| {depth} | {plain:.1f} | {rate:.1f} | {ratio:.2f}x | {used} |")
    if settings.plot:
        plot(rows, settings.plot)


if __name__ == "__main__":
    main()
