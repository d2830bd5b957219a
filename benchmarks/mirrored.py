"""Drafting beside the verify against taking turns, with a device that only takes time.

    python benchmarks/mirrored.py [--tokens 64] [--runs 3] [--length 3] [--pace 2]

The demo target verifies; the device's draft knows the text, is wrong at every so-manieth position,
and waits for a set share of the time that a verify takes: on two CPU cores, a draft that computes
would only slow the target down. The two kinds of run alternate, since the machine's speed drifts.
With --pace, passes compute as before and then wait until they have taken that many times as long as
a pass does, so that the target is as steady as the device: what the schedule loses is seen, and not
what the machine does.

Overlap is the intersection of the device's calls beside the verify with the target's intervals,
over the former's length; hidden is how much less drafting the target waited for than in turn, over
what the hit rate allows. The bound is (Tv + Td) / (Tv + (1 - p) Td) for a hit rate p, Tv being all
of a cycle but the draft; hits are counted over all blocks, an answer's first one included, which
cannot hit. The simulator is given what the target and the host cost in other runs of the round,
the cycles, and the draft's time; it predicts the whole.
Figures are medians of each round's own ratios. "By policy" is the speed over serial where the
policy decides whether to draft beside a verify, as in use; elsewhere it always does.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from statistics import mean, median

import mirror_sd
from mirror_sd.bench import environment, prompts, timeline

# isort: split
from mirror_sd.bench.oracle import Directions
from mirror_sd.bench.overlap import Bench, Run, calibrate
from mirror_sd.bench.paced import Pace
from mirror_sd.bench.simulator import replay
from mirror_sd.decoding import plain
from mirror_sd.decoding.branch_policy import BranchPolicy

COLUMNS = (
    "wrong", "draft over verify", "hits", "overlap", "hidden", "speed over serial", "bound",
    "by policy",
    "serial, predicted", "mirrored, predicted", "identical",
)  # fmt: skip


SHARES = (0.0, 0.2, 0.5, 1.0)  # of a verify


class How(Enum):
    turns = "in turn"
    always = "beside every verify"
    policy = "where it pays"


Found = dict[tuple[float, How], list[Run]]


def never(place: int) -> bool:
    return False


def is_wrong(every: int, place: int) -> bool:
    return every > 0 and place % every == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--pace", type=float, help="a pass takes so many times as long, always")
    parser.add_argument("--plot", type=Path, help="draw a few cycles into this PNG file")
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load("demo")
    prompt = prompts.builtin(1)[0].encode(tokenizer)
    text = plain.run(pair.target, tokenizer, prompt, settings.tokens).tokens
    bench = Bench(pair, prompt, [*prompt, *text], Directions(pair.target), settings.length)
    bench.run(never, 0.0, True)  # warm-up; it also finds the directions
    if settings.pace:
        took = pass_ms(bench.run(never, 0.0, True), settings.length + 1)
        bench = replace(bench, pace=Pace(settings.pace * took / 1e3))
        print(f"a pass takes {settings.pace * took:.0f} ms, of which it computes for {took:.0f}")
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for every in (0, 7, 3):
        found = measure(bench, every, settings.runs)
        for share in SHARES[1:]:
            print(f"| {line(every, share, found, text)} |", flush=True)
    verify = pass_ms(bench.run(never, 0.0, True), settings.length + 1)
    print(held(bench, verify, settings.runs))
    if settings.pace:
        print(f"{bench.pace.late} of {bench.pace.passes} passes took longer")
    if settings.plot:
        run = bench.run(partial(is_wrong, 7), verify / 2e3, True)
        until = run.rows[7]["at_ms"] + run.rows[7]["cycle_ms"]
        timeline.plot(run.timeline, 0.0, until, settings.plot)


def held(bench: Bench, verify: float, runs: int) -> str:
    """What is lost if the device keeps Python's lock, as coremltools' predict does."""
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(runs):
        turns = bench.run(never, verify / 1e3, False).seconds
        for holds in ratios:
            run = bench.run(never, verify / 1e3, True, holds_gil=holds)
            ratios[holds].append(turns / run.seconds)
    free, lost = (median(ratios[holds]) for holds in (False, True))
    return (
        f"\nNever wrong, as long as a verify: {free:.2f}x over serial; by a device in this process "
        f"that holds Python's lock: {lost:.2f}x"
    )


def pass_ms(run: Run, rows: int) -> float:
    """A verify without what launching a call beside it takes."""
    took = median(row["verify_ms"] for row in run.rows if row["verified"] + 1 == rows)
    return took - calibrate([run], 0.0).launch


def measure(bench: Bench, every: int, runs: int) -> Found:
    """Runs of all ways by the draft's share of a verify. Within a round, all take turns, and the
    next round goes backwards, since the machine's speed drifts; a round's first runs tell how long
    a verify takes at present."""
    ways = [(share, how) for share in SHARES[1:] for how in How]
    found: Found = {(share, how): [] for share in SHARES for how in How}

    def run(share: float, how: How, seconds: float) -> Run:
        print(f"1 in {every}: {share} {how.value}        ", end="\r", file=sys.stderr)
        policy = BranchPolicy() if how is How.policy else None
        wrong = partial(is_wrong, every)
        found[share, how].append(bench.run(wrong, seconds, how is not How.turns, policy))
        return found[share, how][-1]

    for number in range(runs):
        run(0.0, How.turns, 0.0)
        verify = pass_ms(run(0.0, How.always, 0.0), bench.length + 1)
        for share, how in ways if number % 2 else ways[::-1]:
            run(share, how, share * verify / 1e3)
    return found


def line(every: int, share: float, found: Found, text: list[int]) -> str:
    """A setting's results."""
    serial, mirrored, chosen = (found[share, how] for how in How)
    draft = mean(
        end - begin for run in serial for row in run.rows for _, begin, end in row["device"]
    )
    p = mean(run.hit_rate for run in mirrored)
    cycle = mean(row["cycle_ms"] for run in serial for row in run.rows if row["planned"]) - draft
    bound = (cycle + draft) / (cycle + (1 - p) * draft)
    waits = [mean(run.timeline.exposed for run in runs) for runs in (serial, mirrored)]
    hidden = f"{(waits[0] - waits[1]) / (p * waits[0]):.0%}" if p else ""
    foreseen = [median(predicted(found, share, how, draft)) for how in (How.turns, How.always)]
    speeds = [
        median(turns.seconds / run.seconds for turns, run in zip(serial, runs, strict=True))
        for runs in (mirrored, chosen)
    ]
    same = all(run.tokens == text for run in (*serial, *mirrored, *chosen))
    return " | ".join(
        [
            f"1 in {every}" if every else "never",
            f"{share}",
            f"{p:.2f}",
            f"{mean(run.beside for run in mirrored):.0%}",
            hidden,
            f"{speeds[0]:.2f}x",
            f"{bound:.2f}x",
            f"{speeds[1]:.2f}x",
            f"{foreseen[0]:.3f}",
            f"{foreseen[1]:.3f}",
            "yes" if same else "NO",
        ]
    )


def predicted(found: Found, share: float, how: How, draft: float) -> list[float]:
    """For each round, the simulator's time over the measured one.

    In turn, the target idles in every cycle, and its passes take longer after that: their costs
    come from that round's runs with other draft times. Mirrored ones come from that with none.
    """
    others = [s for s in SHARES[1:] if s != share] if how is How.turns else [0.0]
    ratios = []
    for number, run in enumerate(found[share, how]):
        machine = calibrate([found[other, how][number] for other in others], draft)
        span = replay(run.rows, machine, how is How.always).span
        ratios.append(span / 1e3 / run.seconds)
    return ratios


if __name__ == "__main__":
    main()
