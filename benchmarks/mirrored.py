"""Drafting beside the verify against taking turns, with a device that only takes time.

    python benchmarks/mirrored.py [--tokens 64] [--runs 3] [--lengths 3]

The demo target verifies; the device's draft knows the text, is wrong at every so-manieth position,
and waits for a set share of the time that a verify takes: on two CPU cores, a draft that computes
would only slow the target down. Overlap is the intersection of the device's real intervals with the
target's, over the device's busy time; nothing is computed from sums. The bound is
(Tv + Td) / (Tv + (1 - p) Td) for a hit rate p, with Tv a drafted cycle less its draft.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

import mirror_sd
from mirror_sd.bench import environment, prompts

# isort: split
from mirror_sd.bench.oracle import Directions, Oracle
from mirror_sd.decoding import plain
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.device_draft import DeviceDraft
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.mirrored import MirroredDrafter
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.models.target import Target


@dataclass
class Run:
    """An answer.

    Attributes:
        tokens: that came out.
        seconds: for them.
        hit_rate: hits over blocks drafted.
        overlap: share of the device's busy time in which the target was verifying, too.
        verify: median seconds of a verify.
    """

    tokens: list[int]
    seconds: float
    hit_rate: float
    overlap: float
    verify: float


def answer(pair, prompt, text, directions, every: int, seconds: float, length: int, mirror) -> Run:
    oracle = Oracle(text, directions, lambda place: every > 0 and place % every == 0, seconds)
    device = DeviceDraft(pair.draft.model, lambda: oracle, 4096)
    drafter = (MirroredDrafter if mirror else DFlashDrafter)(device, pair.target)
    session = Session(
        Target(pair.target, drafter.taps), [drafter], GreedyAcceptance(), FixedLength(length)
    )
    session.prefill(prompt)
    tokens, verifies, start = [], [], time.perf_counter()
    for cycle in session.stream(len(text) - len(prompt), until(frozenset())):
        now = time.perf_counter()
        verifies.append((now - cycle.seconds + cycle.draft_seconds, now))
        tokens += cycle.tokens
    took = time.perf_counter() - start
    busy = sum(end - begin for begin, end, _ in oracle.intervals)
    shared = sum(
        max(0.0, min(end, b) - max(begin, a))
        for begin, end, _ in oracle.intervals
        for a, b in verifies
    )
    hits = drafter.tally.hits / max(len(verifies) - 1, 1) if mirror else 0.0
    return Run(
        tokens, took, hits, shared / busy if busy else 0.0,
        statistics.median(b - a for a, b in verifies),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--length", type=int, default=3)
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load("demo")
    prompt = prompts.builtin(1)[0].encode(tokenizer)
    text = plain.run(pair.target, tokenizer, prompt, settings.tokens).tokens
    directions = Directions(pair.target)
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))
    columns = ("wrong at", "draft over verify", "hits", "overlap", "speed over serial", "bound")
    print(f"\n| {' | '.join(columns)} | identical |\n|{'---|' * (len(columns) + 1)}")

    def run(every: int, seconds: float, mirror: bool) -> Run:
        return answer(
            pair, prompt, [*prompt, *text], directions, every, seconds, settings.length, mirror
        )

    run(0, 0.0, True)  # warm-up; it also finds the directions
    verify = run(0, 0.0, False).verify
    for every in (0, 7, 3):
        for share in (0.2, 0.5, 1.0):
            pairs = []
            for index in range(settings.runs):
                print(f"{every} {share} {index + 1}/{settings.runs}  ", end="\r", file=sys.stderr)
                pairs.append([run(every, share * verify, mirror) for mirror in (False, True)])
            serial, mirrored = (
                min((p[i] for p in pairs), key=lambda one: one.seconds) for i in (0, 1)
            )
            p, draft = mirrored.hit_rate, share * verify
            bound = (serial.verify + draft) / (serial.verify + (1 - p) * draft)
            same = serial.tokens == mirrored.tokens == text
            print(
                f"| {f'every {every}th' if every else 'never'} | {share} | {p:.2f} | "
                f"{mirrored.overlap:.0%} | {serial.seconds / mirrored.seconds:.2f}x | "
                f"{bound:.2f}x | {'yes' if same else 'NO'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
