"""The short launch path: when it is taken, what it keeps, and that it gives what the long one does.

Where there is no GPU, `stand_in` puts a stand-in in the place of the compiled kernel: it runs the
interpreted one on the bare addresses that it is given.
"""

import contextlib
import ctypes
import gc
import math
import sys
import threading
import weakref

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tritemm import plan, rungs, spec
from tritemm.api import matmul as api
from tritemm.dispatch import Choice
from tritemm.op import derivatives
from tritemm.problem import INTERPRETED, EpilogueInputs, Matrix
from tritemm.runtime import fast_path, launches, triton_private, workspace
from tritemm.runtime.bounded import Bounded

pytestmark = pytest.mark.latest

cpu_only = pytest.mark.skipif(not INTERPRETED, reason="stands in for a compiled kernel")


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


@pytest.fixture
def stand_in(monkeypatch):
    """The short path on the CPU."""
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
        return *pack_of_operands(problem, operands, a, b)[:2], copying(problem, operands)

    monkeypatch.setattr(spec.TritonKernel, "launch", launched)
    monkeypatch.setattr(plan, "pack", packed)


def short_calls(function, *args, **options):
    """What it returns, and how many launches took the short path."""
    before = StandIn.calls
    result = function(*args, **options)
    return result, StandIn.calls - before


# What the short path computes

SHAPES = [
    ((33, 40), (40, 24)),
    ((40,), (40, 24)),
    ((33, 40), (40,)),
    ((40,), (40,)),
    ((3, 33, 40), (3, 40, 24)),
    ((3, 33, 40), (40, 24)),
    ((2, 1, 5, 8), (3, 8, 4)),
]


@cpu_only
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_second_call_is_short_and_right(stand_in, shapes):
    for call in range(3):
        a, b = (integers(*shape, dtype=torch.float16) for shape in shapes)
        got, short = short_calls(tritemm.matmul, a, b)
        assert torch.equal(got.double(), torch.matmul(a.double(), b.double()))
        assert got.is_contiguous() and got.dtype == torch.float16
        assert short == (call > 0)


@cpu_only
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_out(stand_in, shapes):
    a, b = (integers(*shape) for shape in shapes)
    out = torch.full(torch.matmul(a, b).shape, torch.nan)
    for call in range(3):
        version = out._version
        got, short = short_calls(tritemm.matmul, a, b, out=out)
        assert got is out and short == (call > 0)
        assert out._version > version
        assert torch.equal(out, torch.matmul(a, b))
        out.fill_(torch.nan)


ENDINGS = {
    "bias": lambda m, n: {"bias": integers(n)},
    "activation": lambda m, n: {"bias": integers(n), "activation": "relu"},
    "residual": lambda m, n: {"residual": integers(m, n), "beta": 2},
    "broadcast": lambda m, n: {"residual": integers(n), "alpha": 0.5},
    "all": lambda m, n: {"bias": integers(n), "residual": integers(n, m).mT, "activation": "relu"},
}


def torchs(a, b, bias=0, residual=0, activation=None, alpha=1, beta=1):
    sums = alpha * (a @ b) + bias
    return (sums.relu() if activation else sums) + beta * residual


@cpu_only
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_what_follows_the_product(stand_in, ending):
    out = torch.empty(2, 33, 24)
    for call in range(3):
        a, b, more = integers(2, 33, 40), integers(40, 24), ending(33, 24)
        want = torchs(a, b, **more)
        got, short = short_calls(tritemm.matmul, a, b, **more)
        assert torch.equal(got, want) and short == (call > 0)
        got, short = short_calls(tritemm.matmul, a, b, out=out, **more)
        assert got is out and torch.equal(out, want) and short == (call > 0)


def gated(a, b, bias):
    gate, up = (a @ b + bias).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


@cpu_only
@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_gated_activation_that_torch_makes(stand_in, monkeypatch, needs_grad):
    for call in range(3):
        a, b, bias = integers(2, 33, 40), integers(40, 24), integers(24)
        b.requires_grad_(needs_grad)
        if call:
            monkeypatch.setattr("tritemm.op.gemm.GEMM", None)
        got, short = short_calls(tritemm.matmul, a, b, bias=bias, activation="swiglu")
        assert torch.equal(got, gated(a, b, bias)) and short == (call > 0)
        assert got.requires_grad is needs_grad


def finished(kernel, view, config, a, b, c, *more):
    """In the place of a rung's launch: what it computes, by torch."""
    given = dict(zip(view.epilogue.arguments, more, strict=True))
    then = EpilogueInputs(
        given.get("bias_ptr"), given.get("residual_ptr"), view.epilogue.activation,
        given.get("alpha", 1.0), given.get("beta", 1.0),
    )  # fmt: skip
    c.copy_(then.of(a @ b, c.dtype))


@cpu_only
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_gated_activation_that_a_kernel_makes(stand_in, monkeypatch, batch):
    """One launch, of half as many columns as the product has."""
    rung = rungs.find("warp_specialized")
    monkeypatch.setattr(sys.modules[__name__], "launch_of_rungs", finished)
    monkeypatch.setattr(
        plan.dispatch, "choose_whole",
        lambda problem, word: Choice(problem, rung, tritemm.Config(128, 256, 64), "a test's"),
    )  # fmt: skip
    out = torch.empty(*batch, 33, 12)
    for call in range(3):
        a, b, bias = integers(*batch, 33, 40), integers(*batch, 40, 24), integers(24)
        residual = integers(12)
        if call:
            monkeypatch.setattr("tritemm.op.gemm.GEMM", None)
        more = {"bias": bias, "activation": "swiglu"}
        got, short = short_calls(tritemm.matmul, a, b, residual=residual, beta=-2, **more)
        assert torch.equal(got, gated(a, b, bias) - 2 * residual) and short == (call > 0)
        got, short = short_calls(tritemm.matmul, a, b, out=out, **more)
        assert got is out and torch.equal(out, gated(a, b, bias)) and short == (call > 0)


@cpu_only
@pytest.mark.parametrize(
    "more", [{"activation": "relu"}, {"bias": 1}, {"alpha": 2}, {"bias": 1, "activation": "relu"}]
)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_the_dispatcher_is_passed_by(stand_in, monkeypatch, more, needs_grad):
    """From the second call on, also of a kind that plain products have made known."""
    a, b = integers(33, 40), integers(40, 24)
    more = {name: integers(24) if name == "bias" else value for name, value in more.items()}
    if needs_grad:
        b.requires_grad_()
    tritemm.matmul(a, b).sum()
    for call in range(3):
        if call:
            monkeypatch.setattr("tritemm.op.gemm.GEMM", None)
        got = tritemm.matmul(a, b, **more)
        assert torch.equal(got, torchs(a, b, **more))
        if needs_grad:
            b.grad = None
            got.sum().backward()
            (want,) = torch.autograd.grad(torchs(a, b, **more).sum(), b)
            assert torch.equal(b.grad, want)


@cpu_only
def test_factors_are_no_kinds(stand_in):
    """But for 0 and 1: those that change at every call are given to what was prepared once."""
    a, b, c = integers(33, 40), integers(40, 24).requires_grad_(), integers(24)
    kinds = []
    for call, (alpha, beta) in enumerate([(2, 3), (-1, 0.5), (4.0, -2), (0.25, 7)]):
        with torch.no_grad():
            got, short = short_calls(tritemm.matmul, a, b, residual=c, alpha=alpha, beta=beta)
            assert torch.equal(got, alpha * (a @ b) + beta * c) and short == (call > 0)
        got, short = short_calls(tritemm.matmul, a, b, residual=c, alpha=alpha, beta=beta)
        assert torch.equal(got, alpha * (a @ b) + beta * c) and short == 1
        got, short = short_calls(tritemm.matmul, a, b, alpha=alpha)
        assert torch.equal(got, alpha * (a @ b)) and short == (call > 0)
        for given in ({"alpha": alpha}, {"beta": beta}, {"alpha": alpha, "beta": beta}):
            want = torch.addmm(c, a, b, **given)
            with tritemm.enabled():
                got, short = short_calls(torch.addmm, c, a, b, **given)
            assert torch.equal(got, want) and short == (call > 0 or len(given) == 2)
        kinds.append(set(fast_path.KNOWN))
    assert kinds[0] == kinds[-1]
    for alpha, beta in ((1, 3), (2, 1), (1, 1), (0, 3), (2, 0), (0, 0), (math.nan, 2)):
        for _ in range(2):
            got = tritemm.matmul(a, b, residual=c, alpha=alpha, beta=beta)
            assert torch.allclose(got, alpha * (a @ b) + beta * c, equal_nan=True)


@cpu_only
def test_vectors_with_a_residual(stand_in):
    a, b = integers(40), integers(40, 24)
    for _ in range(3):
        residual = integers(24)
        got = tritemm.matmul(a, b, residual=residual)
        assert torch.equal(got, a @ b + residual)


@cpu_only
def test_a_bias_or_a_residual_of_another_kind_is_checked_anew(stand_in):
    a, b = integers(33, 40), integers(40, 24)
    for _ in range(2):
        tritemm.matmul(a, b, bias=integers(24), residual=integers(33, 24))
    for wrong in (
        {"bias": integers(25)},
        {"bias": integers(1, 24)},
        {"bias": integers(24).to("meta")},
        {"residual": integers(33, 25)},
        {"residual": integers(33, 24).to("meta")},
    ):
        with pytest.raises(RuntimeError, match=r"has shape|is on meta"):
            tritemm.matmul(a, b, **{"bias": integers(24), "residual": integers(33, 24), **wrong})


WRONG = {
    "an activation": {"activation": "sine"},
    "no name": {"activation": 3},
    "names": {"activation": ["relu"]},
    "a large alpha": {"alpha": 10**400},
    "columns of a bias": {"bias": integers(7)},
    "rows of a bias": {"bias": integers(1, 6)},
    "a bias's type": {"bias": integers(6).bool()},
    "a bias's layout": {"bias": integers(6).to_sparse()},
    "a bias elsewhere": {"bias": integers(6).to("meta")},
    "no bias": {"bias": 1.0},
    "columns of a residual": {"residual": integers(4, 7)},
    "more dimensions": {"residual": integers(2, 4, 6)},
    "a residual's type": {"residual": integers(6).to(torch.complex64)},
    "a residual's layout": {"residual": integers(4, 6).to_sparse()},
    "a residual elsewhere": {"residual": integers(4, 6).to("meta")},
    "a residual that counts for nothing": {"residual": integers(3, 6), "beta": 0},
    "no residual": {"residual": 2},
    "a word": {"alpha": "2"},
    "another": {"residual": integers(6), "beta": "2"},
    "nothing": {"alpha": None},
    "a complex number": {"alpha": 2j},
    "several numbers": {"alpha": integers(2)},
    "a number with a gradient": {"alpha": torch.ones((), requires_grad=True)},
    "beta of nothing": {"beta": 2},
    "no beta of nothing": {"beta": 0},
    "beta of no tensor": {"out": "C", "beta": 2},
    "no tensor": {"out": "C", "bias": integers(6)},
    "a smaller sum": {"out": torch.zeros(6), "beta": 1},
    "an out's type": {"out": torch.zeros(4, 6).double(), "bias": integers(6)},
    "a sum's type": {"out": torch.zeros(4, 6).double(), "beta": 1},
    "a gradient of out": {"out": torch.zeros(4, 6, requires_grad=True), "bias": integers(6)},
}


@cpu_only
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_alike(stand_in, monkeypatch, wrong, needs_grad):
    """Of a kind that was made before, and where the operators do it all."""
    a, b = integers(4, 8), integers(8, 6).requires_grad_(needs_grad)
    for _ in range(2):
        tritemm.matmul(a, b)
        for more in ({"bias": integers(6)}, {"residual": integers(6)}):
            tritemm.matmul(a, b, **more)
            tritemm.matmul(a, b, activation="relu", **more)
            tritemm.matmul(a, b.detach(), out=torch.zeros(4, 6), **more)
    for more in ({}, {"activation": "relu"}):
        said = []
        for available in (True, False):
            monkeypatch.setattr(fast_path, "AVAILABLE", available)
            with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
                tritemm.matmul(a, b, **(more | wrong))
            said.append((error.type, str(error.value)))
        assert said[0] == said[1]


@cpu_only
def test_an_odd_number_of_columns_has_no_pairs(stand_in):
    """Of a product that was made before, with a gradient and without."""
    a, b = integers(4, 8), integers(8, 3)
    for needs_grad in (False, True):
        b.requires_grad_(needs_grad)
        for _ in range(2):
            tritemm.matmul(a, b)
        with pytest.raises(RuntimeError, match="has 3 columns; a gated activation takes pairs"):
            tritemm.matmul(a, b, activation="swiglu")


@cpu_only
def test_it_is_added_to_what_is_there(stand_in):
    total = torch.zeros(33, 24)
    a, b = integers(33, 40), integers(40, 24)
    for call in range(3):
        _, short = short_calls(tritemm.matmul, a, b, out=total, beta=1)
        assert short == (call > 0)
    assert torch.equal(total, 3 * (a @ b)) and total._version == 3


@cpu_only
def test_what_is_added_overlaps_out(stand_in):
    memory = integers(40 * 24)
    a, b = integers(33, 40), integers(40, 24)
    for _ in range(2):
        residual, out = memory[:792].view(33, 24), memory[24:816].view(33, 24)
        want = residual + a @ b
        assert torch.equal(tritemm.matmul(a, b, residual=residual, out=out), want)


@cpu_only
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_gradients_of_what_follows(stand_in, ending):
    for call in range(3):
        a, b, more = integers(33, 40), integers(40, 24), ending(33, 24)
        tensors = [a, b, *(t for t in more.values() if isinstance(t, torch.Tensor))]
        for t in tensors:
            t.requires_grad_()
        got, short = short_calls(tritemm.matmul, a, b, **more)
        want = torchs(a, b, **more)
        assert torch.equal(got, want)
        assert short == (call > 0)
        grad = integers(33, 24)
        found, short = short_calls(torch.autograd.grad, got, tensors, grad)
        for mine, theirs in zip(found, torch.autograd.grad(want, tensors, grad), strict=True):
            assert torch.equal(mine, theirs)
        assert short == 2 * (call > 0)


SUMS = {
    "bias": ((6,), {}),
    "a residual": ((4, 6), {}),
    "a column": ((4, 1), {"alpha": 3}),
    "one number": ((), {"beta": 2, "alpha": 0.5}),
    "nothing": ((6,), {"beta": 0}),
    "nothing of twice": ((4, 6), {"beta": 0.0, "alpha": 2}),
}


@cpu_only
@pytest.mark.parametrize(("shape", "factors"), SUMS.values(), ids=SUMS)
def test_torchs_sums_use_the_prepared_launch(stand_in, monkeypatch, shape, factors):
    """Inside `enabled`, from the second of a kind on without looking for what it is made of."""
    for call in range(4):
        if call == 2:
            monkeypatch.setattr(EpilogueInputs, "made", None)
        c, a, b = integers(*shape), integers(4, 8), integers(8, 6).requires_grad_()
        want = torch.addmm(c, a, b, **factors)
        with tritemm.enabled() as report:
            got, short = short_calls(torch.addmm, c, a, b, **factors)
        assert torch.equal(got, want) and got.requires_grad and report.ran == {"addmm": 1}
        assert short == (call > 0)


@cpu_only
def test_sums_of_other_kinds(stand_in):
    """A bias that has to be copied first, other factors, another type, and what torch refuses."""
    memory, a, b = integers(7), integers(4, 8), integers(8, 6)
    for _ in range(3):
        for bias in (memory[:6], memory[1:]):
            for given in ({}, {"alpha": 2}, {"beta": 2}, {"beta": 1.0}):
                want = torch.addmm(bias, a, b, **given)
                with tritemm.enabled():
                    assert torch.equal(torch.addmm(bias, a, b, **given), want)
    for wrong in (
        lambda: torch.addmm(memory[:5], a, b),
        lambda: torch.addmm(memory[:6].double(), a, b),
        lambda: torch.addmm(memory[:6], a[None], b[None]),
        lambda: torch.baddbmm(memory[:6], a, b),
        lambda: torch.addmm(memory[:6], a, b, beta=1 + 2j),
    ):
        with tritemm.enabled(), pytest.raises((RuntimeError, IndexError)):
            wrong()


@cpu_only
def test_strides_and_offsets_are_kinds(stand_in):
    """Each way to store the same values is a kind of its own, and right."""
    values = integers(64, 64)
    stores = [
        values,
        values.mT.contiguous().mT,
        torch.cat([torch.zeros(1), values.flatten()])[1:].view(64, 64),
        torch.stack([values, values], -1)[..., 0],
    ]
    for a in stores:
        for _ in range(2):
            got, short = short_calls(tritemm.matmul, a, values)
            assert torch.equal(got, values @ values)
    assert short == 1
    assert len(fast_path.KNOWN) == len(stores)


@cpu_only
def test_one_tensor_twice(stand_in):
    a = integers(40, 40)
    for _ in range(2):
        assert torch.equal(tritemm.matmul(a, a), a @ a)
        assert torch.equal(tritemm.matmul(a, a.mT), a @ a.mT)


@cpu_only
def test_out_that_overlaps_an_operand(stand_in):
    """Apart and overlapping are one kind: it is looked at in every call."""
    storage = integers(4 * 32 * 32)
    a, b, apart = (storage[i * 1024 : (i + 1) * 1024].view(32, 32) for i in range(3))
    for _ in range(2):
        want = a @ b
        assert torch.equal(tritemm.matmul(a, b, out=apart), want)
    want = a @ b
    got, short = short_calls(tritemm.matmul, a, b, out=b)
    assert torch.equal(got, want) and short == 0


@cpu_only
def test_out_keeps_its_checks(stand_in):
    a = integers(16, 16)
    for _ in range(2):
        tritemm.matmul(a, a, out=torch.empty(16, 16))
    with pytest.raises(RuntimeError, match="dtype"):
        tritemm.matmul(a, a, out=torch.empty(16, 16, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="requires grad"):
        tritemm.matmul(a, a, out=torch.empty(16, 16, requires_grad=True))
    with pytest.raises(RuntimeError, match="single memory"):
        tritemm.matmul(a, a, out=torch.empty(16).expand(16, 16))
    with pytest.warns(UserWarning, match="resized"):
        assert tritemm.matmul(a, a, out=torch.empty(4, 4)).shape == (16, 16)


@cpu_only
def test_options_are_kinds(stand_in):
    a = integers(16, 16, dtype=torch.float16)
    for options in ({}, {"out_dtype": torch.float32}, {"accumulate": torch.float16}) * 2:
        got = tritemm.matmul(a, a, **options)
        assert got.dtype == options.get("out_dtype", torch.float16)
        assert torch.equal(got.double(), a.double() @ a.double())
    assert len(fast_path.KNOWN) == 3


@cpu_only
def test_torch_flag_is_read_at_every_call(stand_in):
    a = integers(16, 16)
    before = torch.get_float32_matmul_precision()
    try:
        for word in ("highest", "high") * 2:
            torch.set_float32_matmul_precision(word)
            tritemm.matmul(a, a)
    finally:
        torch.set_float32_matmul_precision(before)
    assert sorted(p.problem.precision for p in fast_path.KNOWN.values()) == ["ieee", "tf32"]


@cpu_only
def test_a_config_is_part_of_the_kind(stand_in):
    a = integers(32, 32)
    for config in (
        tritemm.Config(16, 16, 16),
        tritemm.Config(32, 16, 16),
        {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32},  # can't be a key: the long way
    ):
        for _ in range(2):
            assert torch.equal(tritemm.matmul(a, a, kernel="naive", config=config), a @ a)


@cpu_only
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("pack", ["", "a", "b", "ab"])
def test_packed_and_swapped(stand_in, pack, swap):
    """Odd pitches that TMA can't take are packed in every call, and only those asked for."""
    storage = [integers(24, 41, dtype=torch.float16), integers(40, 37, dtype=torch.float16)]
    a, b = (t[:, :n] for t, n in zip(storage, (40, 32), strict=True))
    a = a if "a" in pack else a.contiguous()
    b = b if "b" in pack else b.contiguous()
    config = tritemm.Config(32, 32, 32, SWAP=swap, PACK=pack)
    for call in range(3):
        got, short = short_calls(tritemm.matmul, a, b, kernel="tma", config=config)
        assert torch.equal(got.double(), a.double() @ b.double())
        assert short == (call > 0)
        a.add_(1)
    for call in range(2):
        more = {"alpha": 2 + call, "beta": 3 - 7 * call, "residual": integers(24, 32).half()}
        got, short = short_calls(tritemm.matmul, a, b, kernel="tma", config=config, **more)
        want = more["alpha"] * (a.double() @ b.double()) + more["beta"] * more["residual"].double()
        assert torch.equal(got, want.half()) and short == (call > 0)


@cpu_only
def test_a_new_kernel_word_still_raises(stand_in):
    a = integers(16, 16)
    for _ in range(2):
        with pytest.raises(ValueError, match="no rung is called"):
            tritemm.matmul(a, a, kernel="no such rung")
        with pytest.raises(TypeError):
            tritemm.matmul(a, "no tensor")


# When it is not taken


class Subclass(torch.Tensor):
    """A tensor that torch asks about every function."""


def under(context):
    def call(a, b):
        with context:
            return tritemm.matmul(a, b)

    return call


UNUSUAL = {
    "autocast": lambda a, b: under(torch.autocast("cpu", torch.bfloat16))(a, b).float(),
    "flop counter": under(FlopCounterMode(display=False)),
    "profiler": under(torch.profiler.profile()),
    "subclass": lambda a, b: tritemm.matmul(a.as_subclass(Subclass), b).as_subclass(torch.Tensor),
    "vmap": lambda a, b: torch.func.vmap(tritemm.matmul, (None, 0))(a, b[None])[0],
    "transform": lambda a, b: through_grad(a, b),
    "functionalize": lambda a, b: torch.func.functionalize(tritemm.matmul)(a, b),
    "jit trace": lambda a, b: traced(a, b),
    "negative bit": lambda a, b: -tritemm.matmul(torch._neg_view(a), b),
    "compile": lambda a, b: torch.compile(tritemm.matmul, fullgraph=True, backend="eager")(a, b),
    "hook": lambda a, b: hooked(a, b),
}


def through_grad(a, b):
    """The product inside of a transform that differentiates."""
    kept = []

    def loss(x):
        kept.append(tritemm.matmul(a, x))
        return kept[0].sum()

    torch.func.grad(loss)(b)
    return a @ b


def traced(a, b):
    """By what `torch.jit.trace` recorded; the product must be part of it."""
    recorded = torch.jit.trace(tritemm.matmul, (a, b), check_trace=False)
    assert "tritemm::gemm" in str(recorded.graph)
    return recorded(a, b)


def hooked(a, b):
    """Under a launch hook, as Triton's profiler sets one."""
    hook = triton_private.knobs.runtime.launch_enter_hook
    hook.add(print)
    try:
        return tritemm.matmul(a, b)
    finally:
        hook.remove(print)


@cpu_only
@pytest.mark.parametrize("how", UNUSUAL)
def test_what_torch_must_see_goes_the_long_way(stand_in, how, monkeypatch):
    if how == "autocast":  # of the CPU here, where tensors are
        monkeypatch.setattr(fast_path, "_autocast", torch.is_autocast_cpu_enabled)
    a, b = integers(24, 32), integers(32, 24)
    for _ in range(2):
        tritemm.matmul(a, b)
    made, known = [], api._known
    monkeypatch.setattr(
        "tritemm.api.matmul._known", lambda *args: made.append(known(*args)) or made[-1]
    )
    assert torch.equal(UNUSUAL[how](a.clone(), b.clone()), a @ b)
    assert not any(result is not None for result in made)
    tritemm.matmul(a, b)
    assert made[-1] is not None


@cpu_only
def test_function_modes_see_every_call(stand_in):
    seen = []

    class Record(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    a = integers(24, 24)
    with Record():
        for _ in range(3):
            assert torch.equal(tritemm.matmul(a, a), a @ a)
    assert seen.count(tritemm.matmul) == 3


@cpu_only
def test_fake_tensors_touch_nothing(stand_in):
    a = integers(24, 24)
    for _ in range(2):
        tritemm.matmul(a, a)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        got, short = short_calls(tritemm.matmul, mode.from_tensor(a), mode.from_tensor(a))
    assert short == 0 and got.shape == (24, 24) and type(got).__name__ == "FakeTensor"


@cpu_only
def test_parameters_without_grad_are_plain(stand_in):
    w = torch.nn.Parameter(integers(16, 16))
    with torch.no_grad():
        for call in range(2):
            got, short = short_calls(tritemm.matmul, w, w)
            assert short == call and not got.requires_grad
    with torch.inference_mode():
        x = integers(8, 16)
        for call in range(2):
            got, short = short_calls(tritemm.matmul, x, w)
            assert short == call and got.is_inference()


GRADIENTS = {
    "rows": lambda a, w: tritemm.matmul(a, w),
    "a frozen weight": lambda a, w: tritemm.matmul(a, w.detach()),
    "a frozen input": lambda a, w: tritemm.matmul(a.detach(), w),
    "both by columns": lambda a, w: tritemm.matmul(a.mT.contiguous().mT, w.mT.contiguous().mT),
    "a batch of rows": lambda a, w: tritemm.matmul(torch.stack((a, 2 * a)), w),
    "a batch of both": lambda a, w: tritemm.matmul(a[None], torch.stack((w, 2 * w))),
    "another type": lambda a, w: tritemm.matmul(a.half(), w.half(), out_dtype=torch.float32),
    "strided": lambda a, w: tritemm.matmul(a[:, ::2], w[::2]),
}


@cpu_only
@pytest.mark.parametrize("how", GRADIENTS)
def test_gradients_use_the_prepared_launch(stand_in, how):
    """From the third time on for all; whatever the gradient that comes in looks like."""
    function = GRADIENTS[how]
    a, w = integers(8, 16).requires_grad_(), integers(16, 24).requires_grad_()
    for call in range(5):
        y, short = short_calls(function, a, w)
        assert short == (call > 0)
        grad = integers(*y.shape, dtype=y.dtype)
        grad = grad.mT.contiguous().mT if call == 4 else grad
        needy = [t for t in (a, w) if t.requires_grad]
        got, short = short_calls(torch.autograd.grad, y, needy, grad, allow_unused=True)
        assert short == 2 - how.startswith("a frozen") or call in (0, 1, 4)
        with monkeypatched_matmul():
            want = torch.autograd.grad(function(a, w), needy, grad, allow_unused=True)
        for x, z in zip(got, want, strict=True):
            assert (x is None and z is None) or torch.equal(x, z)


@cpu_only
def test_gradients_of_one_memory(stand_in):
    """The gradient that comes in may be an operand's memory: which is which is not seen by it."""
    a, w = integers(16, 16).requires_grad_(), integers(16, 16).requires_grad_()
    for same in (True, True, False, False):
        y = tritemm.matmul(a, w)
        grad = a.detach() if same else integers(16, 16)
        grad_a, grad_w = torch.autograd.grad(y, (a, w), grad)
        assert torch.equal(grad_a, grad @ w.mT) and torch.equal(grad_w, a.mT @ grad)


@cpu_only
def test_one_gradient_is_prepared_without_the_other(stand_in, monkeypatch):
    """That of an operand which was broadcast is a sum besides."""
    worked_out, gradient = [], derivatives._gradient
    monkeypatch.setattr(
        derivatives, "_gradient", lambda i, *rest: worked_out.append(i) or gradient(i, *rest)
    )
    a, w = integers(8, 16).requires_grad_(), integers(3, 16, 24).requires_grad_()
    for _ in range(5):
        worked_out.clear()
        y = tritemm.matmul(a, w)
        grad = integers(*y.shape)
        grad_a, grad_w = torch.autograd.grad(y, (a, w), grad)
        assert torch.equal(grad_a, (grad @ w.mT).sum(0)) and torch.equal(grad_w, a.mT @ grad)
    assert worked_out == [0]


@cpu_only
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("change", [torch.Tensor.double, lambda t: t[:, :5]])
def test_an_operand_that_is_another_by_the_time_of_its_gradient(stand_in, calls, change):
    """As torch raises; by the operators at first, and where the launches are prepared."""
    a, w = integers(8, 16).requires_grad_(), torch.nn.Parameter(integers(16, 24))
    for _ in range(calls):
        y = tritemm.matmul(a, w)
        torch.autograd.grad(y, a, torch.ones_like(y), retain_graph=True)
    w.data = change(w.data)
    with pytest.raises(RuntimeError, match=r"first operand needs the second as .* \[16, 24\]"):
        torch.autograd.grad(y, a, torch.ones_like(y))


@cpu_only
def test_tracing_before_dispatch_sees_the_product(stand_in, monkeypatch):
    """A launch is in none of torch's modes, which are a thread's own."""
    launched = StandIn.__call__

    def elsewhere(*args):
        thread = threading.Thread(target=launched, args=args)
        thread.start()
        thread.join()

    monkeypatch.setattr(StandIn, "__call__", elsewhere)
    a, w, x = integers(8, 16), integers(16, 24), integers(8, 16)
    for _ in range(2):
        tritemm.matmul(a, w)
    tracer = make_fx(lambda a, w: tritemm.matmul(a, w), pre_dispatch=True, tracing_mode="real")
    graph = tracer(a, w)
    assert torch.equal(graph(x, w), x @ w)


@cpu_only
def test_gradients_of_zeros_that_have_no_memory(stand_in):
    a, w = integers(8, 16).requires_grad_(), integers(16, 24).requires_grad_()
    for _ in range(3):
        y = tritemm.matmul(a, w)
        for grad in (integers(8, 24), torch._efficientzerotensor((8, 24))):
            grad_a, grad_w = torch.autograd.grad(y, (a, w), grad, retain_graph=True)
            assert torch.equal(grad_a, grad @ w.mT) and torch.equal(grad_w, a.mT @ grad)


@contextlib.contextmanager
def monkeypatched_matmul():
    """torch's product in the place of tritemm's."""
    original = tritemm.matmul
    tritemm.matmul = lambda a, b, out_dtype=None: torch.matmul(a.float(), b.float())
    try:
        yield
    finally:
        tritemm.matmul = original


@cpu_only
def test_without_torchs_names_the_operators_do_it(stand_in, monkeypatch):
    monkeypatch.setattr(fast_path, "AVAILABLE", False)
    a = integers(16, 16)
    for _ in range(2):
        assert torch.equal(tritemm.matmul(a, a), a @ a)


# What is kept


@cpu_only
def test_nothing_holds_tensors(stand_in):
    a, b = integers(16, 24), integers(24, 16)
    results = [tritemm.matmul(a, b) for _ in range(3)]
    out = torch.empty(16, 16)
    for _ in range(2):
        tritemm.matmul(a, b, out=out)
    alive = [weakref.ref(t) for t in (a, b, out, *results)]
    del a, b, out, results
    gc.collect()
    assert not any(ref() is not None for ref in alive)


@cpu_only
def test_kinds_are_bounded_and_forgotten(stand_in, monkeypatch):
    monkeypatch.setattr(fast_path, "KNOWN", Bounded(3))
    for rows in range(1, 8):
        a = integers(rows, 8)
        assert torch.equal(tritemm.matmul(a, a.mT), a @ a.mT)
    assert 0 < len(fast_path.KNOWN) <= 3
    plan.forget()
    assert not fast_path.KNOWN


@cpu_only
def test_threads(stand_in):
    """Kinds are made and used by several threads at once."""
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for step in range(12):
            a = torch.randint(-3, 4, (8 * (1 + step % 3), 16), generator=generator).float()
            if not torch.equal(tritemm.matmul(a, a.mT), a @ a.mT):
                wrong.append((seed, step))

    original, lock = spec.TritonKernel.launch, threading.RLock()

    def one_at_a_time(*args):  # Triton's interpreter isn't made for threads
        with lock:
            return original(*args)

    spec.TritonKernel.launch = one_at_a_time
    StandIn.lock, before = lock, StandIn.lock
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        spec.TritonKernel.launch = original
        StandIn.lock = before
    assert not wrong


def test_launches_place_copies_sums_and_counters(monkeypatch):
    """One piece of memory for each call, in which no two of them meet; counters apart."""
    memory, seen = [], []

    def empty(size, stride, dtype):
        memory.append(torch.empty(size, dtype=dtype))
        return memory[-1]

    zeros = torch.zeros(8, dtype=torch.int32)
    monkeypatch.setattr(launches, "empty_strided", empty)
    monkeypatch.setattr(launches, "current_stream", lambda index: 7)
    monkeypatch.setattr(workspace, "counters_of", lambda *asked: seen.append(asked) or zeros)
    calls = [lambda stream, addresses: seen.append((stream, addresses)) for _ in range(2)]
    room = workspace.Room(300, torch.float64, 5)
    launch = launches.Launches(0, calls, copies=(1000, 24), room=room)
    launch(16, 32, 48)
    launch(16, 32, 48)
    asked, (stream, addresses), again = seen[:3]
    assert asked == (0, 7, 5) and stream == 7 and again == (stream, addresses)
    a, b, c, first, second, sums, counters = addresses
    assert (a, b, c, counters) == (16, 32, 48, zeros.data_ptr())
    begin, end = memory[0].data_ptr(), memory[0].data_ptr() + memory[0].numel()
    assert begin == first and first + 1000 <= second and second + 24 <= sums
    assert sums + 8 * 300 <= end
    assert not any((address - begin) % 128 for address in (first, second, sums))
    assert memory[0].data_ptr() != memory[1].data_ptr(), "each call has its own"


@cpu_only
@pytest.mark.parametrize("split", [1, 4])
def test_a_call_with_a_workspace(stand_in, split):
    a, b = integers(3, 4096), integers(4096, 24)
    config = tritemm.Config(4, 8, 128, SPLIT_K=split)
    for call in range(3):
        got, short = short_calls(tritemm.matmul, a, b, kernel="gemv", config=config)
        assert torch.equal(got, a @ b) and short == (call > 0)
        more = {"kernel": "gemv", "config": config, "alpha": 2 + call}
        got, short = short_calls(tritemm.matmul, a, b, **more)
        assert torch.equal(got, (2 + call) * (a @ b)) and short == (call > 0)


# What only stands for memory, and where nothing is recorded


@cpu_only
def test_gradients_that_come_in_batches(stand_in):
    """By vmap inside of autograd, which no transform announces."""
    a, b = integers(8, 16).requires_grad_(), integers(16, 4).requires_grad_()
    for _ in range(3):
        grads = integers(5, 8, 4)
        got = torch.autograd.grad(tritemm.matmul(a, b), (a, b), grads, is_grads_batched=True)
        assert torch.equal(got[0], grads @ b.mT) and torch.equal(got[1], a.mT @ grads)


@cpu_only
def test_what_a_transform_has_left_behind(stand_in):
    a, b, left = integers(8, 16), integers(16, 4), []
    torch.func.grad(lambda x: left.append(x * 2) or x.sum())(a)
    for _ in range(3):
        assert torch.equal(tritemm.matmul(left[0], b), 2 * a @ b)


@cpu_only
def test_nothing_is_recorded_in_inference_mode_or_below_autograd(stand_in):
    """Whatever grad mode says."""
    a, w = integers(16, 16), integers(16, 16).requires_grad_()
    for _ in range(3):
        with torch.inference_mode(), torch.enable_grad():
            assert not tritemm.matmul(a * 1, w).requires_grad
        with torch._C._AutoDispatchBelowAutograd():
            assert not tritemm.matmul(a, w).requires_grad
        assert tritemm.matmul(a, w).requires_grad


@cpu_only
def test_operands_that_a_hook_on_saved_tensors_changes(stand_in):
    """One that comes back as a negative view is not read as its memory."""
    a, b = integers(8, 16).requires_grad_(), integers(16, 4).requires_grad_()
    b_memory = b.data_ptr()

    def unpack(t):
        return torch._neg_view(-t) if t.data_ptr() == b_memory else t

    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y = tritemm.matmul(a, b)
        grad = integers(8, 4)
        got = torch.autograd.grad(y, (a, b), grad)
        assert torch.equal(got[0], grad @ b.mT) and torch.equal(got[1], a.mT @ grad)


@cpu_only
def test_under_compiled_autograd_torch_sees_the_gradients(stand_in):
    """The short way's addresses are no numbers of a graph."""
    a, b = integers(8, 16).requires_grad_(), integers(16, 4).requires_grad_()
    for _ in range(3):
        tritemm.matmul(a, b).sum().backward()
    a.grad = b.grad = None
    seen = []

    def compiler(graph):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return torch.compile(graph, backend="eager")

    y = tritemm.matmul(a, b)
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(compiler):
        y.backward(torch.ones_like(y))
    assert seen and torch.equal(a.grad, torch.ones(8, 4) @ b.mT)
