"""The stand-in for compiled kernels, where there are none."""

import pytest

from tests.runtime import standing_in
from tritemm.problem import INTERPRETED


@pytest.fixture
def stand_in(monkeypatch):
    if not INTERPRETED:
        pytest.skip("stands in for a compiled kernel")
    standing_in.install(monkeypatch)
