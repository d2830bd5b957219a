"""The target's head in shards: merged, the likeliest tokens are those of the whole head."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mirror_sd.ane import head as heads
from mirror_sd.ane import plan as plans
from mirror_sd.ane import reader
from mirror_sd.ane.emulator import Emulator
from mirror_sd.ane.head import FUNCTION, divide, merge

from .drafts import TINY, compiled

VOCABULARY = 1000


def head(start: int, stop: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((VOCABULARY, TINY.hidden), np.float32)[start:stop]


@pytest.mark.parametrize(("scheme", "least", "error"), [("int8", 0.95, 0.02), ("lut6", 0.85, 0.1)])
def test_merged_shards_are_the_head(tmp_path, monkeypatch, scheme, least, error):
    monkeypatch.setattr(heads, "CHANNELS", 300)
    divided = divide(TINY.hidden, VOCABULARY, 32, 4, scheme, limit=40e3)
    assert [sum(b - a for a, b in part) for part in divided.parts] == [496, 504]
    plan = compiled(tmp_path / "p", TINY, head=(divided, head))
    assert plans.read(tmp_path / "p") == plan
    emulators = [
        Emulator(reader.read(plan.head_package(tmp_path / "p", part))[FUNCTION])
        for part in range(2)
    ]
    hidden = np.random.default_rng(1).standard_normal((20, TINY.hidden))
    columns = np.zeros((1, TINY.hidden, 1, 32), np.float16)
    columns[0, :, 0, :20] = hidden.T
    ids, scores = merge(plan.head, [emulator({"hidden": columns}) for emulator in emulators], 20)
    logits = hidden @ head(0, VOCABULARY).T
    wanted = np.argsort(-logits, axis=1)[:, :4]
    assert np.mean(ids[:, 0] == wanted[:, 0]) >= least
    assert np.abs(scores - np.take_along_axis(logits, ids, 1)).max() < error * np.abs(logits).max()
    assert (np.diff(scores) <= 0).all()


def test_dividing():
    """Qwen3-8B: 151,936 tokens of 4,096 channels."""
    plan = divide(4096, 151936, 32, 16, "int8", 250e6)
    shards = [shard for part in plan.parts for shard in part]
    assert shards[0][0] == 0
    assert shards[-1][1] == 151936
    assert all(b == c for (_, b), (c, _) in itertools.pairwise(shards))
    assert max(b - a for a, b in shards) <= 16384
    assert all(sum(b - a for a, b in part) * 4096 <= 250e6 for part in plan.parts)
