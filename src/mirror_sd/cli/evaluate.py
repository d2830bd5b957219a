"""mirror-sd evaluate: how good is a draft, and does it pay here?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, view

if TYPE_CHECKING:
    from ..models.requests import Request

REPORT, PLOT = "evaluation.md", "evaluation.png"


def evaluate(
    model: options.Model = "demo",
    draft: options.Draft = None,
    prompts: Annotated[
        str,
        typer.Option(
            help="[bold]builtin[/] (six kinds), [bold]humaneval[/], a text file with one prompt "
            "a line, or JSONL."
        ),
    ] = "builtin",
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for {REPORT} and {PLOT}. Default: print only.")
    ] = None,
    max_tokens: options.MaxTokens = 64,
    block_size: Annotated[
        int | None, typer.Option(min=2, help="Anchor and drafted tokens. Default: as trained.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many prompts of each kind at most.")
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Compare with plain decoding as well.")
    ] = True,
    draft_bits: options.Bits = None,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Measure a draft: acceptance by kind and position, calibration, speed."""
    from ..bench.environment import describe
    from ..bench.evaluate import Evaluation
    from ..bench.evaluation_report import markdown, plot

    requests = _requests(prompts, limit)
    pair, tokenizer = options.load_pair(model, draft, False, dtype, draft_bits)
    assert pair.draft is not None
    evaluation = Evaluation(pair, tokenizer, max_tokens, block_size, speed)
    answers = []
    with view.Steps("Answering prompts") as bar:
        for number, request in enumerate(requests, 1):
            answers.append(evaluation.answer(request))
            mean = sum(a.tokens for a in answers) / sum(a.passes for a in answers)
            bar(number, len(requests), f"acceptance {mean:.2f}")
    facts = {
        "target": model,
        "draft": pair.draft.name,
        "prompts": f"{len(requests)} ({prompts}), at most {max_tokens} tokens each, greedy",
        "block size": str(evaluation.block_size),
        **describe(),
    }
    view.out.print(markdown(answers, facts, None), soft_wrap=True)
    if out is not None:
        options.write(out / REPORT, markdown(answers, facts, PLOT))
        plot(answers, out / PLOT)
        view.show_note(f"report: {out / REPORT}, plot: {out / PLOT}")


def _requests(source: str, limit: int | None) -> list[Request]:
    from ..bench.prompts import builtin, humaneval
    from ..models.requests import read

    named = {"builtin": builtin, "humaneval": humaneval}
    found = named[source]() if source in named else read(Path(source))
    kept: list[Request] = []
    for request in found:
        if limit is None or sum(k.kind == request.kind for k in kept) < limit:
            kept.append(request)
    return kept
