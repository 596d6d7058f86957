"""Fixtures and the rule for GPU-only tests; tests enumerate the ladder, they never list it."""

import fcntl
import os
import zlib
from pathlib import Path

import pytest
import torch

from tritemm.problem import INTERPRETED


def pytest_report_header():
    import triton  # after tritemm, which may have it interpret

    return (
        f"triton {triton.__version__} of {Path(triton.__file__).parent}, torch {torch.__version__}"
    )


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available() and not INTERPRETED:
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; kernels run in the interpreter here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _device(request, tmp_path_factory):
    """Tests that are to be `alone` share the device with no other worker's.

    Whoever comes passes the gate, which one that wants to be alone keeps until it is.
    """
    if INTERPRETED or "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent  # that of all workers
    alone = request.node.get_closest_marker("alone")
    with (folder / "gate").open("w") as gate, (folder / "device").open("w") as device:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(device, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.fixture(autouse=True)
def _seed(request):
    """The same data for the same test, whatever ran before it."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
