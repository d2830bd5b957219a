"""mirror-sd verify: is the text really the target's own, on this machine?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from . import options, view

if TYPE_CHECKING:
    from ..bench.verify import Comparison


def verify(
    model: options.Model = "demo",
    draft: options.Draft = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Text file with one prompt a line, or JSONL. Default: a built-in one per kind."
        ),
    ] = None,
    max_tokens: options.MaxTokens = 64,
    block_size: options.BlockSize = None,
    exact: options.Exact = False,
    report: Annotated[
        Path | None, typer.Option("--json", help="Also write everything to this file.")
    ] = None,
    draft_window: options.DraftWindow = None,
    draft_bits: options.Bits = None,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Decode prompts both ways and compare token by token.

    Exit code 0: identical, numerical ties aside. 1: a difference that rounding does not explain.
    """
    from ..bench.prompts import builtin
    from ..bench.verify import compare
    from ..models.requests import read

    requests = builtin(1) if prompts is None else read(prompts)
    pair, tokenizer = options.load_pair(model, draft, False, dtype, draft_bits)
    results = []
    with view.Loading("Comparing") as progress:
        for number, request in enumerate(requests):
            progress(f"Comparing {number + 1} of {len(requests)}", number / len(requests))
            tokens = request.encode(tokenizer)
            results.append(
                compare(
                    pair,
                    tokenizer,
                    tokens,
                    max_tokens,
                    block_size=block_size,
                    draft_window=draft_window,
                    exact=exact,
                )
            )
    texts = [request.label for request in requests]
    view.out.print(_table(texts, results))
    view.out.print(_summary(results, exact), soft_wrap=True)
    if report:
        _write(report, model, pair.draft.name if pair.draft else None, texts, results, exact)
    if any(result.verdict == "bug" for result in results):
        raise typer.Exit(1)


def _table(texts: list[str], results: list[Comparison]) -> Table:
    table = Table()
    for column in ("prompt", "tokens", "acceptance", "speed over plain", "text"):
        table.add_column(column, justify="left" if column in ("prompt", "text") else "right")
    for text, result in zip(texts, results, strict=True):
        table.add_row(
            text if len(text) <= 40 else text[:39] + "…",
            str(len(result.said)),
            f"{result.statistics.acceptance_length:.2f}",
            f"{result.speedup:.2f}x",
            "identical" if result.divergence is None else str(result.divergence)[4:],
        )
    return table


def _summary(results: list[Comparison], exact: bool) -> str:
    count = {v: sum(r.verdict == v for r in results) for v in ("identical", "tie", "bug")}
    text = (
        f"{count['identical']} of {len(results)} identical, {count['tie']} part at a numerical "
        f"tie, {count['bug']} differ for no such reason"
    )
    if exact:
        rows = sum(r.statistics.redone for r in results)
        spent = sum(r.statistics.redo_seconds for r in results)
        share = spent / max(1e-9, sum(r.statistics.seconds for r in results))
        text += f"; --exact ran {rows} rows again, {share:.1%} of the time"
    elif count["tie"]:
        text += "; --exact decides ties as plain decoding does"
    return text


def _write(
    file: Path,
    model: str,
    draft: str | None,
    texts: list[str],
    results: list[Comparison],
    exact: bool,
) -> None:
    from ..bench.environment import describe
    from ..errors import MirrorError

    content: dict[str, Any] = {
        "target": model,
        "draft": draft,
        "exact": exact,
        "environment": describe(),
        "prompts": [
            {"prompt": text, **result.as_dict()}
            for text, result in zip(texts, results, strict=True)
        ],
    }
    try:
        file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise MirrorError(f"cannot write {file}: {error.strerror}") from error
