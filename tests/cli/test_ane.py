"""mirror-sd compile and mirror-sd ane, on a tiny pair."""

from __future__ import annotations

import json
import platform
import sys

import pytest
from typer.testing import CliRunner

from mirror_sd.ane import lint, plan
from mirror_sd.bench.speed import Way
from mirror_sd.cli.main import app
from tests import tiny


def run(*args: object):
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    base = tmp_path_factory.mktemp("ane")
    target = tiny.write_target(base / "target")
    return ["-m", str(target), "--draft", str(tiny.write_draft(base / "draft"))]


@pytest.fixture(scope="module")
def compiled(pair, tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled") / "programs"
    settings = ["--context", "1024", "--context", "512", "--head", "int8", "--tokens", "4"]
    result = run("compile", *pair, "--out", out, *settings)
    assert result.exit_code == 0, result.output
    assert "b32_n32_c512" in result.stdout
    assert "largest values seen" in result.stderr
    assert "Error of stored weights" in result.stdout
    assert "expected on the Neural Engine: all of it" in result.stdout
    return out


def test_what_was_compiled(compiled, pair):
    found = plan.read(compiled)
    assert [bucket.context for bucket in found.buckets] == [512, 1024]
    assert found.draft == pair[3]
    assert found.head is not None
    assert found.calibration.outliers
    assert set(found.tools) == {"mirror-sd", "coremltools", "numpy"}


def test_emulating_it(compiled, pair, tmp_path):
    report = tmp_path / "report.json"
    result = run(
        "ane", "emulate", compiled, *pair, "-n", 6, "--per-kind", 1, "--ranges", "--json", report
    )
    assert result.exit_code == 0, result.output
    content = json.loads(report.read_text())
    assert content["prompts"] == 6
    assert set(content["layers"]) == {"layer 0", "layer 1", "final norm"}
    assert all(layer["cosine"] > 0.999 for layer in content["layers"].values())
    found = content["acceptance"]
    assert found["emulated"] == pytest.approx(found["mlx"], rel=0.05)
    assert content["head"] > 0.8
    for text in (
        "worst block's",
        "Largest values",
        "acceptance length",
        "the same likeliest token",
    ):
        assert text in result.stdout


def test_programs_that_take_keys_and_values(pair, tmp_path):
    """They need no `fc`, draft as the others do, and say the same."""
    out = tmp_path / "programs"
    made = run(
        "compile", *pair, "--out", out, "--new", 0, "--context", 512, "--tokens", 4,
        "--weights", "fp16",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert "b32_n0_c512" in made.stdout
    assert "fc:" not in made.stdout
    report = tmp_path / "report.json"
    result = run("ane", "emulate", out, *pair, "-n", 6, "--per-kind", 1, "--json", report)
    assert result.exit_code == 0, result.output
    content = json.loads(report.read_text())
    assert all(layer["cosine"] > 0.9999 for layer in content["layers"].values())
    found = content["acceptance"]
    assert found["emulated"] == pytest.approx(found["mlx"], rel=0.05)
    placed = run(
        "generate", "Say it", *pair, "-n", 16, "--programs", out, "--device", "emulator",
        "--compare", "--block-size", 4,
    )  # fmt: skip
    assert placed.exit_code == 0, placed.output
    assert "identical text" in placed.output


def test_another_draft_is_refused(compiled, pair, tmp_path):
    other = tiny.write_draft(tmp_path / "other", seed=9)
    result = run("ane", "emulate", compiled, *pair[:3], other, "-n", 4)
    assert result.exit_code == 2
    assert "compiled from another draft" in result.stderr


def test_a_width_that_is_not_there(compiled, pair):
    result = run("ane", "emulate", compiled, *pair, "--context", 4096)
    assert result.exit_code == 2
    assert "[512, 1024] columns, not 4096" in result.stderr


def test_lint_lists_findings_with_their_source(compiled, tmp_path):
    report = tmp_path / "report.json"
    result = run("ane", "lint", compiled, "--json", report)
    assert result.exit_code == 0, result.output
    assert "ANEForge, numeric cliffs" in result.stdout
    rows = json.loads(report.read_text())
    assert {row["rule"] for row in rows} == {"offset", "count", "topk"}
    assert {row["package"] for row in rows} == {"part-0.mlpackage", "head-0.mlpackage"}
    single = run("ane", "lint", compiled / "part-0.mlpackage", "--family", "a16")
    assert single.exit_code == 0, single.output
    assert "numeric cliffs" not in single.stdout


def test_lint_fails_on_errors(compiled, monkeypatch):
    bad = lint.Finding("dtype", lint.Level.error, "here", "float32")
    monkeypatch.setattr(lint, "lint", lambda *_: [bad])
    assert run("ane", "lint", compiled).exit_code == 1


@pytest.mark.skipif(platform.system() == "Darwin", reason="a Mac can tell")
def test_placement_needs_a_mac(compiled):
    result = run("ane", "placement", compiled)
    assert result.exit_code == 2
    assert "run this on a Mac" in result.stderr
    assert "ane lint" in result.stderr


def test_what_is_not_a_compiled_draft(tmp_path):
    for command in ("lint", "emulate", "placement"):
        result = run("ane", command, tmp_path)
        assert result.exit_code == 2
        assert "no compiled draft" in " ".join(result.stderr.split())


def test_compiling_without_coremltools(pair, tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.startswith(("coremltools", "mirror_sd.ane"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "coremltools", None)
    result = run("compile", *pair, "--out", tmp_path / "p", "--tokens", 2)
    assert result.exit_code == 2
    assert "pip install 'mirror-sd[ane]'" in " ".join(result.stderr.split())


def test_dflash_2_is_refused_by_name(pair, tmp_path):
    changes = {
        "architectures": ["DFlash2DraftModel"],
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 4,
        "selector_top_k": 4,
    }
    other = tiny.write_draft(tmp_path / "other", **changes)
    result = run("compile", *pair[:3], other, "--out", tmp_path / "p")
    assert result.exit_code == 2
    assert "DFlash 2 drafts cannot be compiled" in " ".join(result.stderr.split())


elsewhere = pytest.mark.skipif(platform.system() == "Darwin", reason="there it asks Core ML")


@elsewhere
def test_the_doctor_checks_what_can_be_checked_here(compiled, pair, tmp_path):
    report = tmp_path / "new" / "report.md"
    few = ["-n", 6, "--runs", 1, "--out", report]
    result = run("ane", "doctor", *pair, "--programs", compiled, *few)
    assert result.exit_code == 0, result.output
    assert "the emulator takes its place" in " ".join(result.stderr.split())
    text = report.read_text()
    for title, verdict in {
        "The draft as programs": "ok",
        "Placement by Core ML": "not checked",
        "Emulated programs against the draft in MLX": "ok",
        "The device against the emulator": "ok",
        "Decoding": "ok",
    }.items():
        assert f"| {title} | {verdict} |" in text
    assert "only a Mac can tell" in text
    assert "| hidden states | 1.000000 | 1.000000 | 0 |" in text
    assert "says nothing of a Neural Engine's speed" in text
    rows = [line for line in text.split("## Decoding: ok")[1].splitlines() if "x |" in line]
    assert [row.split("|")[2].strip() for row in rows] == [way.value for way in Way]
    assert all("| yes |" in row or "numerical tie" in row for row in rows[1:])


@elsewhere
def test_the_doctor_goes_on_after_a_step_that_fails(compiled, pair, tmp_path, monkeypatch):
    def broken(*given):
        raise ValueError("something unforeseen")

    monkeypatch.setattr("mirror_sd.bench.doctor.compare", broken)
    report = tmp_path / "report.md"
    few = ["-n", 4, "--runs", 1, "--out", report]
    result = run("ane", "doctor", *pair, "--programs", compiled, *few)
    assert result.exit_code == 1
    text = report.read_text()
    assert "| Emulated programs against the draft in MLX | FAILED |" in text
    assert "ValueError: something unforeseen" in text
    assert "| Decoding | ok |" in text


@elsewhere
def test_the_doctor_of_another_draft(compiled, pair, tmp_path):
    other = tiny.write_draft(tmp_path / "other", seed=9)
    report = tmp_path / "report.md"
    few = ["-n", 4, "--runs", 1, "--out", report]
    result = run("ane", "doctor", *pair[:3], other, "--programs", compiled, *few)
    assert result.exit_code == 1
    assert "| The draft as programs | FAILED |" in report.read_text()


@elsewhere
def test_the_doctor_asks_for_no_core_ml_elsewhere(pair):
    result = run("ane", "doctor", *pair, "--device", "coreml-worker")
    assert result.exit_code == 2
    assert "on a Mac only" in result.output
