"""A draft trained on a tiny target's answers, killed at any moment, and decoded with."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

import mlx.core as mx
import pytest

from mirror_sd.bench.acceptance import HeldOut
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.errors import CheckpointError
from mirror_sd.models.target import Target
from mirror_sd.training import checkpoint
from mirror_sd.training.objective import Objective
from mirror_sd.training.trainer import Settings, learning_rate
from tests import tiny
from tests.training import pair
from tests.training.pair import SAMPLING, SHORT, TARGET, same, trainer, weights

PLAIN = dataclasses.replace(SAMPLING, visible_prefix=0.0, feature_lag=0.0, tap_dropout=0.0)


def said_with(draft, text) -> tuple[list[int], Session]:
    drafter = DFlashDrafter(draft, TARGET)
    session = Session(
        Target(TARGET, drafter.taps), [drafter], GreedyAcceptance(), FixedLength(pair.BLOCK - 1)
    )
    session.prefill(text.ids[: text.prompt].tolist())
    cycles = session.stream(len(text) - text.prompt, until([tiny.EOS]))
    return [token for cycle in cycles for token in cycle.tokens], session


@pytest.mark.parametrize("objective", [Objective(), Objective(dpace=True, distill=0.3)])
def test_a_trained_draft_is_right_and_decoding_with_it_is_lossless(texts, tmp_path, objective):
    settings = Settings(
        steps=300, learning_rate=3e-3, negatives=0, checkpoint_every=300, objective=objective
    )
    running = trainer(texts, tmp_path, settings, PLAIN)
    reports = list(running.run())
    assert reports[-1].loss < reports[0].loss / 2
    assert reports[0].acceptance < 1.5
    assert reports[-1].acceptance > 3
    passes = tokens = 0
    for text in texts[:6]:
        said, session = said_with(running.draft, text)
        assert said == text.ids[text.prompt :].tolist()
        passes += session.statistics.passes
        tokens += session.statistics.tokens
    assert tokens / passes > 3


def test_a_run_that_is_stopped_ends_with_the_same_bits(texts, tmp_path):
    whole = trainer(texts, tmp_path / "whole")
    list(whole.run())
    for stop in (1, 3, 5):  # between states
        folder = tmp_path / str(stop)
        for report in trainer(texts, folder).run():
            if report.step == stop:
                break
        again = trainer(texts, folder)
        assert again.step == stop // 2 * 2
        list(again.run())
        assert same(weights(whole), weights(again))


def test_a_run_that_is_killed_ends_with_the_same_bits(texts, tmp_path):
    """SIGKILL at arbitrary moments: in a step, while a state is written."""
    whole = trainer(texts, tmp_path / "whole", dataclasses.replace(SHORT, steps=40))
    list(whole.run())
    program = (
        "import sys, dataclasses, pathlib\n"
        "from tests.training import pair\n"
        "texts = pair.answers(pathlib.Path(sys.argv[1]))\n"
        "run = pair.trainer(texts, pathlib.Path(sys.argv[2]),"
        " dataclasses.replace(pair.SHORT, steps=40))\n"
        "print('ready', flush=True)\n"
        "for report in run.run(): print(report.step, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data"), str(tmp_path / "killed")]
    for after in ("7", "18", "29"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == after:
                    time.sleep(0.003)
                    os.kill(process.pid, signal.SIGKILL)
                    break
    again = trainer(texts, tmp_path / "killed", dataclasses.replace(SHORT, steps=40))
    assert 0 < again.step < 40
    list(again.run())
    assert same(weights(whole), weights(again))


def test_a_state_that_was_being_written_does_not_count(texts, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    running = trainer(texts, tmp_path)
    steps = running.run()
    next(steps)
    next(steps)
    next(steps)
    monkeypatch.setattr("pathlib.Path.rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    monkeypatch.undo()
    again = trainer(texts, tmp_path)
    assert again.step == 2
    list(again.run())
    whole = trainer(texts, tmp_path / "whole")
    list(whole.run())
    assert same(weights(whole), weights(again))


def test_another_runs_state_is_refused(texts, tmp_path):
    list(trainer(texts, tmp_path).run())
    with pytest.raises(CheckpointError, match="other settings or data"):
        trainer(texts, tmp_path, dataclasses.replace(SHORT, learning_rate=1e-2))
    with pytest.raises(CheckpointError, match="other settings or data"):
        trainer(texts, tmp_path, data="another")


def test_batches_that_are_accumulated_make_one_step(texts, tmp_path):
    settings = dataclasses.replace(SHORT, steps=1, accumulate=2, negatives=0)
    small = dataclasses.replace(PLAIN, batch=4)
    both = trainer(texts, tmp_path / "both", settings, small)
    report = next(both.run())
    still = dataclasses.replace(settings, steps=2, accumulate=1, learning_rate=0.0)
    single = trainer(texts, tmp_path / "one", still, small)
    losses = [each.loss for each in single.run()]
    assert report.loss == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_bfloat16_passes_keep_float32_weights(texts, tmp_path):
    running = trainer(texts, tmp_path, dataclasses.replace(SHORT, dtype="bfloat16"))
    reports = list(running.run())
    assert all(value.dtype == mx.float32 for value in weights(running).values())
    exact = list(trainer(texts, tmp_path / "exact").run())
    for one, other in zip(reports, exact, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=0.02)
    assert [r.loss for r in reports] != [r.loss for r in exact]


def test_training_stops_when_evaluations_get_no_better_and_the_best_draft_is_kept(texts, tmp_path):
    values = iter([1.5, 2.0, 1.9, 1.8, 9.9])
    seen = []

    def evaluate(draft):
        seen.append(dict(weights(running)))
        return next(values)

    settings = dataclasses.replace(SHORT, steps=50, evaluate_every=3, patience=2)
    running = trainer(texts, tmp_path, settings, evaluate=evaluate)
    reports = list(running.run())
    assert [r.step for r in reports if r.held_out is not None] == [3, 6, 9, 12]
    assert reports[-1].step == 12
    running.use_best()
    assert running.best.step == 6
    assert same(weights(running), seen[1])
    again = trainer(texts, tmp_path, settings, evaluate=evaluate)
    assert list(again.run()) == []  # it knows that it was over


def test_patience_survives_a_stop(texts, tmp_path):
    settings = dataclasses.replace(SHORT, steps=50, evaluate_every=2, patience=3)
    values = [1.0, 3.0, 2.0, 2.5, 1.0]
    first = trainer(texts, tmp_path, settings, evaluate=lambda _: values[first.step // 2 - 1])
    for report in first.run():
        if report.step == 7:
            break
    again = trainer(texts, tmp_path, settings, evaluate=lambda _: values[again.step // 2 - 1])
    assert again.step == 6
    assert list(again.run())[-1].step == 10
    assert again.best.value == 3.0


def test_held_out_acceptance_is_measured_by_decoding(texts, tmp_path):
    running = trainer(texts, tmp_path)
    evaluate = HeldOut(TARGET, [tiny.EOS], [text.ids[: text.prompt].tolist() for text in texts[:3]])
    passes = tokens = 0
    for text in texts[:3]:
        short = dataclasses.replace(text, ids=text.ids[: text.prompt + 32])
        _, session = said_with(running.draft, short)
        passes += session.statistics.passes
        tokens += session.statistics.tokens
    assert evaluate(running.draft) == pytest.approx(tokens / passes)


def test_the_rate_rises_and_falls():
    settings = Settings(steps=100, learning_rate=1.0, warm_up=0.1)
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.03


def test_only_the_latest_states_are_kept_and_a_damaged_one_is_named(texts, tmp_path):
    list(trainer(texts, tmp_path).run())
    assert sorted(f.name for f in tmp_path.iterdir()) == ["step-00000004", "step-00000006"]
    (tmp_path / "step-00000006" / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="step-00000006 is damaged"):
        checkpoint.load(tmp_path)
