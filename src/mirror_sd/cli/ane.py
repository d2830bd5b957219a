"""mirror-sd ane: look into compiled drafts."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..ane.lint import Family
from . import options, view

if TYPE_CHECKING:
    from ..ane.placement import Placement
    from ..bench.emulated import Programs
    from ..bench.emulation import Agreement
    from ..models.loading import Pair

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Check a compiled draft, without or with a Neural Engine.",
)
Folder = Annotated[Path, typer.Argument(help="A compiled draft, or a Core ML package.")]
Report = Annotated[Path | None, typer.Option("--json", help="Also write everything to this file.")]
Context = Annotated[
    int | None, typer.Option(help="Which cached width to run. Default: the smallest.")
]


class HardwareChoice(StrEnum):
    """Arithmetic to emulate, see docs/ane.md."""

    exact = "exact"
    ideal = "ideal"
    narrow = "narrow"
    m1 = "m1"
    m5 = "m5"


@app.command()
def lint(
    folder: Folder,
    family: Annotated[
        Family, typer.Option(help="Neural Engine: [bold]a16[/] is A16, M4 and later.")
    ] = Family.before_a16,
    report: Report = None,
) -> None:
    """Name what would keep programs off the Neural Engine. Exit code 1: there are errors."""
    from ..ane import lint as linter
    from ..ane import reader

    rows = [
        {"package": package.name, "function": name, **vars(finding)}
        for package in _packages(folder)
        for name, function in reader.read(package).items()
        for finding in linter.lint(function, family)
    ]
    view.out.print(_findings(rows))
    _write(report, rows)
    if any(row["level"] is linter.Level.error for row in rows):
        raise typer.Exit(1)


@app.command()
def emulate(
    folder: Annotated[Path, typer.Argument(help="A compiled draft.")],
    model: options.Model = "demo",
    draft: options.Draft = None,
    context: Context = None,
    hardware: Annotated[
        HardwareChoice, typer.Option(help="How the Neural Engine is taken to compute.")
    ] = HardwareChoice.ideal,
    per_kind: Annotated[
        int, typer.Option(min=1, help="Built-in prompts of each of the six kinds.")
    ] = 2,
    max_tokens: options.MaxTokens = 24,
    acceptance: Annotated[
        bool, typer.Option("--acceptance/--no-acceptance", help="Also decode with both.")
    ] = True,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="List the tensors with the largest values.")
    ] = False,
    report: Report = None,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Run a compiled draft in the emulator beside the MLX draft, on real text."""
    from ..ane.hardware import PRESETS
    from ..bench.emulated import Programs
    from ..bench.emulation import agreement_of_head, compare
    from ..bench.prompts import builtin
    from ..bench.recording import record
    from ..models.draft_file import fingerprint

    pair, tokenizer = options.load_pair(model, draft, False, dtype, None)
    assert pair.draft is not None
    programs = Programs(folder, context, PRESETS[hardware.value], ranges)
    programs.plan.check_draft(fingerprint(pair.draft.name))
    requests = builtin(per_kind)
    with view.Loading("Recording what the draft is given"):
        cycles = record(pair, tokenizer, requests, max_tokens)
    with view.Steps("Emulating") as bar:
        found = compare(programs, pair.draft.model, cycles, lambda n, of: bar(n, of, ""))
    view.out.print(_agreement(found, len(cycles), f"{programs.plan.scheme}, {hardware.value}"))
    result: dict[str, Any] = {
        "blocks": len(cycles),
        "prompts": len(requests),
        "layers": {
            name: {"cosine": a.cosine, "worst": a.worst, "largest": a.largest, "scale": a.scale}
            for name, a in found.items()
        },
    }
    if programs.heads:
        same = agreement_of_head(programs, pair.target, pair.draft.model, cycles)
        view.out.print(f"head: the same likeliest token in {same:.1%} of positions")
        result["head"] = same
    if ranges:
        view.out.print(_ranges(programs))
    if acceptance:
        prompts = [request.encode(tokenizer) for request in requests]
        result["acceptance"] = _acceptance(pair, programs, prompts, max_tokens)
    _write(report, result)


@app.command()
def placement(folder: Folder, context: Context = None, report: Report = None) -> None:
    """Show where macOS would run each operation. Needs a Mac."""
    from ..ane import placement as planner
    from ..ane import reader

    rows = []
    for package in _packages(folder):
        functions = reader.read(package)
        wanted = [n for n in functions if context is None or n.endswith((f"c{context}", "head"))]
        for name in wanted:
            found = planner.plan(package, name)
            view.out.print(_placements(found, f"{package.name} {name}"))
            rows += [{"package": package.name, "function": name, **vars(one)} for one in found]
    _write(report, rows)


@app.command()
def doctor(
    model: options.Model = "demo",
    draft: options.Draft = None,
    programs: Annotated[
        Path | None, typer.Option(help="A compiled draft. Default: it is compiled for this.")
    ] = None,
    device: options.Device = options.DeviceKind.auto,
    per_kind: Annotated[
        int, typer.Option(min=1, help="Built-in prompts of each of the six kinds.")
    ] = 1,
    max_tokens: options.MaxTokens = 32,
    runs: Annotated[int, typer.Option(min=1, help="Answers of each way of decoding.")] = 3,
    out: Annotated[Path, typer.Option(help="Report, in Markdown.")] = Path("ane-doctor.md"),
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Check a compiled draft on this machine, step by step. Exit code 1: a step failed.

    On a Mac: compiles, asks Core ML for its placement, compares the Neural Engine's results with
    the emulator's, times its calls, and decodes mirrored against plain. Elsewhere the emulator
    takes the device's place, and what only a Mac can tell is named.
    """
    from ..bench import doctor as doctors
    from ..bench.environment import describe
    from ..errors import PromptError
    from ..hosting import check_kind

    check_kind(device)
    pair, tokenizer = options.load_pair(model, draft, False, dtype, None)
    if pair.draft is None:
        raise PromptError(f"no draft is known for {model}: name one with --draft")
    with tempfile.TemporaryDirectory(prefix="mirror-sd-") as scratch:
        folder = programs or Path(scratch) / "programs"
        doctor = doctors.Doctor(pair, tokenizer, folder, device, per_kind, max_tokens, runs)
        if doctor.emulates:
            view.show_note(
                "no Neural Engine is asked here: the emulator takes its place. Placement, its "
                "results against the emulator's, and its speed need a Mac"
            )
        with view.Steps("Checking") as bar:
            sections = list(doctor.run(bar))
    asked = "emulator" if doctor.emulates else device.value
    facts = {"target": model, "draft": pair.draft.name, "draft's device": asked, **describe()}
    text = doctors.report(sections, facts)
    view.out.print(text, soft_wrap=True, markup=False)
    options.write(out, text)
    view.show_note(f"report: {out}")
    if any(section.verdict is doctors.Verdict.failed for section in sections):
        raise typer.Exit(1)


def _packages(folder: Path) -> list[Path]:
    from ..ane import plan as plans

    if (folder / "Manifest.json").exists():  # a single package
        return [folder]
    return plans.read(folder).packages(folder)


def _write(file: Path | None, content: Any) -> None:
    if file is not None:
        options.write(file, json.dumps(content, indent=1) + "\n")


def _findings(rows: list[dict[str, Any]]) -> Table:
    """One line for each rule and function, with the first place and how many more."""
    from ..ane.rules import RULES

    rules = {rule.id: rule for rule in RULES}
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["package"], row["function"], row["rule"]), []).append(row)
    table = Table(title="Findings")
    for column in ("level", "rule", "where", "what", "source"):
        table.add_column(column, overflow="fold")
    for (package, function, rule), found in grouped.items():
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        table.add_row(
            found[0]["level"].value,
            rule,
            f"{package} {function}: {found[0]['where']}{more}",
            f"{found[0]['what']}. {rules[rule].text}",
            rules[rule].source,
        )
    return table


def _placements(found: Sequence[Placement], title: str) -> Table:
    """Operations of one type that go to one device, in a row."""
    groups: dict[tuple[str, str], list[Placement]] = {}
    for one in found:
        groups.setdefault((one.preferred, one.type), []).append(one)
    table = Table(title=title)
    for column in ("device", "operation", "count", "share of the cost", "for example"):
        table.add_column(column)
    for (device, kind), members in sorted(groups.items()):
        cost = sum(one.cost or 0.0 for one in members)
        table.add_row(device, kind, str(len(members)), f"{cost:.1%}", members[0].operation)
    shares = Counter(one.preferred for one in found)
    table.caption = ", ".join(f"{place}: {count}" for place, count in shares.most_common())
    return table


def _agreement(found: dict[str, Agreement], blocks: int, label: str) -> Table:
    table = Table(title=f"Emulated against MLX, {blocks} blocks ({label})")
    table.add_column("after")
    for column in ("cosine", "worst block's", "largest error", "largest value"):
        table.add_column(column, justify="right")
    for name, one in found.items():
        table.add_row(
            name, f"{one.cosine:.6f}", f"{one.worst:.6f}", f"{one.largest:.3g}", f"{one.scale:.4g}"
        )
    return table


def _ranges(programs: Programs) -> Table:
    table = Table(title="Largest values (fp16 ends at 65504)")
    table.add_column("tensor")
    for column in ("largest", "smallest", "not finite"):
        table.add_column(column, justify="right")
    ranked = sorted(programs.ranges.items(), key=lambda item: -item[1].largest)
    for name, one in ranked[:20]:
        table.add_row(name, f"{one.largest:.4g}", f"{one.smallest:.2g}", str(one.infinite))
    return table


def _acceptance(
    pair: Pair, programs: Programs, prompts: list[list[int]], tokens: int
) -> dict[str, float]:
    from ..bench.acceptance import HeldOut
    from ..bench.emulated import EmulatedDraft

    assert pair.draft is not None
    held_out = HeldOut(pair.target, pair.eos_token_ids, prompts, tokens)
    with view.Loading("Decoding with both drafts"):
        found = {
            "mlx": held_out(pair.draft.model),
            "emulated": held_out(EmulatedDraft(programs, pair.draft.model)),
        }
    change = found["emulated"] / found["mlx"] - 1
    view.out.print(
        f"acceptance length: MLX {found['mlx']:.3f}, emulated {found['emulated']:.3f} "
        f"({change:+.1%})"
    )
    return found
