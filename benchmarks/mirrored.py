"""Drafting beside the verify against taking turns, with a device that only takes time.

    python benchmarks/mirrored.py [--tokens 64] [--runs 3] [--length 3]

The demo target verifies; the device's draft knows the text, is wrong at every so-manieth position,
and waits for a set share of the time that a verify takes: on two CPU cores, a draft that computes
would only slow the target down. The two kinds of run alternate, since the machine's speed drifts.

Overlap is the intersection of the device's calls beside the verify with the target's intervals,
over the former's length; hidden is how much less drafting the target waited for than in turn, over
what the hit rate allows. The bound is (Tv + Td) / (Tv + (1 - p) Td) for a hit rate p, Tv being all
of a cycle but the draft. The simulator is given what the target costs in the runs in turn, what
launching costs, and the cycles, and predicts the time of the others.
"""

from __future__ import annotations

import argparse
import sys
from statistics import mean

import mirror_sd
from mirror_sd.bench import environment, prompts

# isort: split
from mirror_sd.bench.oracle import Directions
from mirror_sd.bench.overlap import Bench, Run, calibrate
from mirror_sd.bench.simulator import replay
from mirror_sd.decoding import plain

COLUMNS = (
    "wrong at", "draft over verify", "hits", "overlap", "hidden", "speed over serial", "bound",
    "serial, predicted", "mirrored, predicted", "identical",
)  # fmt: skip


def never(place: int) -> bool:
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--length", type=int, default=3)
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load("demo")
    prompt = prompts.builtin(1)[0].encode(tokenizer)
    text = plain.run(pair.target, tokenizer, prompt, settings.tokens).tokens
    bench = Bench(pair, prompt, [*prompt, *text], Directions(pair.target), settings.length)
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))

    def alternate(wrong, seconds: float) -> tuple[list[Run], list[Run]]:
        """Runs in turn, and runs beside."""
        found: tuple[list[Run], list[Run]] = [], []
        for index in range(settings.runs):
            print(
                f"{seconds * 1e3:.0f} ms {index + 1}/{settings.runs}  ", end="\r", file=sys.stderr
            )
            for mirror in (False, True):
                found[mirror].append(bench.run(wrong, seconds, mirror))
        return found

    bench.run(never, 0.0, True)  # warm-up; it also finds the directions
    without = alternate(never, 0.0)
    launch = calibrate(without[1], 0.0).cycle - calibrate(without[0], 0.0).cycle
    verify = calibrate(without[0], 0.0).machine.pass_ms(settings.length + 1)
    print(f"\na verify takes {verify:.1f} ms, drafting beside it {launch:.1f} of the host's")
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for every in (0, 7, 3):
        for share in (0.2, 0.5, 1.0):
            serial, mirrored = alternate(
                lambda place, every=every: every > 0 and place % every == 0, share * verify / 1e3
            )
            print(f"| {line(every, share, serial, mirrored, launch, text)} |", flush=True)


def line(
    every: int,
    share: float,
    serial: list[Run],
    mirrored: list[Run],
    launch: float,
    text: list[int],
) -> str:
    """A setting's results."""
    costs = calibrate(serial, launch)
    p = mean(run.hit_rate for run in mirrored)
    cycle, draft = costs.cycle - costs.machine.draft, costs.machine.draft
    bound = (cycle + draft) / (cycle + (1 - p) * draft)
    waits = [mean(run.timeline.exposed for run in runs) for runs in (serial, mirrored)]
    hidden = f"{(waits[0] - waits[1]) / (p * waits[0]):.0%}" if p else ""
    foreseen = [
        mean(replay(run.rows, costs.machine, how).span for run in runs)
        / mean(run.seconds * 1e3 for run in runs)
        for how, runs in ((False, serial), (True, mirrored))
    ]
    speed = sum(run.seconds for run in serial) / sum(run.seconds for run in mirrored)
    same = all(run.tokens == text for run in (*serial, *mirrored))
    return " | ".join(
        [
            f"every {every}th" if every else "never",
            f"{share}",
            f"{p:.2f}",
            f"{mean(run.beside for run in mirrored):.0%}",
            hidden,
            f"{speed:.2f}x",
            f"{bound:.2f}x",
            f"{foreseen[0]:.3f}",
            f"{foreseen[1]:.3f}",
            "yes" if same else "NO",
        ]
    )


if __name__ == "__main__":
    main()
