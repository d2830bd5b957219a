from __future__ import annotations

import pytest

from tests.training import pair


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    return pair.answers(tmp_path_factory.mktemp("answers"))
