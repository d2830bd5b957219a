"""Training steps of the demo draft, against a straightforward implementation in the same run.

    python benchmarks/training.py [--batch 16] [--anchors 16] [--length 128] [--steps 5]
                                  [--memory-steps 0] [--json FILE]

Straightforward: the target runs over every batch, all logits over the whole vocabulary are kept for
the backward pass, by MLX's own cross entropy. The trainer: cross entropy in pieces with its own
gradient, sampled softmax (the last tenth of a run uses the whole), and features from disk. Each
ingredient is also shown alone. Texts are random tokens of one length: nothing is learnt, but the
work is the same. A step is the median of several, steps of the setups alternate, and the products'
bound is what the machine's measured matrix speed allows for the multiplications of the full step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import mirror_sd
from mirror_sd.bench import environment

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mirror_sd.models import demo
from mirror_sd.training.batches import Sampling, Schedule
from mirror_sd.training.data import Text
from mirror_sd.training.features import Computed, Stored
from mirror_sd.training.forward import hidden_states
from mirror_sd.training.objective import _blocks
from mirror_sd.training.start import Start, make
from mirror_sd.training.trainer import Settings, Trainer

COMMON = 8000  # different tokens in the texts, as in the demo pair's training data


def texts(count: int, length: int, vocab_size: int) -> list[Text]:
    """Random tokens; a third of each text is its prompt."""
    rng = np.random.default_rng(0)
    known = rng.choice(vocab_size, COMMON, replace=False)
    return [Text(rng.choice(known, length), length // 3, "random") for _ in range(count)]


def straightforward(draft, target, schedule, computed) -> Callable[[int], None]:
    """A step by MLX's own cross entropy over all logits."""
    import mlx.optimizers as optim

    optimizer = optim.AdamW(1e-5)
    mask = draft.config.mask_token_id

    def step(index: int) -> None:
        batch = schedule.batch(index)
        features = computed(batch).features
        labels, weights = mx.array(batch.labels), mx.array(batch.weights)

        def loss(model):
            hidden = hidden_states(model, features, _blocks(batch, target, mask))
            losses = nn.losses.cross_entropy(target.logits(hidden), labels)
            return (losses * weights).sum() / weights.sum()

        _, gradients = nn.value_and_grad(draft, loss)(draft)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(draft, gradients)
        mx.eval(draft.parameters(), optimizer.state)

    return step


def flops(draft, sampling: Sampling, length: int, softmax: int) -> float:
    """Multiplications and additions of a step's matrix products with stored features: forward, and
    twice that backward; of the head, forward and by the hidden states.
    """
    sizes = {n: w.size for n, w in tree_flatten(draft.parameters()) if w.ndim > 1}
    context = sum(
        s for n, s in sizes.items() if n.startswith("fc") or "k_proj" in n or "v_proj" in n
    )
    block = sum(s for n, s in sizes.items() if not n.startswith("fc"))
    blocks = sampling.batch * sampling.anchors * sampling.block_size
    rows = blocks * (sampling.block_size - 1) / sampling.block_size
    heads = draft.config.num_heads * draft.config.head_dim * len(draft.layers)
    attention = 2 * blocks * (length + sampling.block_size) * heads
    head = rows * softmax * draft.config.hidden_size
    return 2 * (3 * (sampling.batch * length * context + blocks * block + attention) + 2 * head)


def measure(steps: dict[str, Callable[[int], None]], count: int) -> dict[str, list[float]]:
    """Seconds of each setup's steps, in turn; the first of each is a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for index in range(count + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step(index)
            if index:
                times[name].append(time.perf_counter() - start)
            print(f"step {index}/{count}: {name}    ", end="\r", file=sys.stderr)
    return times


def memory(trainer: Trainer, count: int) -> None:
    """Active and peak memory over many steps."""
    marks = {max(1, count * part // 5) for part in range(6)}
    print("\n| step | active memory, MB | peak since the mark before, MB |\n|---|---|---|")
    mx.reset_peak_memory()
    for number, _ in enumerate(trainer.run(), 1):
        if number in marks:
            active, peak = mx.get_active_memory() / 1e6, mx.get_peak_memory() / 1e6
            print(f"| {number} | {active:.0f} | {peak:.0f} |", flush=True)
            mx.reset_peak_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--anchors", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--memory-steps", type=int, default=0)
    parser.add_argument("--json", dest="file")
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load("demo", drafting=False)
    target = pair.target
    target.lend()
    sampling = Sampling(batch=settings.batch, anchors=settings.anchors)
    data = texts(4 * settings.batch, settings.length, target.vocab_size)
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))
    with tempfile.TemporaryDirectory() as folder:
        draft, _ = make(Start(demo.NAME), target, tokenizer, seed=0)
        computed = Computed(target, draft.config.taps)
        stored = Stored(Path(folder, "features.npy"), data, computed)
        schedule = Schedule(data, sampling, len(draft.config.taps))

        def trainer(name: str, features, **changes) -> Trainer:
            own, _ = make(Start(demo.NAME), target, tokenizer, seed=0)
            plan = replace(Settings(steps=10**6, checkpoint_every=10**6), **changes)
            return Trainer(own, target, schedule, features, plan, Path(folder, name), {})

        trainers = {
            "in pieces": trainer("pieces", computed, negatives=0),
            "in pieces, sampled softmax": trainer("sampled", computed),
            "in pieces, stored features": trainer("stored", stored, negatives=0),
            "the trainer: all three": trainer("all", stored),
        }
        runs = {name: each.run() for name, each in trainers.items()}
        steps = {"straightforward": straightforward(draft, target, schedule, computed)}
        steps |= {name: lambda _, run=run: next(run) for name, run in runs.items()}
        times = measure(steps, settings.steps)
        report(times, draft, schedule, settings)
        if settings.memory_steps:
            plan = {"steps": settings.memory_steps, "full_from": 1.0}
            memory(trainer("memory", stored, **plan), settings.memory_steps)


def report(times, draft, schedule: Schedule, settings) -> None:
    sampling = schedule.sampling
    predicted = statistics.mean(int((schedule.batch(i).weights > 0).sum()) for i in range(4))
    base = statistics.median(times["straightforward"])
    print(f"\n{sampling.batch} texts of {settings.length} tokens, {sampling.anchors} blocks each\n")
    print("| setup | s per step | predicted tokens/s | over straightforward |\n|---|---|---|---|")
    for name, found in times.items():
        took = statistics.median(found)
        print(f"| {name} | {took:.2f} | {predicted / took:.0f} | {base / took:.2f}x |")
    speed = environment.matmul_speed()
    work = flops(draft, sampling, settings.length, COMMON + 4096)
    took = statistics.median(times["the trainer: all three"])
    print(
        f"\nproducts of a step: {work / 1e9:.0f} GFLOP, {work / 1e9 / speed:.2f} s at the "
        f"{speed:.0f} GFLOP/s measured here; the trainer's step takes "
        f"{took / (work / 1e9 / speed):.2f} times that"
    )
    if settings.file:
        Path(settings.file).write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
