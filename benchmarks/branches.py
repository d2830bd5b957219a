"""How often a verify comes to an outcome that was drafted behind, and what such a draft is worth.

    mirror-sd compile --weights fp16 --block 64 --context 512 --out P
    python benchmarks/branches.py "demo=demo:P" ["mirror-ready=DRAFT:Q" ...] [--out branches]

Each draft runs as its programs, in the emulator, beside every verify, behind so many of the
likeliest outcomes, in one call of 64 positions; there are as many masks as then fit. Hits are
counted over all calls. Where one hits, the draft drafts anew as well, now with the features of all
tokens, and both blocks are held against the text: tokens that are right, up to the first wrong one.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import mirror_sd
from mirror_sd.bench import environment, prompts

# isort: split
import mlx.core as mx

from mirror_sd.bench.overlap import Always
from mirror_sd.decoding import plain
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.branches import fitting
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.mirrored import MirroredDrafter
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.models.target import Target

COUNTS = (1, 2, 4, 8, 16)
COLUMNS = (
    "draft", "branches", "calls", "hits", "masks", "right, branch", "right, drafted anew"
)  # fmt: skip


class Most(Always):
    """So many branches beside every verify, with as many masks as they leave room for."""

    def choose(self, branches, length: int, longest: int, room: int) -> int:
        wanted = min(self.most, len(branches))
        depths = range(longest, 0, -1)
        return next((d for d in depths if len(fitting(branches[:wanted], d, room)) == wanted), 1)


@dataclass
class Both:
    """Where a branch came true: what it says, and what the draft says anew."""

    place: int
    branch: list[int]
    anew: list[int]


@dataclass
class Found:
    """Over all prompts."""

    calls: int = 0
    hits: int = 0
    masks: list[int] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    anew: list[int] = field(default_factory=list)


class Comparing(MirroredDrafter):
    """Drafts anew, too, where a branch came true."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.both: list[Both] = []

    def _landed(self, anchor: int) -> mx.array | None:
        hidden = super()._landed(anchor)
        if hidden is not None:
            anew = self._drafted(anchor)
            said = [self._said(one[0, : hidden.shape[1]]) for one in (hidden, anew)]
            self.both.append(Both(self.length + 1, *said))
        return hidden

    def _said(self, rows: mx.array) -> list[int]:
        logits, ids = self._head(rows * self._draft.config.output_multiplier, None)
        places = mx.argmax(logits, axis=-1)
        return (places if ids is None else ids[places]).tolist()


def right(said: list[int], text: list[int]) -> int:
    pairs = enumerate(zip(said, text, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(said), len(text)))


def measure(pair, texts: list[tuple[list[int], list[int]]], count: int, label: str) -> Found:
    found = Found()
    for number, (prompt, answer) in enumerate(texts, 1):
        print(f"{label}, {count} branches: {number}/{len(texts)}   ", end="\r", file=sys.stderr)
        drafter = Comparing(pair.draft.placed, pair.target, policy=Most(count))
        session = Session(
            Target(pair.target, drafter.taps), [drafter], GreedyAcceptance(),
            FixedLength(drafter.longest),
        )  # fmt: skip
        session.prefill(prompt)
        for _ in session.stream(len(answer), until(frozenset())):
            pass
        text = [*prompt, *answer]
        found.calls += drafter.policy.launched
        found.hits += drafter.policy.hits
        for both in drafter.both:
            found.masks.append(len(both.branch))
            found.branch.append(right(both.branch, text[both.place :]))
            found.anew.append(right(both.anew, text[both.place :]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafts", nargs="+", help="NAME=DRAFT:PROGRAMS")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--per-kind", type=int, default=1)
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.png as well")
    settings = parser.parse_args()
    print("\n".join(f"{label}: {value}" for label, value in environment.describe().items()))
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    results: dict[str, dict[int, Found]] = {}
    texts: list[tuple[list[int], list[int]]] = []
    for named in settings.drafts:
        name, _, rest = named.partition("=")
        draft, _, programs = rest.rpartition(":")
        pair, tokenizer = mirror_sd.load(
            "demo", None if draft == "demo" else draft, programs=programs, device="emulator"
        )
        if not texts:
            for request in prompts.builtin(settings.per_kind):
                prompt = request.encode(tokenizer)
                said = plain.run(pair.target, tokenizer, prompt, settings.tokens).tokens
                texts.append((list(prompt), said))
        for count in COUNTS:
            found = measure(pair, texts, count, name)
            results.setdefault(name, {})[count] = found
            print(f"| {line(name, count, found)} |", flush=True)
            if settings.out is not None:
                write(results, settings.out)


def line(name: str, count: int, found: Found) -> str:
    share = f"{found.hits / found.calls:.3f}" if found.calls else ""
    means = [f"{mean(one):.2f}" if one else "" for one in (found.masks, found.branch, found.anew)]
    return " | ".join([name, str(count), str(found.calls), share, *means])


def write(results: dict[str, dict[int, Found]], out: Path) -> None:
    from matplotlib.figure import Figure

    rows = {name: {n: vars(one) for n, one in found.items()} for name, found in results.items()}
    out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rates, worth = figure.subplots(1, 2)
    for name, found in results.items():
        shares = [one.hits / max(one.calls, 1) for one in found.values()]
        rates.plot(list(found), shares, "o-", label=name)
        kept = [sum(one.branch) / max(sum(one.anew), 1) for one in found.values()]
        worth.plot(list(found), kept, "o-", label=name)
    for panel in (rates, worth):
        panel.set_xscale("log", base=2)
        panel.set(xlabel="branches of a call", xticks=COUNTS, xticklabels=COUNTS)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)
    rates.set(ylim=(0, 1), title="outcomes that were drafted behind")
    worth.set(ylim=(0, None), title="right tokens of a hit, branch over drafted anew")
    figure.savefig(out.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
