"""Fixtures and the rule for GPU-only tests; tests enumerate the ladder, they never list it."""

import zlib
from pathlib import Path

import pytest
import torch

from tritemm import plan
from tritemm.problem import INTERPRETED

# Said once in a process, it would be said in any test, some of which take a warning for an error.
plan._slow.told = True


def pytest_report_header():
    import triton  # after tritemm, which may have it interpret

    return (
        f"triton {triton.__version__} of {Path(triton.__file__).parent}, torch {torch.__version__}"
    )


def pytest_collection_modifyitems(items):
    # Those that one worker runs one after another begin first, so that nobody waits for them.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    if torch.cuda.is_available() and not INTERPRETED:
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; kernels run in the interpreter here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seed(request):
    """The same data for the same test, whatever ran before it."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
