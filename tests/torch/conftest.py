"""What tests of routed calls need."""

import numpy as np
import pytest
import torch

import tritemm
from tests.harness import DEVICE
from tritemm.problem import ALONE
from tritemm.takeover import routing


@pytest.fixture(autouse=True)
def _as_torch_has_it():
    """No test leaves anything routed."""
    yield
    tritemm.disable()


@pytest.fixture
def quick(monkeypatch):
    """Products by numpy where kernels are interpreted: they have tests of their own."""

    def product(a, b, out, options, ending=None, besides=ALONE):
        assert besides == ALONE
        found = torch.from_numpy(np.matmul(*(t.detach().double().numpy() for t in (a, b))))
        found = ending.of(found, torch.float64) if ending else found
        return (torch.empty(found.shape, dtype=options[-1]) if out is None else out).copy_(found)

    if DEVICE == "cpu":
        monkeypatch.setattr(routing, "product", product)
