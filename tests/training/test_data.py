"""Training text: prompts, the target's answers, shards."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from mirror_sd.bench.prompts import builtin as judged_by
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.errors import CheckpointError
from mirror_sd.models.target import Target
from mirror_sd.training import data, generate, prompts
from tests import tiny
from tests.training.pair import PLAN, PROMPTS, TARGET


def test_answers_are_the_targets_own(texts):
    for text in texts[:4]:
        session = Session(Target(TARGET), [], GreedyAcceptance(), FixedLength(0))
        session.prefill(text.ids[: text.prompt].tolist())
        said = [t for c in session.stream(40, until([tiny.EOS])) for t in c.tokens]
        assert said == text.ids[text.prompt :].tolist()


def test_every_prompt_is_answered_and_keeps_its_kind(texts):
    assert {tuple(text.ids[: text.prompt].tolist()) for text in texts} == {
        tuple(prompt.ids) for prompt in PROMPTS
    }
    assert {text.kind for text in texts} == {"count"}


def test_sampled_answers_are_the_seeds(tmp_path):
    plan = dataclasses.replace(PLAN, temperatures=(0.0, 0.8))
    found = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        chosen = dataclasses.replace(plan, seed=seed)
        list(generate.answer_all(TARGET, [tiny.EOS], tmp_path / folder, PROMPTS, chosen))
        texts = data.read(tmp_path / folder, "train-t0.8", tiny.VOCAB)
        found.append({tuple(t.ids[: t.prompt].tolist()): t.ids.tolist() for t in texts})
        assert len(texts) == len(PROMPTS) // 2
    assert found[0] == found[1]
    shared = found[0].keys() & found[2].keys()
    assert shared
    assert any(found[0][prompt] != found[2][prompt] for prompt in shared)


def test_generation_goes_on_where_it_was_killed(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    list(generate.answer_all(TARGET, [tiny.EOS], whole, PROMPTS, PLAN))
    program = (
        "import sys, pathlib\n"
        "from mirror_sd.training import generate\n"
        "from tests import tiny\n"
        "from tests.training.pair import PLAN, PROMPTS, TARGET\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "for done in generate.answer_all(TARGET, [tiny.EOS], folder, PROMPTS, PLAN):\n"
        "    print(done.prompts, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(broken)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 10:  # in the second of two shards
                os.kill(process.pid, signal.SIGKILL)
                break
    assert len(list(broken.glob("*.npz"))) == 1
    (broken / "train-t0-00001.new").write_bytes(b"half a shard")
    list(generate.answer_all(TARGET, [tiny.EOS], broken, PROMPTS, PLAN))
    for file in whole.glob("*.npz"):
        assert (broken / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("chosen", "plan", "changed"),
    [(PROMPTS, dataclasses.replace(PLAN, seed=2), "plan"), (PROMPTS[1:], PLAN, "prompts")],
)
def test_data_of_another_plan_is_refused(tmp_path, chosen, plan, changed):
    list(generate.answer_all(TARGET, [tiny.EOS], tmp_path, PROMPTS, PLAN))
    with pytest.raises(CheckpointError, match=f"another {changed}"):
        list(generate.answer_all(TARGET, [tiny.EOS], tmp_path, chosen, plan))


def test_prompts_are_split_whole_and_stay_on_their_side(tmp_path):
    plan = dataclasses.replace(PLAN, held_out=0.3, temperatures=(0.0, 0.8))
    many = [generate.Prompt([n, n + 1]) for n in range(200)]

    def side(chosen, split):
        found = generate.jobs(tmp_path, chosen, plan)
        return {tuple(p.ids) for j in found if j.file.name.startswith(split) for p in j.prompts}

    train, held = side(many, "train"), side(many, "held")
    assert len(train) + len(held) == 200
    assert not train & held
    assert 0.2 < len(held) / 200 < 0.4
    assert side(many[:100], "held") <= held


def test_shards_are_checked(tmp_path):
    file = tmp_path / "train-0.npz"
    rows = [data.Text(np.array([1, 2, 3]), 1, "a"), data.Text(np.array([4, 5]), 1, "b")]
    data.write_shard(file, rows)
    assert [t.ids.tolist() for t in data.read(tmp_path, "train", 10)] == [[1, 2, 3], [4, 5]]
    with pytest.raises(CheckpointError, match="vocabulary has 5"):
        data.read(tmp_path, "train", 5)
    with pytest.raises(CheckpointError, match=r"no held\*.npz"):
        data.read(tmp_path, "held", 10)
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(CheckpointError, match="damaged"):
        data.read(tmp_path, "train", 10)


def test_a_vocabulary_beyond_16_bits_is_kept(tmp_path):
    data.write_shard(tmp_path / "train-0.npz", [data.Text(np.array([151_000, 3]), 1, "a")])
    assert data.read(tmp_path, "train", 152_000)[0].ids.tolist() == [151_000, 3]


def test_built_in_training_prompts_are_many_and_none_is_one_that_drafts_are_judged_by():
    found = prompts.builtin(3000, seed=1)
    assert len(set(found)) == len(found) == 3000
    assert found[:500] == prompts.builtin(500, seed=1)
    kinds = {request.kind for request in found}
    assert kinds == {"code", "maths", "edit", "json", "chat", "prose", "continuation", "turns"}
    for request in found:
        texts = [request.text, *(content for _, content in request.messages)]
        assert not any("{name}" in text or "{topic}" in text for text in texts)
    judged = {prompt.text for prompt in judged_by()}
    asked = {content for request in found for _, content in request.messages}
    assert not judged & asked
