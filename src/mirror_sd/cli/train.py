"""mirror-sd train: a draft for a target of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import options, view
from . import train_options as opt

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.loading import Pair
    from ..training.run import Run
    from ..training.trainer import Evaluate

DATA = "data"
BUILTIN = "builtin"
LONGEST_PROMPT = 2048
COUNT, TOKENS, LAYERS = 20_000, 256, 5


def train(
    out: opt.Out,
    target: opt.Target = "demo",
    prompts: opt.Prompts = None,
    count: opt.Count = None,
    data: opt.Data = None,
    max_tokens: opt.MaxTokens = None,
    only_data: opt.OnlyData = False,
    store_features: opt.StoreFeatures = False,
    init_from: opt.InitFrom = None,
    layers: opt.Layers = None,
    block_size: opt.BlockSize = None,
    mask_token_id: opt.MaskTokenId = None,
    steps: opt.Steps = 3000,
    batch: opt.Batch = 16,
    anchors: opt.Anchors = 16,
    learning_rate: opt.LearningRate = 6e-4,
    accumulate: opt.Accumulate = 1,
    precision: opt.PrecisionOption = opt.Precision.float32,
    checkpoint_every: opt.CheckpointEvery = 100,
    evaluate_every: opt.EvaluateEvery = 500,
    evaluate_prompts: opt.EvaluatePrompts = 16,
    patience: opt.Patience = 0,
    seed: opt.Seed = 0,
    negatives: opt.Negatives = 4096,
    visible_prefix: opt.VisiblePrefix = 0.0,
    feature_lag: opt.FeatureLag = 0.0,
    tap_dropout: opt.TapDropout = 0.0,
    dpace: opt.Dpace = False,
    distill: opt.Distill = 0.0,
    export_bits: opt.ExportBits = None,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Train a draft on the target's own answers."""
    from ..training.batches import Sampling
    from ..training.objective import Objective
    from ..training.run import Run
    from ..training.start import Start
    from ..training.trainer import Settings

    _check_sources(prompts, data, count, max_tokens, only_data)
    _check_draft(init_from, layers, mask_token_id, patience, evaluate_every)
    pair, tokenizer = options.load_pair(target, None, True, dtype, None)
    if prompts is not None:
        data = out / DATA
        _answer(pair, tokenizer, prompts, count or COUNT, data, max_tokens or TOKENS, seed)
        if only_data:
            return
    assert data is not None
    settings = Settings(
        steps=steps,
        learning_rate=learning_rate,
        accumulate=accumulate,
        dtype=precision.value,
        negatives=negatives,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
        patience=patience,
        objective=Objective(dpace=dpace, distill=distill),
        seed=seed,
    )
    sampling = Sampling(
        batch=batch,
        anchors=anchors,
        visible_prefix=visible_prefix,
        feature_lag=feature_lag,
        tap_dropout=tap_dropout,
        seed=seed,
    )
    start = Start(init_from, block_size, layers or LAYERS, mask_token_id=mask_token_id)
    evaluate = _evaluate(pair, data, evaluate_prompts) if evaluate_every else None
    with view.Steps("Reading features") as bar:
        run = Run(
            pair.target, tokenizer, data, out, start, sampling, settings,
            store_features, evaluate, lambda done, of: bar(done, of, ""),
        )  # fmt: skip
    _train(run, steps)
    run.export(int(export_bits.value) if export_bits else None)
    _finish(run, out)


def _check_sources(
    prompts: str | None,
    data: Path | None,
    count: int | None,
    max_tokens: int | None,
    only_data: bool,
) -> None:
    """Refuse options on data that contradict each other or would do nothing."""
    import mlx.core as mx

    from ..errors import PromptError

    if (prompts is None) == (data is None):
        raise PromptError("give either --prompts, for the target to answer, or --data")
    if data is not None and (only_data or count or max_tokens):
        raise PromptError(
            "--only-data, --count and --max-tokens are about answering --prompts; with --data "
            "that is done"
        )
    if count and prompts != BUILTIN:
        raise PromptError("--count is for --prompts builtin; a file is answered whole")
    if prompts is not None and mx.distributed.init().size() > 1:
        raise PromptError(
            "several machines must learn from the same data: answer the prompts on one with "
            "--only-data, copy the folder to all, and give it as --data"
        )


def _check_draft(
    init_from: str | None,
    layers: int | None,
    mask_token_id: int | None,
    patience: int,
    evaluate_every: int,
) -> None:
    """Refuse options on the draft that would do nothing."""
    from ..errors import PromptError

    if init_from is not None and (layers is not None or mask_token_id is not None):
        raise PromptError("--layers and --mask-token-id are for a new draft, not for --init-from")
    if patience and not evaluate_every:
        raise PromptError("--patience counts evaluations: it needs --evaluate-every")


def _answer(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    source: str,
    count: int,
    folder: Path,
    max_tokens: int,
    seed: int,
) -> None:
    from ..errors import PromptError
    from ..models.requests import read
    from ..training import generate
    from ..training.prompts import builtin

    requests = builtin(count, seed) if source == BUILTIN else read(Path(source))
    encoded = [generate.Prompt(r.encode(tokenizer), r.kind) for r in requests]
    chosen = [prompt for prompt in encoded if 0 < len(prompt.ids) <= LONGEST_PROMPT]
    if not chosen:
        raise PromptError(f"{source} holds no prompt of at most {LONGEST_PROMPT} tokens")
    if len(chosen) < len(encoded):
        view.show_note(
            f"{len(encoded) - len(chosen)} prompts are empty or longer than {LONGEST_PROMPT} "
            "tokens and were left out"
        )
    plan = generate.Plan(max_tokens=max_tokens, seed=seed)
    eos = sorted(pair.eos_token_ids)
    with view.Steps("Answering prompts") as bar:
        for done in generate.answer_all(pair.target, eos, folder, chosen, plan):
            bar(done.prompts, done.of, f"{done.tokens} tokens")


def _evaluate(pair: Pair, data: Path, count: int) -> Evaluate | None:
    """Held-out acceptance by decoding; None, with a note, where no prompt is held out."""
    from ..bench.acceptance import HeldOut
    from ..errors import CheckpointError
    from ..training.data import read

    try:
        texts = read(data, "held", pair.target.vocab_size)
    except CheckpointError as error:
        view.show_note(f"no evaluation while training: {error}")
        return None
    prompts = [text.ids[: text.prompt].tolist() for text in texts[:count]]
    return HeldOut(pair.target, pair.eos_token_ids, prompts)


def _train(run: Run, steps: int) -> None:
    loss = acceptance = None
    held = run.trainer.best.value
    with view.Steps("Training") as bar:
        bar(run.trainer.step, steps, "")
        for report in run.train():
            loss = _smooth(loss, report.loss)
            acceptance = _smooth(acceptance, report.acceptance)
            held = report.held_out or held
            text = f"loss {loss:.3f}  acceptance {acceptance:.2f}  {report.predicted:.0f} tokens/s"
            bar(report.step, steps, text + (f"  held out {held:.2f}" if held else ""))


def _smooth(known: float | None, value: float) -> float:
    return value if known is None else 0.95 * known + 0.05 * value


def _finish(run: Run, out: Path) -> None:
    from ..training.curve import plot
    from ..training.run import LOG, read_log

    if not run.trainer.leads:
        return
    plot(read_log(out / LOG), out / "training.png")
    best = run.trainer.best
    if best.value is not None:
        view.out.print(f"held-out acceptance length {best.value:.2f}, after step {best.step}")
    view.out.print(f"draft: {out}", soft_wrap=True)
    view.out.print(f"curve: {out / 'training.png'}", soft_wrap=True)
