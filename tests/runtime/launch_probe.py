"""Whether `tritemm.binding` calls Triton's C launcher as Triton does; needs no GPU.

Compiles rungs for sm_90 and runs Triton's own launch and the binding on recorders in the C
function's place: of eight rungs three problems each; all of all with TRITEMM_SWEEP=all. A process
of its own: interpreted kernels cannot be compiled. Prints a line per comparison; `python -m
tests.runtime.launch_probe` exits with 1 at the first difference.
"""

from __future__ import annotations

import dataclasses
import functools
import types

import torch
import triton
from triton.backends.nvidia import driver as nvidia

from tests.sweep import EVERY, drawn
from tritemm.compile import asm
from tritemm.compile import driver as compiler
from tritemm.dispatch.request import why_not
from tritemm.problem import Problem, stored
from tritemm.problem.config import Config
from tritemm.rungs import RUNGS
from tritemm.runtime import binding, maps

STREAM = 77
#: What Triton's encoder is given: the fifth is the box.
MAP = ("address", "swizzle", "size", "type", "box", "shape", "strides", "padding")
#: A rung and a config, and the lines of B in one of its boxes: all of them, or half.
BOXES = (
    ("cluster", Config(128, 112, 64, num_warps=8, num_stages=3, ORDER="grouped", CLUSTER=2), 112),
    (
        "cluster_pingpong",
        Config(64, 80, 64, num_warps=4, num_stages=3, ORDER="grouped", CLUSTER=2),
        80,
    ),
    ("cluster_split_k", Config(64, 24, 128, num_warps=4, num_stages=3, SPLIT_K=2), 24),
)
recorded: list[tuple] = []
#: In place of the C function; no Python function either.
record = functools.partial(lambda *args: recorded.append(args))


class Utils:
    """In place of Triton's C module."""

    launch = record

    def fill_tma_descriptor(self, *args):
        return tuple(tuple(x) if isinstance(x, list | torch.Size) else x for x in args)

    fill_tma_descriptor_tiled = fill_tma_descriptor

    def build_signature_metadata(self, signature):
        return bytes(len(signature))

    def load_binary(self, name, *args):
        return name, abs(hash(name)), 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": asm.DEVICES[90].shared, "sm_90": True}


class Driver(compiler._Driver):
    """An H200 that only its driver knows."""

    utils = Utils()
    launcher_cls = nvidia.CudaLauncher

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return STREAM


def install() -> None:
    """Make Triton believe in it."""
    triton.runtime.driver.set_active(Driver(90))
    maps.current_device = lambda: 0
    nvidia.library_dirs = list
    nvidia.compile_module_from_src = lambda **_: types.SimpleNamespace(launch=record)
    nvidia.PyKernelArg = lambda **fields: tuple(sorted(fields.items()))
    nvidia.ARG_CONSTEXPR, nvidia.ARG_KERNEL, nvidia.ARG_TUPLE = range(3)


def normal(value):
    """What the C function reads: a tensor is its address, nothing is compared by identity."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if isinstance(value, tuple | list):
        return tuple(normal(v) for v in value)
    if "Hook" in type(value).__name__ or "LazyDict" in type(value).__name__:
        return None  # no hook is set: Triton passes an empty chain, and the name of the kernel
    return value


def operand(rows, cols, layout, batch=()):
    return stored(torch.zeros, *batch, rows, cols, layout=layout, dtype=torch.bfloat16)


def problems():
    for M, N, K, layout, batch in (
        (256, 512, 192, "NN", ()),
        (272, 528, 192, "NN", ()),  # the same compiled kernel
        (255, 510, 200, "NT", ()),
        (128, 1, 64, "TN", (3,)),
    ):
        a, b = operand(M, K, layout[0], batch), operand(K, N, layout[1], batch)
        yield a, b, operand(M, N, "N", batch)


def small(kernel, problem):
    """A config whose tile is soon compiled, if the rung takes it: arguments are the same."""
    last = kernel.configs(problem)[-1]
    less = dataclasses.replace(
        last, BLOCK_M=min(last.BLOCK_M, 64), BLOCK_N=min(last.BLOCK_N, 64), num_warps=4
    )
    return last if why_not(kernel, less.view(problem), less) else less


def compare(kernel, a, b, c) -> str:
    """One line; raises AssertionError where the two launches differ."""
    problem = Problem.of(a, b, c, device=asm.DEVICES[90])
    reason = kernel.why_not(problem)
    if reason:
        return f"{kernel.name}: {reason}"
    config = small(kernel, problem)
    operands = kernel._operands(problem, config, a, b, c)
    call = kernel._prepare(problem, config, operands)
    before = len(binding._LOADED)
    short = binding.bind(kernel.fn, call.grid, call.args, call.options, operands, 0)
    if short is None:
        raise AssertionError(f"{kernel.name}: the binding is not taken")
    loaded = len(binding._LOADED) - before
    recorded.clear()
    kernel.fn[call.grid](**call.args, **call.options)
    for _ in range(2):  # the second time with the tensor maps of the first
        short(STREAM, [t.data_ptr() for t in operands])
    moved = [t.clone() for t in operands]
    short(STREAM, [t.data_ptr() for t in moved])
    own, first, second, third = (normal(args) for args in recorded)
    assert own == first == second, f"{kernel.name}:\n{own}\n{first}\n{second}"
    assert third != own, "other addresses, the same arguments"
    return f"{kernel.name}: same arguments, {len(own)}; {loaded} kernels loaded"


def compare_factors(kernel) -> str:
    """One line, of a bias and a residual: the factors of each launch are its own."""
    a, b, c = next(problems())
    bias, residual = torch.zeros(c.shape[1], dtype=c.dtype), torch.zeros_like(c)
    fields = {"residual": residual, "bias": bias.dtype, "alpha": True, "beta": True}
    problem = Problem.of(a, b, c, device=asm.DEVICES[90], **fields)
    config = small(kernel, problem)
    recorded.clear()
    bound = []
    for factors in ((2.0, 3.0), (0.5, -1.0)):
        operands = kernel._operands(problem, config, a, b, c, bias, residual, *factors)
        call = kernel._prepare(problem, config, operands)
        kernel.fn[call.grid](**call.args, **call.options)
        bound.append(kernel._bind(problem, config, operands))
        bound[-1](STREAM, [t if isinstance(t, float) else t.data_ptr() for t in operands])
    own, same, others_own, other = (normal(args) for args in recorded)
    assert own == same and others_own == other, f"{kernel.name}: {recorded}"
    assert own != other and bound[0] is bound[1]
    return f"{kernel.name}: same factors"


def compare_boxes(rung: str, config: Config, lines: int) -> str:
    """One line: of a tile of B whose lines are no power of two, the map has the box, in both."""
    a, b = operand(640, 192, "N"), operand(192, 640, "T")
    c = operand(640, 640, "N")
    problem = Problem.of(a, b, c, device=asm.DEVICES[90])
    kernel = asm.find(rung)
    assert kernel.config_why_not(problem, config) is None, rung
    operands = kernel._operands(problem, config, a, b, c)
    call = kernel._prepare(problem, config, operands)
    recorded.clear()
    programs = kernel.clusters(config)
    binding.compile_kernel(kernel.fn, call.grid, call.args, call.options, programs)
    kernel.fn[call.grid](**call.args, **call.options)
    kernel._bind(problem, config, operands)(STREAM, [t.data_ptr() for t in operands])
    own, ours = (normal(args) for args in recorded)
    assert own == ours, f"{rung}:\n{own}\n{ours}"
    boxes = [each[4] for each in (own[-1] if isinstance(own[-1], tuple) else own)
             if isinstance(each, tuple) and len(each) == len(MAP)]  # fmt: skip
    assert (lines, 64) in boxes, f"{rung}: {boxes}"
    return f"{rung}: a box of {lines} lines"


def compare_moved() -> str:
    """One line: without one of Triton's names, the launch of what isn't loaded is its own."""
    del nvidia.make_tensordesc_arg
    binding._LOADED.clear()
    a, b, c = next(problems())
    problem = Problem.of(a, b, c, device=asm.DEVICES[90])
    kernel = asm.find("tma")
    call = kernel.prepare(problem, kernel.configs(problem)[-1], a, b, c)
    for _ in range(2):
        short = binding.bind(kernel.fn, call.grid, call.args, call.options, (a, b, c), 0)
        assert short is None, "the binding is taken"
    return "tma: Triton's own launch"


if __name__ == "__main__":
    install()
    for turn, kernel in enumerate(drawn((k for k in RUNGS if hasattr(k, "fn")), 8)):
        *alike, ragged, batched = problems()
        others = [ragged, batched] if EVERY else [batched if turn % 2 else ragged]
        for operands in alike + others:
            print(compare(kernel, *operands), flush=True)
    for rung, config, lines in BOXES:
        print(compare_boxes(rung, config, lines), flush=True)
    for name in ("pipelined", "tma", "split_k"):
        print(compare_factors(asm.find(name)), flush=True)
    print(compare_moved())
