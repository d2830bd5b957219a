from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mirror_sd.cli.main import app
from mirror_sd.decoding import plain
from tests import tiny


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    base = tmp_path_factory.mktemp("verify")
    target = tiny.write_target(base / "target")
    return ["-m", str(target), "--draft", str(tiny.write_draft(base / "draft"))]


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("hello\n\nand another one\n")
    return ["--prompts", str(file)]


def run(*arguments: str):
    return CliRunner().invoke(app, ["verify", *arguments], env={"COLUMNS": "200"})


def test_a_sound_pair_is_identical_and_exits_0(pair, prompts, tmp_path):
    report = tmp_path / "report.json"
    result = run(*pair, *prompts, "-n", "20", "--json", str(report))
    assert result.exit_code == 0, result.output
    assert "2 of 2 identical" in result.stdout
    content = json.loads(report.read_text())
    assert [p["verdict"] for p in content["prompts"]] == ["identical"] * 2
    assert content["prompts"][0]["tokens"] == content["prompts"][0]["plain_tokens"]
    assert len(content["prompts"][0]["tokens"]) == 20
    assert content["environment"]["mlx"]


def test_a_wrong_token_is_found_and_exits_1(pair, prompts, tmp_path, monkeypatch):
    real = plain.run

    def wrong(*arguments, **more):
        result = real(*arguments, **more)
        tokens = [*result.tokens[:9], (result.tokens[9] + 1) % tiny.VOCAB, *result.tokens[10:]]
        return plain.PlainRun(tokens, result.prefill_seconds, result.seconds)

    monkeypatch.setattr(plain, "run", wrong)
    report = tmp_path / "report.json"
    result = run(*pair, *prompts, "-n", "20", "--json", str(report))
    assert result.exit_code == 1
    assert "2 differ for no such reason" in result.stdout
    found = json.loads(report.read_text())["prompts"][0]["divergence"]
    assert found["position"] == 9
    assert found["plain_token"] == (found["token"] + 1) % tiny.VOCAB
    assert found["margin"] > 1e-3


def test_exact_says_what_it_cost(pair, prompts):
    result = run(*pair, *prompts, "-n", "20", "--exact")
    assert result.exit_code == 0
    assert "--exact ran" in result.stdout


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_a_prompt_file_that_cannot_be_used_is_one_clear_line(pair, tmp_path, content):
    file = tmp_path / "missing.txt"
    if content is not None:
        file.write_text(content)
    result = run(*pair, "--prompts", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


def test_a_report_that_cannot_be_written_is_one_clear_line(pair, prompts):
    result = run(*pair, *prompts, "-n", "4", "--json", "/nowhere/report.json")
    assert result.exit_code == 2
    assert "cannot write /nowhere/report.json" in result.stderr
