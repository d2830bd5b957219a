"""Two machines that share batches learn what one machine learns from the whole of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from tests import tiny

BIN = Path(sys.executable).parent
SMALL = ["--layers", "1", "--block-size", "4", "--steps", "6", "--batch", "4", "--anchors", "4"]
SMALL += ["--checkpoint-every", "3", "--negatives", "40", "--evaluate-every", "3"]
SMALL += ["--evaluate-prompts", "2", "--visible-prefix", "0.3", "--tap-dropout", "0.2"]


def run(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "mirror-sd"), "train", *(str(argument) for argument in arguments)]
    if ranks > 1:
        launch = [str(BIN / "mlx.launch"), "--backend", "ring", "-n", str(ranks), "--"]
        command = [*launch, *command]
    threads = {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # ranks share the cores
    return subprocess.run(
        command, env=os.environ | threads, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    base = tmp_path_factory.mktemp("ranks")
    target = tiny.write_target(base / "target")
    prompts = base / "prompts.txt"
    prompts.write_text("\n".join(f"Count to {n}" for n in range(60)))
    answered = run(
        1, "-t", target, "--out", base, "--prompts", prompts, "--only-data", "--max-tokens", "20"
    )
    assert answered.returncode == 0, answered.stderr
    assert list((base / "data").glob("held*.npz"))
    return ["-t", target, "--data", base / "data"]


def test_two_ranks_have_the_loss_curve_of_one(data, tmp_path):
    for ranks in (1, 2):
        done = run(ranks, *data, "--out", tmp_path / str(ranks), *SMALL)
        assert done.returncode == 0, done.stdout + done.stderr
    alone, shared = (
        [json.loads(line) for line in (tmp_path / n / "log.jsonl").read_text().splitlines()]
        for n in ("1", "2")
    )
    assert [row["step"] for row in alone] == [row["step"] for row in shared] == [1, 2, 3, 4, 5, 6]
    for one, two in zip(alone, shared, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)
        assert (two["held_out"] is None) == (one["held_out"] is None)
    weights = [mx.load(str(tmp_path / n / "model.safetensors")) for n in ("1", "2")]
    for name, value in weights[0].items():
        gap = mx.abs(value.astype(mx.float32) - weights[1][name].astype(mx.float32)).max()
        assert gap.item() < 5e-3


def test_machines_do_not_answer_prompts_each_for_itself(data, tmp_path):
    prompts = tmp_path / "p.txt"
    prompts.write_text("One")
    done = run(2, *data[:2], "--out", tmp_path / "draft", "--prompts", prompts)
    assert "answer the prompts on one with --only-data" in (done.stdout + done.stderr).replace(
        "\n", " "
    )
    assert not (tmp_path / "draft").exists()
