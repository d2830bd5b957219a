"""mirror-sd train, from prompts to a draft that decodes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from mirror_sd import load, stream_generate
from mirror_sd.cli.main import app
from mirror_sd.models.draft_head import RANKING
from tests import tiny

SMALL = ["--layers", "1", "--block-size", "4", "--steps", "4", "--batch", "4", "--anchors", "4"]
SMALL += ["--checkpoint-every", "2", "--negatives", "40"]
ANSWERS = ["--max-tokens", "20"]


def run(*args: object):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny.write_target(tmp_path_factory.mktemp("train") / "target")


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"Say {n}", "kind": "count"} for n in range(12)]
    rows += [{"messages": [{"role": "user", "content": f"Tell {n}"}]} for n in range(12)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def test_a_draft_is_trained_exported_and_used(target, prompts, tmp_path):
    out = tmp_path / "draft"
    result = run("train", "-t", target, "--out", out, "--prompts", prompts, *SMALL, *ANSWERS)
    assert result.exit_code == 0, result.output
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["block_size"] == 4
    assert sorted(np.load(out / RANKING).tolist()) == list(range(tiny.VOCAB))
    model, tokenizer = load(str(target), str(out))
    said = [r.token for r in stream_generate(model, tokenizer, "Say 3", 20, block_size=4)]
    plain, _ = load(str(target), drafting=False)
    assert said == [r.token for r in stream_generate(plain, tokenizer, "Say 3", 20)]


def test_a_second_run_goes_on_and_a_draft_can_be_started_from(target, prompts, tmp_path):
    out = tmp_path / "draft"
    common = ["train", "-t", target, *ANSWERS, "--prompts", prompts, "--out"]
    assert run(*common, out, *SMALL).exit_code == 0
    again = run(*common, out, *SMALL)
    assert again.exit_code == 0
    assert not list(out.glob(".new*"))
    tuned = ["train", "-t", target, "--data", out / "data", "--init-from", out, *SMALL[2:]]
    result = run(*tuned, "--out", tmp_path / "tuned", "--store-features", "--visible-prefix", "0.5")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    trained = {"visible_prefix": 0.5, "feature_lag": 0.0, "tap_dropout": 0.0}
    assert config["mirror_sd"] == trained
    card = (tmp_path / "tuned" / "README.md").read_text()
    assert f"started from: {out}" in card
    assert "with a visible prefix: 50%" in card
    assert (tmp_path / "tuned" / "training.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give either --prompts"),
        (["--prompts", "missing.txt"], "cannot read prompts"),
        (["--data", "nowhere"], "holds no train"),
        (["--prompts", "bad.jsonl"], "line 1: a row needs"),
    ],
)
def test_what_cannot_be_trained_on_is_one_clear_line(target, tmp_path, args, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"text": 3}')
    result = run("train", "-t", target, "--out", tmp_path / "draft", *args, *SMALL)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


def test_another_run_in_the_folder_is_refused(target, prompts, tmp_path):
    common = [
        "train",
        "-t",
        target,
        "--prompts",
        prompts,
        "--out",
        tmp_path / "draft",
        *SMALL,
        *ANSWERS,
    ]
    assert run(*common).exit_code == 0
    result = run(*common, "--lr", "0.01")
    assert result.exit_code == 2
    assert "other settings or data" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--data", "d", "--count", "3"], "with --data that is done"),
        (["--prompts", "p.txt", "--count", "3"], "a file is answered whole"),
        (["--data", "d", "--init-from", "demo"], "for a new draft"),
        (["--data", "d", "--evaluate-every", "0", "--patience", "2"], "needs --evaluate-every"),
        (["--data", "d", "--mask-token-id", "263"], "none of"),
    ],
)
def test_options_that_would_do_nothing_are_refused(target, prompts, tmp_path, args, message):
    if "--mask-token-id" in args:
        run("train", "-t", target, "--out", tmp_path, "--prompts", prompts, "--only-data")
        args = ["--data", tmp_path / "data", *args[2:]]
    result = run("train", "-t", target, "--out", tmp_path / "draft", "--layers", "1", *args)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
