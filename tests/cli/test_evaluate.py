from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mirror_sd.cli.main import app
from tests import tiny


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    base = tmp_path_factory.mktemp("evaluate")
    target = tiny.write_target(base / "target")
    return ["-m", str(target), "--draft", str(tiny.write_draft(base / "draft"))]


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"Say {n}", "kind": "say" if n % 2 else "tell"} for n in range(4)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return ["--prompts", str(file)]


def run(*arguments: str):
    return CliRunner().invoke(app, ["evaluate", *arguments], env={"COLUMNS": "200"})


def test_a_report_and_a_plot_are_written(pair, prompts, tmp_path):
    result = run(*pair, *prompts, "-n", "20", "--out", str(tmp_path / "report"))
    assert result.exit_code == 0, result.output
    text = (tmp_path / "report" / "evaluation.md").read_text()
    for line in ("| tell | 2 | 40 |", "| say | 2 | 40 |", "| all | 4 | 80 |", "4 of 4"):
        assert line in text
    assert "block size: 6" in text
    assert "(evaluation.png)" in text
    assert (tmp_path / "report" / "evaluation.png").read_bytes()[:4] == b"\x89PNG"
    assert text.split("![")[0].strip() in result.stdout


def test_speed_can_be_left_out_and_prompts_limited(pair, prompts):
    result = run(*pair, *prompts, "-n", "8", "--no-speed", "--limit", "1", "--block-size", "4")
    assert result.exit_code == 0, result.output
    assert "| all | 2 | 16 |" in result.stdout
    assert "adaptive" not in result.stdout
    assert "block size: 4" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "nowhere.txt"], "cannot read prompts"),
        (["--limit", "1", "--block-size", "7"], "out of range"),
    ],
)
def test_bad_input_is_one_clear_line(pair, arguments, message):
    result = run(*pair, *arguments)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
