"""A compiled draft checked step by step on this machine: what `mirror-sd ane doctor` reports.

On a Mac the device is the Neural Engine, as Core ML allows it; elsewhere the emulator takes its
place, and what only a Mac can tell is named, not guessed. A step that fails does not end the rest:
the report is what a bug report needs.
"""

from __future__ import annotations

import platform
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..ane import lint, placement, reader
from ..ane import plan as plans
from ..ane.shapes import Bucket, aligned
from ..devices.kind import DeviceKind
from ..errors import MirrorError
from ..hosting import place
from ..models.draft_file import fingerprint
from ..models.loading import Pair
from ..programs import compile_pair
from . import markdown, speed_report
from .calibration import calibrate, calibration_requests
from .emulated import Programs, context_rows, hosted
from .emulation import Agreement, compare
from .prompts import builtin
from .recording import Cycle, record
from .speed import Settings, Speed, Way

LEAST = 0.999  # cosine after every layer, at W8A16
NEW, CONTEXT = 32, 512  # widths of the programs that are compiled here
DEPTH = 64


class Verdict(StrEnum):
    """What came of a step."""

    ok = "ok"
    failed = "FAILED"
    skipped = "not checked"


@dataclass(frozen=True)
class Section:
    """A step of the report.

    Attributes:
        title: what was checked.
        verdict: what came of it.
        text: Markdown.
    """

    title: str
    verdict: Verdict
    text: str


class Skip(Exception):
    """A step cannot be done here; the message says why."""


Step = Callable[[], tuple[bool, str]]


class Doctor:
    """Checks a pair.

    Args:
        pair: whose draft is compiled.
        tokenizer: of the target.
        folder: for the programs; what is compiled there already is taken.
        kind: of the device.
        per_kind: prompts of each kind that tensors are compared on.
        tokens: of an answer.
        runs: of each way of decoding.
    """

    def __init__(
        self,
        pair: Pair,
        tokenizer: TokenizerWrapper,
        folder: Path,
        kind: DeviceKind = DeviceKind.auto,
        per_kind: int = 1,
        tokens: int = 32,
        runs: int = 3,
    ):
        self._pair, self._tokenizer, self._folder, self._kind = pair, tokenizer, folder, kind
        self._per_kind, self._tokens, self._runs = per_kind, tokens, runs
        self._cycles: list[Cycle] = []
        mac = platform.system() == "Darwin"
        self.emulates = kind is DeviceKind.emulator or (kind is DeviceKind.auto and not mac)

    def steps(self) -> dict[str, Step]:
        """What is checked, in order."""
        return {
            "The draft as programs": self._programs,
            "Placement by Core ML": self._placement,
            "Emulated programs against the draft in MLX": self._emulated,
            "The device against the emulator": self._device,
            "Decoding": self._decoding,
        }

    def run(self, progress: Callable[[int, int, str], None]) -> Iterator[Section]:
        """Check everything.

        Args:
            progress: is told steps done, steps in all, and what is going on.
        """
        steps = self.steps()
        for done, (title, step) in enumerate(steps.items()):
            progress(done, len(steps), title)
            yield _guarded(title, step)
        progress(len(steps), len(steps), "done")

    def _programs(self) -> tuple[bool, str]:
        if not (self._folder / plans.MANIFEST).exists():
            self._compile()
        assert self._pair.draft is not None
        plan, off, rows = plans.read(self._folder), 0, []
        plan.check_draft(fingerprint(self._pair.draft.name))
        for package in plan.packages(self._folder):
            for name, function in reader.read(package).items():
                levels = [finding.level for finding in lint.lint(function)]
                errors = levels.count(lint.Level.error)
                off += errors
                count = len(lint.Program(function).running)
                warnings = levels.count(lint.Level.warning)
                rows.append([package.stem, name, str(count), str(errors), str(warnings)])
        head = ("part", "function", "operations", "errors", "warnings")
        return not off, f"Weights: {plan.scheme}.\n\n{markdown.table(head, rows)}"

    def _compile(self) -> None:
        assert self._pair.draft is not None
        model = self._pair.draft.model
        cycles = record(self._pair, self._tokenizer, calibration_requests(), 24)
        calibration, _ = calibrate(model, cycles)
        bucket = Bucket(aligned(model.config.block_size), NEW, CONTEXT)
        compile_pair(self._pair, self._folder, [bucket], calibration)

    def _placement(self) -> tuple[bool, str]:
        if platform.system() != "Darwin":
            raise Skip("Core ML decides where operations run: only a Mac can tell")
        plan, counts = plans.read(self._folder), []
        elsewhere = 0
        for package in plan.packages(self._folder):
            for name in reader.read(package):
                found = [one.preferred for one in placement.plan(package, name)]
                shares = ", ".join(f"{found.count(one)} {one}" for one in sorted({*found}))
                counts.append([package.stem, name, shares])
                elsewhere += sum(one != "Neural Engine" for one in found)
        return not elsewhere, markdown.table(("part", "function", "operations"), counts)

    def _emulated(self) -> tuple[bool, str]:
        assert self._pair.draft is not None
        found = compare(Programs(self._folder), self._pair.draft.model, self._recorded())
        rows = [[name, *_figures(one)] for name, one in found.items()]
        good = all(one.cosine >= LEAST for one in found.values())
        table = markdown.table(("after", *_FIGURES), rows)
        return good, f"{len(self._cycles)} blocks; at least {LEAST} is wanted.\n\n{table}"

    def _device(self) -> tuple[bool, str]:
        assert self._pair.draft is not None
        draft = self._pair.draft
        draft.placed = place(draft, self._folder, self._kind)
        programs, found = Programs(self._folder), Agreement()
        times: list[float] = []
        for cycle in self._recorded():
            if cycle.starts:
                emulated = hosted(programs, draft.model)
                device = draft.placed.make_context()[0].hosted
            given = context_rows(programs, draft.model, cycle.features, emulated.length)
            wanted = emulated(emulated.absorb(given), cycle.block)
            got = device(device.absorb(given), cycle.block)
            found.note(np.asarray(got, np.float32), np.asarray(wanted, np.float32))
            times.append(1e3 * sum(end - begin for begin, end in device.busy()))
        table = markdown.table(("", *_FIGURES), [["hidden states", *_figures(found)]])
        late = quantiles(times, n=10)[-1]
        spent = f"A draft took {median(times):.2f} ms (median), {late:.2f} ms (nine in ten)."
        if self.emulates:
            spent += (
                " The device is the emulator, in a process of its own: this shows that programs "
                "and results reach it and come back, and says nothing of a Neural Engine's speed."
            )
        return found.worst >= LEAST, f"{table}\n\n{spent}"

    def _decoding(self) -> tuple[bool, str]:
        if self._pair.draft is None or self._pair.draft.placed is None:
            raise Skip("The device did not load")
        settings = Settings(list(Way), [DEPTH], self._runs, self._tokens)
        results = list(Speed(self._pair, self._tokenizer, settings).run(lambda *_: None))
        failed = self._pair.draft.placed.failed
        table = markdown.table(speed_report.HEAD, [speed_report.describe(r) for r in results])
        if failed:
            table += "\n\nThe device failed in mid-answer; the draft went on in MLX."
        return not failed and not any(result.failed for result in results), table

    def _recorded(self) -> list[Cycle]:
        if not self._cycles:
            requests = builtin(self._per_kind)
            self._cycles = record(self._pair, self._tokenizer, requests, self._tokens)
        return self._cycles


_FIGURES = ("cosine", "worst block's", "largest error", "largest value")


def _figures(one: Agreement) -> list[str]:
    return [f"{one.cosine:.6f}", f"{one.worst:.6f}", f"{one.largest:.3g}", f"{one.scale:.4g}"]


def _guarded(title: str, step: Step) -> Section:
    """A step's section, whatever happens in it."""
    try:
        good, text = step()
    except Skip as reason:
        return Section(title, Verdict.skipped, f"{reason}.")
    except MirrorError as error:
        return Section(title, Verdict.failed, str(error))
    except Exception:
        return Section(title, Verdict.failed, f"```\n{traceback.format_exc().rstrip()}\n```")
    return Section(title, Verdict.ok if good else Verdict.failed, text)


def report(sections: Sequence[Section], facts: dict[str, str]) -> str:
    """Everything as one Markdown file."""
    parts = ["# A compiled draft on this machine", markdown.facts(facts)]
    rows = [[section.title, section.verdict.value] for section in sections]
    parts.append(markdown.table(("step", "verdict"), rows))
    for section in sections:
        parts += [f"## {section.title}: {section.verdict.value}", section.text]
    return "\n\n".join(parts) + "\n"
