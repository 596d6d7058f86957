"""The short launch path without a GPU: a stand-in in the place of each compiled kernel.

It runs the interpreted kernel on the bare addresses that it is given.
"""

import ctypes
import math
import threading

import torch

import tritemm
from tritemm import plan, spec
from tritemm.problem import Matrix
from tritemm.runtime import fast_path, launches, workspace


def integers(*shape, dtype=torch.float32):
    """Values whose products every type holds exactly."""
    return torch.randint(-3, 4, shape).to(dtype)


class StandIn:
    """What `binding.bind` returns, of an interpreted kernel: `multiply` of bare addresses."""

    calls = 0
    lock = threading.Lock()

    def __init__(self, multiply, places=None):
        self.multiply, self.places = multiply, places

    def placed(self, places):
        return StandIn(self.multiply, places)

    def __call__(self, stream, addresses):
        if self.places is not None:
            addresses = [addresses[place] for place in self.places if place < len(addresses)]
        with StandIn.lock:
            self.multiply(addresses)


def launching(kernel, view, config):
    """The launch of a rung."""

    def multiply(addresses):
        StandIn.calls += 1
        operands = [
            tensor_at(address, matrix, view.batches)
            for address, matrix in zip(addresses, (view.a, view.b, view.c), strict=False)
        ]
        more, spec = list(addresses[3:]), view.epilogue
        if spec.bias:
            length = view.N if spec.along == "n" else view.M
            line = Matrix(spec.bias, 1, length, (0, 0, length, 1), True)
            operands.append(tensor_at(more.pop(0), line, (1, 1))[0])
        if spec.residual:
            operands.append(tensor_at(more.pop(0), spec.residual, view.batches))
        factors = more[: spec.alpha + spec.beta]
        launch_of_rungs(kernel, view, config, *operands, *factors)

    return StandIn(multiply)


def copying(problem, operands):
    """The launch that packs `operands`."""
    target = problem.packed(operands)

    def copy(addresses):
        for name, (source, copied) in {"a": addresses[:2], "b": addresses[2:]}.items():
            if name in operands:
                given = tensor_at(source, getattr(problem, name), problem.batches)
                tensor_at(copied, getattr(target, name), problem.batches).copy_(given)

    return StandIn(copy)


launch_of_rungs, pack_of_operands = spec.TritonKernel.launch, plan.pack


def tensor_at(address, matrix, batches):
    """The matrix whose first element is at `address`."""
    sizes = (*batches, matrix.rows, matrix.cols)
    last = sum((n - 1) * step for n, step in zip(sizes, matrix.strides, strict=True))
    memory = (ctypes.c_char * ((last + 1) * matrix.dtype.itemsize)).from_address(address)
    flat = torch.frombuffer(memory, dtype=matrix.dtype)
    tensor = flat.as_strided(sizes, matrix.strides)
    return tensor if math.prod(batches) > 1 else tensor[0, 0]


def install(monkeypatch):
    """Have the short path on the CPU."""
    empty = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(fast_path, "AVAILABLE", True)
    monkeypatch.setattr(fast_path, "_device", lambda: -1)
    monkeypatch.setattr(fast_path, "_empty", empty)
    monkeypatch.setattr(fast_path, "KNOWN", {})
    monkeypatch.setattr(launches, "empty_strided", empty)
    monkeypatch.setattr(launches, "current_stream", lambda index: 0)
    zeros = torch.zeros(2**12, dtype=torch.int32)
    monkeypatch.setattr(workspace, "counters_of", lambda *_: zeros)

    def launched(self, view, config, a, b, c, *more):
        launch_of_rungs(self, view, config, a, b, c, *more)
        return launching(self, view, config)

    def packed(problem, operands, a, b):
        return *pack_of_operands(problem, operands, a, b)[:3], copying(problem, operands)

    monkeypatch.setattr(spec.TritonKernel, "launch", launched)
    monkeypatch.setattr(plan, "pack", packed)


def short_calls(function, *args, **options):
    """What it returns, and how many launches took the short path."""
    before = StandIn.calls
    result = function(*args, **options)
    return result, StandIn.calls - before


def expect(want, short, a, b, *, matmul=tritemm.matmul, **options):
    """Multiply, and hold that it gives `want` by so many launches of the short path."""
    got, launched = short_calls(matmul, a, b, **options)
    assert torch.equal(got, want) and launched == short
    return got
