"""A launch that is bound: tensor maps, and what is private to Triton and used all the same.

`launch_probe` compares the arguments of the C launcher, of kernels that are compiled for real.
"""

import os
import subprocess
import sys
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tritemm.runtime import binding, maps, triton_private

pytestmark = pytest.mark.latest


class Descriptor:
    """As much of one as maps are made of."""

    def __init__(self, base, **geometry):
        self.base = base
        self.__dict__.update(geometry)


def test_maps_hold_an_address_and_a_geometry(monkeypatch):
    made, threads = [], []
    monkeypatch.setattr(maps, "current_device", lambda: 5)
    monkeypatch.setattr(maps, "have_context", threads.append)

    def encode(descriptor):
        made.append((descriptor.base.data_ptr(), descriptor.shape))
        return made[-1]

    tensor = torch.zeros(4)
    alive = weakref.ref(tensor)
    small, large = (maps.Maps(encode, Descriptor(tensor, shape=s)) for s in ([2], [4]))
    assert small[16] == (16, [2]) == small[16]
    assert large[16] == (16, [4])
    assert len(made) == 2 and threads == [5, 5], "a thread that encodes needs the device's context"
    del tensor
    assert alive() is None
    monkeypatch.setattr(maps, "MAPS", 4)
    monkeypatch.setattr(maps.Maps, "_made", 0)
    for address in range(16, 160, 16):
        assert small[address] == (address, [2])
        assert len(small) + len(large) <= 4 + 2


# Triton's private names


class Launcher:
    """Triton's launcher: Triton 3.6 spreads a kernel's arguments out, 3.9 does not."""

    global_scratch_size = profile_scratch_size = 0

    def __init__(self, nested):
        self.nested, self.seen = nested, []
        self.launch = types.SimpleNamespace(__call__=None)

    def __call__(self, x, y, z, stream, function, metadata, note, enter, leave, *args):
        if self.nested:
            self.launch(x, y, z, stream, function, metadata, note, enter, leave, b"i", args)
        else:
            self.launch(x, y, z, stream, function, None, metadata, note, enter, leave, *args)


class Scratch(Launcher):
    global_scratch_size = 128


class Backwards(Launcher):
    def __call__(self, x, y, z, stream, function, metadata, note, enter, leave, *args):
        self.launch(x, y, z, stream, function, metadata, *reversed(args))


class Twice(Launcher):
    def __call__(self, x, y, z, stream, *rest):
        self.launch(x, y, z, stream, stream, *rest)


class Renamed(Launcher):
    def __init__(self, nested):
        self.start = print


def compiled(launcher):
    return types.SimpleNamespace(
        run=launcher, function=5, packed_metadata=(4, 1, 0), metadata=types.SimpleNamespace()
    )


@pytest.mark.parametrize("nested", [False, True])
def test_arguments_of_the_c_function_are_observed(nested):
    loaded = triton_private.Loaded.of(compiled(Launcher(nested)), 3)
    seen = []
    loaded = types.SimpleNamespace(**(vars(loaded) | {"run": lambda *args: seen.append(args)}))
    holes = [(0, 1, None), (2, 0, None)]
    binding.Call(loaded, (7,), [None, 11, None], holes)(99, (100, 200))
    (args,) = seen
    assert args[:5] == (7, 1, 1, 99, 5)
    assert list(args[-1] if nested else args[-3:]) == [200, 11, 100]


@pytest.mark.parametrize("other", [Scratch, Backwards, Twice, Renamed])
def test_what_is_not_as_expected_is_refused(other):
    with pytest.raises((triton_private.Moved, AttributeError)):
        triton_private.Loaded.of(compiled(other(False)), 3)


def test_launcher_in_python_is_refused():
    launcher = Launcher(False)
    launcher.launch = lambda *args: None
    with pytest.raises((triton_private.Moved, KeyError)):
        triton_private.Loaded.of(compiled(launcher), 3)


def test_names_that_cannot_be_settled_are_told_of(monkeypatch):
    monkeypatch.setattr(triton_private, "_needs_settling", lambda: True)
    builtin = types.SimpleNamespace(hash=None, fn=print)
    with pytest.warns(UserWarning, match="can't fix the kernels' names .*not a Python function"):
        triton_private.settle(builtin)


class Half:
    """A kernel of Triton's that is being loaded: who asks second finds no function yet."""

    function, packed_metadata, metadata = None, (4, 1, 0), types.SimpleNamespace()

    def __init__(self):
        self._run = None

    @property
    def run(self):
        if self._run is None:
            self._run = Launcher(False)
            time.sleep(0.2)
            self.function = 5
        return self._run


def test_threads_wait_until_a_kernel_is_loaded(monkeypatch):
    one, made = Half(), []
    monkeypatch.setattr(binding, "_LOADED", {})
    monkeypatch.setattr(binding, "JITFunction", types.SimpleNamespace)
    monkeypatch.setattr(binding, "compile_kernel", lambda *args: made.append(args) or one)
    parameter = types.SimpleNamespace(is_constexpr=False)
    fn = types.SimpleNamespace(arg_names=["x"], params=[parameter])
    # A key needs a hash, which a namespace doesn't have.
    monkeypatch.setattr(binding, "_kernel_key", lambda *args: ("key",))

    def bind(_):
        return binding.bind(fn, (7,), {"x": 3}, {}, (), 0)

    with ThreadPoolExecutor(4) as pool:
        calls = list(pool.map(bind, range(4)))
    assert [call._args[4] for call in calls] == [5] * 4
    assert len(made) == 1


def test_c_launcher_is_called_as_triton_calls_it():
    """Several rungs and problems, each compiled for sm_90 and launched both ways."""
    words = [sys.executable, "-m", "tests.runtime.launch_probe"]
    root = Path(__file__).resolve().parents[2]
    compiled = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(words, cwd=root, env=compiled, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "same arguments" in done.stdout
    assert " 0 kernels loaded" in done.stdout, "no kernel served two shapes"
    assert done.stdout.count("same factors") == done.stdout.count("a box of") == 3
    assert done.stdout.endswith("Triton's own launch\n"), "where a name has moved"
