from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mirror_sd.bench import tracefile
from mirror_sd.cli.main import app
from tests import tiny


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    base = tmp_path_factory.mktemp("trace")
    target, draft = tiny.write_target(base / "target"), tiny.write_draft(base / "draft")
    file = base / "trace.jsonl"
    arguments = ["generate", "abcabcabc", "-m", str(target), "--draft", str(draft)]
    result = CliRunner().invoke(app, [*arguments, "-n", "60", "--trace", str(file)])
    assert result.exit_code == 0, result.output
    return file


def run(*arguments: str):
    return CliRunner().invoke(app, ["trace", *arguments], env={"COLUMNS": "200"})


def test_every_cycle_is_one_line_and_together_they_are_the_answer(traced):
    rows = [json.loads(line) for line in traced.read_text().splitlines()]
    assert sum(len(row["tokens"]) for row in rows) == 60
    assert rows[-1]["finish"] == "length"
    for row in rows:
        assert row["proposal"][: row["accepted"]] == row["tokens"][: row["accepted"]]
        assert len(row["proposal"]) == row["verified"] <= row["planned"]
        assert row["because"]
        assert row["cycle_ms"] >= row["draft_ms"] + row["verify_ms"] - 0.01
    assert any(row["confidences"] for row in rows)


def test_the_summary_counts_what_the_file_says(traced, tmp_path):
    picture = tmp_path / "trace.png"
    result = run(str(traced), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    rows = tracefile.read(traced)
    assert f"{len(rows)} cycles" in result.stdout
    for summary in tracefile.by_source(rows):
        assert summary.source in result.stdout
    assert sum(s.tokens for s in tracefile.by_source(rows)) == 60
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_rows_that_were_run_again_are_told(traced, tmp_path):
    rows = [json.loads(line) for line in traced.read_text().splitlines()]
    whole = sum(row["draft_ms"] + row["verify_ms"] for row in rows)
    rows[3] |= {"redone": 7, "redo_ms": whole / 4}
    file = tmp_path / "exact.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    assert "ran 7 rows again: 20.0% of the time" in run(str(file)).stdout
    assert "rows again" not in run(str(traced)).stdout


def test_the_timeline_of_an_answer(traced, tmp_path):
    picture = tmp_path / "timeline.png"
    result = CliRunner().invoke(
        app, ["timeline", str(traced), "--plot", str(picture)], env={"COLUMNS": "100"}
    )
    assert result.exit_code == 0, result.output
    drawn = [line for line in result.stdout.splitlines() if line.startswith("      target ")]
    assert len(drawn) == 1
    assert set(drawn[0].split()[-1]) <= set("VPD.")
    assert "drafting that the target waited for" in result.stdout
    assert "draft device" not in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    backwards = CliRunner().invoke(app, ["timeline", str(traced), "--from", "9", "--to", "3"])
    assert backwards.exit_code == 2
    assert "nothing between 9 and 3 ms" in backwards.stderr


def test_survival_and_costs_are_read_off_the_cycles():
    def row(source, verified, accepted, verify_ms):
        cycle = {"planned": verified, "draft_ms": 1.0, "tokens": [0] * (accepted + 1)}
        return {"source": source, "verified": verified, "accepted": accepted, **cycle,
                "verify_ms": verify_ms}  # fmt: skip

    rows = [
        row("dflash", 3, 3, 30.0),
        row("dflash", 3, 1, 34.0),
        row("dflash", 1, 0, 20.0),
        row("plain", 0, 0, 10.0),
    ]
    assert tracefile.survival(rows, "dflash") == pytest.approx([2 / 3, 1 / 2, 1.0])
    assert tracefile.verify_costs(rows) == {1: 10.0, 2: 20.0, 4: 32.0}
    plain = next(s for s in tracefile.by_source(rows) if s.source == "plain")
    assert (plain.cycles, plain.ms_per_token) == (1, 11.0)


@pytest.mark.parametrize("content", [None, "", "no json", "[1, 2]", '{"a": 1}'])
def test_a_file_that_is_no_trace_is_one_clear_line(tmp_path, content):
    file = tmp_path / "trace.jsonl"
    if content is not None:
        file.write_text(content)
    result = run(str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


def test_a_trace_that_cannot_be_written_is_one_clear_line(traced):
    target = traced.parent / "target"
    arguments = ["generate", "hi", "-m", str(target), "--no-draft", "--trace", "/nowhere/t.jsonl"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "cannot write the trace /nowhere/t.jsonl" in result.stderr
