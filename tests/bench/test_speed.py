"""mirror-sd bench: ways of decoding side by side, and what is said of them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mirror_sd.bench.speed import Result, Sample, Way
from mirror_sd.bench.speed_report import as_dict, describe, plot, text
from mirror_sd.cli.main import app


def row(at: float, **other):
    base = {
        "at_ms": at, "cycle_ms": 100.0, "draft_ms": 20.0, "verify_ms": 80.0, "redo_ms": 0.0,
        "planned": 3, "verified": 3, "accepted": 2, "tokens": [1, 2, 3], "ready": None,
        "device": [], "finish": None,
    }  # fmt: skip
    return {**base, **other}


ROWS = [
    row(0, device=[["block", 0, 20], ["branches", 25, 45]]),
    row(100, ready=True, draft_ms=10.0, device=[["branches", 115, 135]]),
    row(200, ready=False, device=[["block", 200, 220]]),
]


def result(way=Way.mirrored, **other):
    samples = [Sample([1, 2, 3], 2.0, 6, ROWS), Sample([1, 2, 3], 1.0, 6, ROWS)]
    return Result(way, 64, samples, **other)


def test_figures_come_from_intervals():
    found = result()
    assert found.tokens_per_second == 4.5
    assert found.acceptance_length == 3
    assert (found.milliseconds("draft_ms"), found.milliseconds("verify_ms")) == (20, 80)
    assert found.overlap == pytest.approx(40 / 80)
    assert found.exposed == pytest.approx(40 / 3)
    assert found.hits == (2, 4)


def test_a_table_with_what_there_is():
    plain = Result(Way.plain, 64, [Sample([1], 2.0, 6)])
    assert describe(plain) == ["64", "plain", "3.00", "1.00", *[""] * 7]
    cells = describe(result(speedup=1.5, lossless="yes"))
    assert cells[2:] == ["4.50", "3.00", "20.0", "80.0", "50%", "13.3", "2 of 4", "1.50x", "yes"]


def test_reports(tmp_path):
    results = [Result(Way.plain, 64, [Sample([1], 2.0, 6)]), result(speedup=1.5)]
    report = text(results, {"target": "t"}, "bench.png")
    assert "- target: t\n" in report
    assert "![" in report
    assert "![" not in text(results, {}, None)
    data = json.loads(json.dumps(as_dict(results, {"target": "t"})))
    assert data["results"][1]["hits"] == [2, 4]
    assert data["results"][0]["overlap"] is None
    plot(results, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 10_000


def invoke(*words):
    return CliRunner().invoke(app, ["bench", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--skip-gpu"], "needs --programs"),
        (["64"], "depths come after --ctx-depths"),
        (["--ctx-depths", "9000"], "are more than demo allows, 8192"),
        (["--ctx-depths", "0"], "greater than or equal to 1"),
        (["--device", "coreml"], "which is not given"),
    ],
)
def test_what_cannot_be_measured_is_said(words, said):
    found = invoke(*words)
    assert found.exit_code == 2
    assert said in " ".join(found.output.replace("│", " ").split())
    assert "Traceback" not in found.output


def test_two_depths_against_plain(tmp_path):
    words = ["--ctx-depths", "64", "200", "--runs", "1", "-n", "10", "--out", str(tmp_path / "o")]
    found = invoke(*words, "--block-size", "4")
    assert found.exit_code == 0, found.output
    data = json.loads((tmp_path / "o" / "bench.json").read_text())
    assert [(r["context"], r["way"]) for r in data["results"]] == [
        (64, "plain"), (64, "mlx"), (200, "plain"), (200, "mlx"),
    ]  # fmt: skip
    drafted = data["results"][1]
    assert drafted["lossless"] == "yes" or "tie" in drafted["lossless"]
    assert len(drafted["tokens"]) == 10
    assert "sha256" in data["facts"]["draft"]
    assert data["facts"]["BLAS"]
    assert "without --programs" in found.output
    assert (tmp_path / "o" / "bench.md").exists()


def test_sampled_texts_are_equal_too(tmp_path):
    words = ["--ctx-depths", "64", "--runs", "1", "-n", "10", "--out", str(tmp_path / "o")]
    found = invoke(*words, "--temperature", "0.8")
    assert found.exit_code == 0, found.output
    plain, drafted = json.loads((tmp_path / "o" / "bench.json").read_text())["results"]
    assert drafted["lossless"] == "yes"
    assert plain["tokens"] == drafted["tokens"]


def test_without_plain_decoding_nothing_is_claimed():
    found = invoke("--ctx-depths", "64", "--runs", "1", "-n", "6", "--skip-ar")
    assert found.exit_code == 0, found.output
    assert "| plain |" not in found.output
    assert "| draft in MLX |" in found.output
    assert "x |" not in found.output
