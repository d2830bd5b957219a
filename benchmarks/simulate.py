"""What follows from published costs of Macs: plain, serial, mirrored and adaptive decoding.

    python benchmarks/simulate.py [--branches docs/branches.json] [--draft mirror-ready]

Nothing here was measured on a Mac. The simulator (`bench/simulator.py`) decodes texts on a draft of
which each token is right with a set chance, on machines whose costs others published; how often a
verify comes to an outcome that was drafted behind, and what such a draft keeps, is what
`benchmarks/branches.py` measured of the demo draft, or "all" for the bound. Policies begin knowing
nothing, and have 2,000 tokens; rates are of several such beginnings together, since the first few
drafts, right or wrong, decide for how long a policy stays away from drafting.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mirror_sd.bench.machines import PUBLISHED, Machine
from mirror_sd.bench.simulator import Branching, Text, predict
from mirror_sd.decoding.adaptive import AdaptiveLength
from mirror_sd.decoding.length import FixedLength, LengthPolicy

BLOCK = 15  # drafted tokens
TOKENS, ANSWERS, BEGINNINGS = 400, 5, 20
CHANCES = (0.5, 0.75, 0.9)
COLUMNS = (
    "machine", "chance of a token", "plain, tok/s", "serial", "mirrored, hits as measured",
    "mirrored, all hit", "adaptive and mirrored",
)  # fmt: skip
ALL = Branching([1.0])


def texts(chance: float, seed: int) -> list[Text]:
    dice = random.Random(seed)

    def accepted() -> int:
        return next((n for n in range(BLOCK) if dice.random() > chance), BLOCK)

    return [
        Text([accepted() for _ in range(TOKENS)], [[chance] * BLOCK] * TOKENS)
        for _ in range(ANSWERS)
    ]


def measured(file: Path, draft: str) -> Branching:
    """Hits by rank, from hits by number of branches."""
    found = json.loads(file.read_text(encoding="utf-8"))[draft]
    ranks: list[float] = []
    for count, one in ((int(count), one) for count, one in found.items()):
        new = count - len(ranks)
        more = max(0.0, one["hits"] / one["calls"] - sum(ranks))
        ranks += [more / new] * new
    kept = sum(sum(one["branch"]) for one in found.values())
    return Branching(ranks, kept / sum(sum(one["anew"]) for one in found.values()))


def rates(machine: Machine, chance: float, branching: Branching) -> list[float | None]:
    def rate(policy: Callable[[], LengthPolicy], ahead: Branching | None = None) -> float:
        span = sum(
            predict(texts(chance, seed), machine, policy(), ahead, seed=seed).span
            for seed in range(BEGINNINGS)
        )
        return BEGINNINGS * ANSWERS * TOKENS / span * 1e3

    block, plain = partial(FixedLength, BLOCK), 1 in machine.verify
    return [
        rate(partial(FixedLength, 0)) if plain else None,
        rate(block),
        rate(block, branching),
        rate(block, ALL),
        rate(AdaptiveLength, branching) if plain else None,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=Path, default=Path("docs/branches.json"))
    parser.add_argument("--draft", default="mirror-ready")
    settings = parser.parse_args()
    branching = measured(settings.branches, settings.draft)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for machine in PUBLISHED:
        for chance in CHANCES:
            found = rates(machine, chance, branching)
            cells = ["" if rate is None else f"{rate:.1f}" for rate in found]
            print(f"| {machine.name} | {chance} | {' | '.join(cells)} |", flush=True)
    print()
    for machine in PUBLISHED:
        print(f"- {machine.name}: {machine.source}")


if __name__ == "__main__":
    main()
