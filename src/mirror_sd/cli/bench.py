"""mirror-sd bench: how fast is a pair here, and does the text stay the same?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import PromptError
from . import options, view

if TYPE_CHECKING:
    from ..bench.speed import Result, Settings, Way
    from ..models.loading import Pair

REPORT, DATA, PLOT = "bench.md", "bench.json", "bench.png"


def bench(
    model: options.Model = "demo",
    draft: options.Draft = None,
    programs: options.Programs = None,
    device: options.Device = options.DeviceKind.auto,
    q8: Annotated[bool, typer.Option("--q8", help="Quantise the draft to 8 bits in MLX.")] = False,
    skip_ar: Annotated[
        bool,
        typer.Option("--skip-ar", help="Leave out plain decoding, and with it the comparison."),
    ] = False,
    skip_gpu: Annotated[
        bool, typer.Option("--skip-gpu", help="Leave out the draft in MLX, beside the target.")
    ] = False,
    ctx_depths: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Tokens of context. Repeatable. Default: 64, 2048 and 4096."),
    ] = None,
    more_depths: Annotated[
        list[int] | None, typer.Argument(help="More depths: --ctx-depths 64 2048 4096 works, too.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Answers of each way at each depth.")] = 3,
    max_tokens: options.MaxTokens = 64,
    block_size: Annotated[
        int | None,
        typer.Option(min=2, help="Anchor and drafted tokens per cycle. Default: adapted."),
    ] = None,
    temperature: options.Temperature = 0.0,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for {REPORT}, {DATA} and {PLOT}.")
    ] = None,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Time a pair against plain decoding, by depth of context. Exit code 1: the text differs."""
    from ..bench.speed import Settings, Speed

    if more_depths and not ctx_depths:
        raise PromptError(f"{more_depths[0]} is no option: depths come after --ctx-depths")
    ways = _ways(skip_ar, skip_gpu, programs is not None or device is options.DeviceKind.mlx)
    depths = [*(ctx_depths or (64, 2048, 4096)), *(more_depths or ())]
    settings = Settings(ways, depths, runs, max_tokens, block_size, temperature)
    bits = options.DraftBits.eight if q8 else None
    pair, tokenizer = options.load_pair(model, draft, False, dtype, bits, programs, device)
    if pair.draft is None:
        raise PromptError(f"no draft is known for {model}: name one with --draft")
    measured = Speed(pair, tokenizer, settings)
    results: list[Result] = []
    with view.Steps("Measuring") as bar:
        results += measured.run(bar)
    _report(results, _facts(pair, settings, programs, device, q8), out)
    if any(result.failed for result in results):
        raise typer.Exit(1)


def _ways(skip_ar: bool, skip_gpu: bool, placed: bool) -> list[Way]:
    from ..bench.speed import Way

    ways = [] if skip_ar else [Way.plain]
    ways += [] if skip_gpu else [Way.mlx]
    if placed:
        return [*ways, Way.turns, Way.mirrored]
    if skip_gpu:
        raise PromptError(
            "--skip-gpu leaves the draft's device alone, which needs --programs (make them with "
            "mirror-sd compile) or --device mlx"
        )
    view.show_note(
        "without --programs the draft runs in MLX, beside the target; mirror-sd compile makes "
        "programs for a device of its own, and --device mlx needs none"
    )
    return ways


def _facts(
    pair: Pair, settings: Settings, programs: Path | None, device: options.DeviceKind, q8: bool
) -> dict[str, str]:
    from ..bench.environment import describe
    from ..models.loading import fingerprints

    assert pair.draft is not None
    prints = fingerprints(pair)
    size = "adapted" if settings.block_size is None else str(settings.block_size)
    drawn = f"temperature {settings.temperature:g}" if settings.temperature else "greedy"
    quantised = ", quantised to 8 bits in MLX" if q8 else ""
    return {
        "target": f"{pair.target.name} (sha256 {prints['target'][:16]})",
        "draft": f"{pair.draft.name} (sha256 {prints['draft'][:16]}){quantised}",
        "draft's device": _where(programs, device),
        "answers": f"{settings.runs} of {settings.max_tokens} tokens at most for each way and "
        f"depth, after one that is not counted; {drawn}; block size {size}",
        **describe(),
    }


def _where(programs: Path | None, device: options.DeviceKind) -> str:
    if programs is not None:
        return f"{device.value}, {programs}"
    return "mlx, on the CPU" if device is options.DeviceKind.mlx else "none"


def _report(results: list[Result], facts: dict[str, str], out: Path | None) -> None:
    from ..bench import speed_report

    view.out.print(speed_report.text(results, facts, None), soft_wrap=True)
    if out is None:
        return
    options.write(out / REPORT, speed_report.text(results, facts, PLOT))
    options.write(out / DATA, json.dumps(speed_report.as_dict(results, facts), indent=1) + "\n")
    speed_report.plot(results, out / PLOT)
    view.show_note(f"report: {out / REPORT}, data: {out / DATA}, plot: {out / PLOT}")
