from __future__ import annotations

import pytest

from mirror_sd.bench import prompts
from mirror_sd.bench.recording import record
from mirror_sd.programs import Tensors


@pytest.fixture(scope="session")
def recorded(demo_pair):
    """What the demo draft was given in real decoding."""
    pair, tokenizer = demo_pair
    return record(pair, tokenizer, prompts.builtin(1)[:3], 10)


@pytest.fixture(scope="session")
def demo_draft(demo_pair):
    return demo_pair[0].draft.model


@pytest.fixture(scope="session")
def demo_tensors(demo_draft):
    return dict(Tensors(demo_draft))
