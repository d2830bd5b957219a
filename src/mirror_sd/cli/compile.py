"""mirror-sd compile: a draft as programs for the Neural Engine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from . import options, view

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..ane.calibration import Calibration
    from ..ane.plan import Plan
    from ..models.loading import Pair
    from ..models.requests import Request

NEW_COLUMNS = 32  # committed tokens that one call can take in


class Scheme(StrEnum):
    """How weights are stored."""

    int8 = "int8"
    lut6 = "lut6"
    lut4 = "lut4"
    fp16 = "fp16"


class HeadScheme(StrEnum):
    """How a head's weights are stored."""

    int8 = "int8"
    lut6 = "lut6"


def compile_(
    out: Annotated[Path, typer.Option(help="Folder for the packages and their manifest.")],
    model: options.Model = "demo",
    draft: options.Draft = None,
    weights: Annotated[
        Scheme,
        typer.Option(
            help="[bold]int8[/] with a scale per channel; [bold]lut6[/] and [bold]lut4[/], "
            "palettes of 6 and 4 bits; [bold]fp16[/]."
        ),
    ] = Scheme.int8,
    context: Annotated[
        list[int] | None,
        typer.Option(
            help="Width of the cached context: 512, 1024, 2048 or 4096. Repeatable: one function "
            "each, which share their weights. Default: 512 and 2048."
        ),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Positions of a block. Default: the draft's, up to 32."),
    ] = None,
    new: Annotated[
        int,
        typer.Option(
            min=0,
            max=64,
            help="New context columns that a call takes in, as features. 0: none; the target's "
            "device computes their keys and values while it verifies, and the draft's call is "
            "narrower.",
        ),
    ] = NEW_COLUMNS,
    head: Annotated[
        HeadScheme | None,
        typer.Option(help="Compile the target's head too, with weights stored so."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Tokens that each shard of the head gives.")] = 16,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Text or JSONL file to calibrate on. Default: a built-in prompt of each kind."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer in calibration.")] = 24,
    limit: Annotated[int, typer.Option(min=1, help="MB of weights that a program may have.")] = 250,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Compile a draft into Core ML packages for the Neural Engine. Works on any machine.

    Needs coremltools: pip install 'mirror-sd[ane]'.
    """
    from ..ane.head import divide
    from ..ane.shapes import Bucket, aligned
    from ..bench.calibration import calibration_requests
    from ..models.requests import read
    from ..programs import compile_pair, head_rows, shape_of

    pair, tokenizer = options.load_pair(model, draft, False, dtype, None)
    assert pair.draft is not None
    found = pair.draft.model
    shape = shape_of(found)
    width = block or aligned(found.config.block_size)
    buckets = [Bucket(width, new, columns) for columns in sorted(set(context or (512, 2048)))]
    divided = None
    if head is not None:
        vocabulary = pair.target.vocab_size
        how = divide(shape.hidden, vocabulary, width, top, head.value, limit * 1e6)
        divided = how, head_rows(pair.target)
    requests = calibration_requests() if prompts is None else read(prompts)
    calibration = _calibrate(pair, tokenizer, requests, tokens)
    with view.Steps("Compiling") as bar:
        plan = compile_pair(
            pair, out, buckets, calibration, weights.value, limit * 1e6, divided, bar
        )
    view.out.print(_summary(plan, out))
    view.out.print(_errors(plan))
    view.show_note(f"prove it with: mirror-sd ane emulate {out} --model {model}")


def _calibrate(
    pair: Pair, tokenizer: TokenizerWrapper, requests: list[Request], tokens: int
) -> Calibration:
    from ..bench.calibration import calibrate
    from ..bench.recording import record

    cycles = []
    with view.Steps("Calibrating") as bar:
        for number, request in enumerate(requests, 1):
            cycles += record(pair, tokenizer, [request], tokens)
            bar(number, len(requests), f"{len(cycles)} blocks")
    assert pair.draft is not None
    calibration, peaks = calibrate(pair.draft.model, cycles)
    sizes = ", ".join(f"{name} {peak:g}" for name, peak in peaks.items())
    view.show_note(f"largest values seen: {sizes}")
    return calibration


def _summary(plan: Plan, folder: Path) -> Table:
    from ..ane import lint, reader

    table = Table(title=f"{folder}: {plan.scheme}, {len(plan.parts)} program(s)")
    for column in ("part", "function", "operations", "weights", "errors", "warnings"):
        table.add_column(column, justify="left" if column in ("part", "function") else "right")
    off = 0
    for package in plan.packages(folder):
        for name, function in reader.read(package).items():
            levels = [finding.level for finding in lint.lint(function)]
            off += levels.count(lint.Level.error)
            table.add_row(
                package.stem,
                name,
                str(len(lint.Program(function).running)),
                f"{function.weight_bytes / 1e6:.1f} MB",
                str(levels.count(lint.Level.error)),
                str(levels.count(lint.Level.warning)),
            )
    table.caption = (
        f"expected off the Neural Engine: {off} operations, see mirror-sd ane lint"
        if off
        else "expected on the Neural Engine: all of it, by the rules of mirror-sd ane lint"
    )
    return table


def _errors(plan: Plan) -> Table:
    """Relative errors of stored weights, a row for each layer."""
    columns = ("q", "k", "v", "o", "gate", "up", "down")
    table = Table(title="Error of stored weights, relative to the draft's (root mean square)")
    table.add_column("layer")
    for column in columns:
        table.add_column(column, justify="right")
    for layer in range(plan.shape.layers):
        found = {
            name.rsplit(".", 1)[-1].removesuffix("_proj"): value
            for name, value in plan.errors.items()
            if name.startswith(f"layers.{layer}.")
        }
        table.add_row(str(layer), *(f"{found[column]:.2%}" for column in columns))
    if "fc" in plan.errors:
        table.caption = f"fc: {plan.errors['fc']:.2%}"
    return table
