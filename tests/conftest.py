"""Fixtures and the rule for GPU-only tests; tests enumerate the ladder, they never list it."""

import collections
import gc
import importlib
import itertools
import os
import sys
import zlib
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from tests.sweep import CODE
from tritemm.nn import packing
from tritemm.plan import slow
from tritemm.problem import INTERPRETED

# Said once in a process, it would be said in any test, some of which take a warning for an error.
slow.warning.told = True
#: So that packing is tested where there is no GPU, too.
packing.DEVICES.add("cpu")
#: Workers that run tests marked `large`, each one at a time; GB of device memory that others may
#: take; bytes that a worker may keep in its cache after a test. So 16 of them fit a card of 80 GB.
LARGE_WORKERS, UNMARKED, KEPT = 2, 4, 2**30


def pytest_addoption(parser):
    words = "of the cases of each test that is marked `wide` one in N runs"
    parser.addoption("--wide", type=int, default=1, metavar="N", help=words)
    words = (
        "of all cases one in N runs, drawn by its name and by tritemm's code, and each that is "
        "marked `latest`"
    )
    parser.addoption("--one-in", type=int, default=1, metavar="N", help=words)


def pytest_configure(config):
    """Refuses other releases than TRITEMM_RELEASES names.

    With pytest 9.2, xdist 3.8 forgets which tests are to run on one worker.
    """
    asked = os.environ.get("TRITEMM_RELEASES")
    releases = dict(requirement.split("==") for requirement in (asked or "").split())
    if asked is not None and "triton" not in releases:
        raise pytest.UsageError(f"TRITEMM_RELEASES names no triton: {asked!r}")
    for name, release in releases.items():
        module = importlib.import_module(name)
        found = {each.partition("+")[0] for each in (module.__version__, version(name))}
        if found != {release} or not Path(module.__file__).is_relative_to(sys.prefix):
            told = f"this is {' and '.join(sorted(found))}, from {module.__file__}"
            raise pytest.UsageError(f"TRITEMM_RELEASES asks for {name}=={release}; {told}")
    if getattr(config.option, "dist", "no") == "loadgroup" and pytest.version_tuple >= (9, 2):
        raise pytest.UsageError("--dist loadgroup needs an older pytest: see constraints.txt")


def pytest_report_header():
    import triton  # after tritemm, which may have it interpret

    return (
        f"triton {triton.__version__} of {Path(triton.__file__).parent}, torch {torch.__version__}"
    )


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config, items):
    left_out = not_drawn(items, config.option.wide, config.option.one_in)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    large = (item for item in items if item.get_closest_marker("large"))
    for item, worker in zip(large, itertools.cycle(range(LARGE_WORKERS)), strict=False):
        item.add_marker(pytest.mark.xdist_group(f"memory {worker}"))
    # Those that one worker runs one after another begin first, so that nobody waits for them.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    if torch.cuda.is_available() and not INTERPRETED:
        for item in items:
            several = item.get_closest_marker("devices")
            if several and several.args[0] > torch.cuda.device_count():
                reason = f"needs {several.args[0]} CUDA devices"
                item.add_marker(pytest.mark.skip(reason=reason))
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; kernels run in the interpreter here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def number(item, code=""):
    """One that depends on the test's name, and on the code if that is given, and on no more."""
    return zlib.crc32((code + item.nodeid).encode())


def not_drawn(items, wide, one_in, code=CODE):
    """The items that `--wide` and `--one-in` leave out; the first keeps a case of each test, the
    second what depends on Triton's release, unless the first leaves that out."""
    drawn = sorted(items, key=lambda item: number(item, code))
    places = collections.defaultdict(itertools.count)
    left_out = {
        item
        for item in drawn
        if item.get_closest_marker("wide") and next(places[item.nodeid.partition("[")[0]]) % wide
    }
    some = (item for item in items if not item.get_closest_marker("latest"))
    return left_out | {item for item in some if number(item, code) % one_in}


@pytest.fixture(autouse=True)
def _graphs():
    """Dynamo keeps what it compiled, and skips a function for good after an error in its graph."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _memory(request):
    yield from memory(request.node.get_closest_marker("large"))


def memory(mark):
    """A card that is large enough; what a test leaves in this process's cache is the others'."""
    if mark:
        has = torch.cuda.get_device_properties(0).total_memory / 1e9
        if has < mark.args[0]:
            pytest.skip(f"takes {mark.args[0]} GB of device memory, and the device has {has:.0f}")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    yield
    if not torch.cuda.is_initialized():
        return
    if torch.cuda.memory_reserved() > KEPT:
        gc.collect()
        torch.cuda.empty_cache()
    took = torch.cuda.max_memory_allocated() / 1e9
    assert mark or took <= UNMARKED, f"took {took:.1f} GB of device memory, unmarked: see `large`"


@pytest.fixture(autouse=True)
def _seed(request):
    """The same data for the same test, whatever ran before it."""
    torch.manual_seed(number(request.node))


@pytest.fixture(autouse=True)
def _precision():
    """Measurements set torch's flag for fp32 products and leave it; the next test has its own."""
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    yield
    if flags.fp32_precision != before:
        flags.fp32_precision = before
