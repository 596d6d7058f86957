"""The short launch path: that it gives what the long one does, of which kinds.

`standing_in` is in the place of the compiled kernels.
"""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune

import tritemm
from tests.runtime import standing_in
from tests.runtime.standing_in import expect, integers, short_calls
from tritemm import plan, rungs
from tritemm.dispatch import Choice
from tritemm.problem import EpilogueInputs
from tritemm.runtime import fast_path

pytestmark = [pytest.mark.latest, pytest.mark.usefixtures("stand_in")]


SHAPES = [
    ((33, 40), (40, 24)),
    ((40,), (40, 24)),
    ((33, 40), (40,)),
    ((40,), (40,)),
    ((3, 33, 40), (3, 40, 24)),
    ((3, 33, 40), (40, 24)),
    ((2, 1, 5, 8), (3, 8, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_second_call_is_short_and_right(shapes):
    a, b = (integers(*shape, dtype=torch.float16) for shape in shapes)
    out = torch.empty(torch.matmul(a, b).shape, dtype=a.dtype)
    for call in range(3):
        a, b = (integers(*shape, dtype=torch.float16) for shape in shapes)
        want = torch.matmul(a.double(), b.double()).half()
        assert expect(want, call > 0, a, b).is_contiguous()
        residual = integers(*want.shape, dtype=torch.float16)
        assert torch.equal(tritemm.matmul(a, b, residual=residual), want + residual)
        version = out.fill_(torch.nan)._version
        assert expect(want, call > 0, a, b, out=out) is out and out._version > version


ENDINGS = {
    "bias": lambda m, n: {"bias": integers(n)},
    "activation": lambda m, n: {"activation": "relu"},
    "both": lambda m, n: {"bias": integers(n), "activation": "relu"},
    "factor": lambda m, n: {"alpha": 2},
    "residual": lambda m, n: {"residual": integers(m, n), "beta": 2},
    "broadcast": lambda m, n: {"residual": integers(n), "alpha": 0.5},
    "all": lambda m, n: {"bias": integers(n), "residual": integers(n, m).mT, "activation": "relu"},
}
every_ending = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)


def torchs(a, b, bias=0, residual=0, activation=None, alpha=1, beta=1):
    sums = alpha * (a @ b) + bias
    return (sums.relu() if activation else sums) + beta * residual


def pass_the_dispatcher_by(monkeypatch):
    """From now on nobody finds the operator."""
    monkeypatch.setattr("tritemm.op.gemm.GEMM", None)


@every_ending
def test_what_follows_the_product(monkeypatch, ending):
    """Also of a kind that plain products have made known."""
    out = torch.empty(2, 33, 24)
    tritemm.matmul(integers(2, 33, 40), integers(40, 24))
    for call in range(3):
        a, b, more = integers(2, 33, 40), integers(40, 24), ending(33, 24)
        want = torchs(a, b, **more)
        expect(want, call > 0, a, b, **more)
        assert expect(want, call > 0, a, b, out=out, **more) is out
        pass_the_dispatcher_by(monkeypatch)


@every_ending
def test_gradients_of_what_follows(monkeypatch, ending):
    tritemm.matmul(integers(33, 40), integers(40, 24).requires_grad_())
    for call in range(3):
        a, b, more = integers(33, 40), integers(40, 24), ending(33, 24)
        tensors = [a, b, *(t for t in more.values() if isinstance(t, torch.Tensor))]
        for t in tensors:
            t.requires_grad_()
        want = torchs(a, b, **more)
        got, short = short_calls(tritemm.matmul, a, b, **more)
        assert torch.equal(got, want) and (short == 1 or call == 0)
        grad = integers(33, 24)
        found, short = short_calls(torch.autograd.grad, got, tensors, grad)
        for mine, theirs in zip(found, torch.autograd.grad(want, tensors, grad), strict=True):
            assert torch.equal(mine, theirs)
        assert short == 2 or call == 0
        pass_the_dispatcher_by(monkeypatch)


def gated(a, b, bias):
    gate, up = (a @ b + bias).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_gated_activation_that_torch_makes(monkeypatch, needs_grad):
    for call in range(3):
        a, b, bias = integers(2, 33, 40), integers(40, 24), integers(24)
        b.requires_grad_(needs_grad)
        more = {"bias": bias, "activation": "swiglu"}
        assert expect(gated(a, b, bias), call > 0, a, b, **more).requires_grad is needs_grad
        pass_the_dispatcher_by(monkeypatch)


def finished(kernel, view, config, a, b, c, *more):
    """In the place of a rung's launch: what it computes, by torch."""
    given = dict(zip(view.epilogue.arguments, more, strict=True))
    then = EpilogueInputs(
        given.get("bias_ptr"), given.get("residual_ptr"), view.epilogue.activation,
        given.get("alpha", 1.0), given.get("beta", 1.0),
    )  # fmt: skip
    c.copy_(then.of(a @ b, c.dtype))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_gated_activation_that_a_kernel_makes(monkeypatch, batch):
    """One launch, of half as many columns as the product has."""
    rung = rungs.find("warp_specialized")
    monkeypatch.setattr(standing_in, "launch_of_rungs", finished)
    monkeypatch.setattr(
        plan.dispatch, "choose_whole",
        lambda problem, word: Choice(problem, rung, tritemm.Config(128, 256, 64), "a test's"),
    )  # fmt: skip
    out = torch.empty(*batch, 33, 12)
    for call in range(3):
        a, b, bias = integers(*batch, 33, 40), integers(*batch, 40, 24), integers(24)
        want, residual = gated(a, b, bias), integers(12)
        more = {"bias": bias, "activation": "swiglu"}
        expect(want - 2 * residual, call > 0, a, b, residual=residual, beta=-2, **more)
        assert expect(want, call > 0, a, b, out=out, **more) is out
        pass_the_dispatcher_by(monkeypatch)


@pytest.mark.parametrize("columns", [24, 40])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("converted", [False, True])
def test_linear_knows_a_kind_by_the_weight(monkeypatch, columns, biased, converted):
    """No view of it is made where nothing is recorded; a square one is no second operand."""
    layer = nn.Linear(40, columns, biased)
    w, bias = layer.weight.data.copy_(integers(columns, 40)), layer.bias
    if biased:
        bias = bias.data.copy_(integers(columns))
    tritemm.convert(layer)
    views, view = [], torch.Tensor.t
    monkeypatch.setattr(torch.Tensor, "t", lambda t: views.append(t) or view(t))
    for call in range(3):
        x = integers(33, 40)
        want = functional.linear(x, w, bias)
        views.clear()
        with torch.no_grad():
            got, short = short_calls(*((layer, x) if converted else (tritemm.linear, x, w, bias)))
        assert torch.equal(got, want) and short == bool(call) == (not views)
        if columns == 40:
            expect(x @ w, call > 0, x, w)


@pytest.mark.parametrize("leaf", ["input", "weight", "bias"])
def test_linear_records_as_before(leaf):
    """The same kind, in turns with calls of which nothing is recorded."""
    given = {"input": integers(33, 40), "weight": integers(24, 40), "bias": integers(24)}
    given[leaf].requires_grad_()
    for _ in range(4):
        grad = integers(33, 24)
        got, want = (
            torch.autograd.grad(linear(**given), given[leaf], grad)
            for linear in (tritemm.linear, functional.linear)
        )
        assert torch.equal(got[0], want[0])
        with torch.no_grad():
            want = functional.linear(**given)
            got, short = short_calls(tritemm.linear, **given)
        assert torch.equal(got, want) and short == 1


def test_linear_says_what_is_wrong_alike(monkeypatch):
    """Where the kind is known by its weight."""
    x, w, bias = integers(4, 8), integers(6, 8), integers(6)
    wrong = {
        "weight": (integers(7, 9), w[None], w[None].requires_grad_(), w.double(), w.to_sparse()),
        "bias": (integers(7), integers(1, 6), bias.bool(), bias.to_sparse(), bias.to("meta"), 1.0),
        "input": (x.double(), x[:, :7], x.to_sparse(), x.to("meta"), None),
    }
    given = {"input": x, "weight": w, "bias": bias}
    for name, values in wrong.items():
        for value in values:
            said = []
            for available in (True, False):
                monkeypatch.setattr(fast_path, "AVAILABLE", available)
                for _ in range(2 * available):
                    tritemm.linear(x, w), tritemm.linear(x, w, bias)
                with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
                    tritemm.linear(**(given | {name: value}))
                said.append((error.type, str(error.value)))
            assert said[0] == said[1]


def test_a_converted_layer_takes_the_weight_that_it_has():
    """Whatever has become of it since the kind was multiplied."""
    layer = nn.Linear(40, 24)
    nn.init.ones_(layer.bias)
    tritemm.convert(layer)
    x = integers(33, 40)
    for calls in range(6):
        weight = integers(24, 40)
        if calls < 3:
            layer.weight = nn.Parameter(weight)
        elif calls == 3:
            layer.weight.data = weight
        elif calls == 4:
            parametrize.register_parametrization(layer, "weight", nn.ReLU())
            layer.parametrizations.weight.original = nn.Parameter(weight)
            weight = weight.relu()
        else:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
            prune.l1_unstructured(layer, "weight", 0.5)
            weight = layer.weight_orig * layer.weight_mask
        with torch.no_grad():
            expect(x @ weight.mT + 1, calls > 0, x, layer.weight, matmul=lambda x, _: layer(x))
    state = {"weight": integers(24, 40), "bias": torch.zeros(24)}
    other = nn.Linear(40, 24)
    tritemm.convert(other)
    assert torch.equal(torch.func.functional_call(other, state, (x,)), x @ state["weight"].mT)


def test_factors_are_no_kinds():
    """But for 0 and 1: those that change at every call are given to what was prepared once."""
    a, b, c = integers(33, 40), integers(40, 24).requires_grad_(), integers(24)
    kinds = []
    for call, (alpha, beta) in enumerate([(2, 3), (-1, 0.5), (4.0, -2), (0.25, 7)]):
        want = alpha * (a @ b) + beta * c
        with torch.no_grad():
            expect(want, call > 0, a, b, residual=c, alpha=alpha, beta=beta)
        expect(want, 1, a, b, residual=c, alpha=alpha, beta=beta)
        expect(alpha * (a @ b), call > 0, a, b, alpha=alpha)
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


WRONG = {
    "a rung": {"kernel": "no such rung"},
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
    "a bias beside a residual": {"bias": integers(7), "residual": integers(4, 6)},
    "a residual beside a bias": {"bias": integers(6), "residual": integers(4, 7)},
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
    "a plain out's type": {"out": torch.zeros(4, 6).double()},
    "a gradient of a plain out": {"out": torch.zeros(4, 6, requires_grad=True)},
    "an out of one memory": {"out": torch.zeros(6).expand(4, 6)},
    "an out's type": {"out": torch.zeros(4, 6).double(), "bias": integers(6)},
    "a sum's type": {"out": torch.zeros(4, 6).double(), "beta": 1},
    "a gradient of out": {"out": torch.zeros(4, 6, requires_grad=True), "bias": integers(6)},
}


@pytest.mark.parametrize("needs_grad", [False, True])
def test_what_is_wrong_is_said_alike(monkeypatch, needs_grad):
    """A call of a kind that was made before, and one that the operators do whole."""
    a, b = integers(4, 8), integers(8, 6).requires_grad_(needs_grad)
    bias, residual = {"bias": integers(6)}, {"residual": integers(4, 6)}
    for _ in range(2):
        tritemm.matmul(a, b)
        tritemm.matmul(a, b.detach(), out=torch.zeros(4, 6))
        for more in (bias, residual, bias | residual):
            tritemm.matmul(a, b, **more)
            tritemm.matmul(a, b, activation="relu", **more)
            tritemm.matmul(a, b.detach(), out=torch.zeros(4, 6), **more)
    for name, more in itertools.product(WRONG, ({}, {"activation": "relu"})):
        said = []
        for available in (True, False):
            monkeypatch.setattr(fast_path, "AVAILABLE", available)
            with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
                tritemm.matmul(a, b, **(more | WRONG[name]))
            said.append((error.type, str(error.value)))
        assert said[0] == said[1], name


def test_an_odd_number_of_columns_has_no_pairs():
    """A product that was made before, with a gradient and without."""
    a, b = integers(4, 8), integers(8, 3)
    for needs_grad in (False, True):
        b.requires_grad_(needs_grad)
        for _ in range(2):
            tritemm.matmul(a, b)
        with pytest.raises(RuntimeError, match="has 3 columns; a gated activation needs"):
            tritemm.matmul(a, b, activation="swiglu")


def test_it_is_added_to_what_is_there():
    total = torch.zeros(33, 24)
    a, b = integers(33, 40), integers(40, 24)
    for call in range(3):
        expect((call + 1) * (a @ b), call > 0, a, b, out=total, beta=1)
    assert total._version == 3


def test_what_is_added_overlaps_out():
    memory = integers(40 * 24)
    a, b = integers(33, 40), integers(40, 24)
    for _ in range(2):
        residual, out = memory[:792].view(33, 24), memory[24:816].view(33, 24)
        want = residual + a @ b
        assert torch.equal(tritemm.matmul(a, b, residual=residual, out=out), want)


SUMS = {
    "bias": ((6,), {}),
    "a residual": ((4, 6), {}),
    "a column": ((4, 1), {"alpha": 3}),
    "one number": ((), {"beta": 2, "alpha": 0.5}),
    "nothing": ((6,), {"beta": 0}),
    "nothing of twice": ((4, 6), {"beta": 0.0, "alpha": 2}),
}


@pytest.mark.parametrize(("shape", "factors"), SUMS.values(), ids=SUMS)
def test_torchs_sums_use_the_prepared_launch(monkeypatch, shape, factors):
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


def test_sums_of_other_kinds():
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


def test_strides_and_offsets_are_kinds():
    """Each way to store the same values is a kind of its own, and right."""
    values = integers(64, 64)
    stores = [
        values,
        values.mT.contiguous().mT,
        torch.cat([torch.zeros(1), values.flatten()])[1:].view(64, 64),
        torch.stack([values, values], -1)[..., 0],
    ]
    for a in stores:
        for call in range(2):
            expect(values @ values, call, a, values)
    assert len(fast_path.KNOWN) == len(stores)


def test_out_that_overlaps_an_operand():
    """Apart and overlapping are one kind: it is looked at in every call."""
    storage = integers(4 * 32 * 32)
    a, b, apart = (storage[i * 1024 : (i + 1) * 1024].view(32, 32) for i in range(3))
    for call in range(2):
        expect(a @ b, call, a, b, out=apart)
    expect(a @ b, 0, a, b, out=b)


def test_an_out_of_another_size_is_resized():
    a = integers(16, 16)
    for _ in range(2):
        tritemm.matmul(a, a, out=torch.empty(16, 16))
    with pytest.warns(UserWarning, match="resized"):
        assert tritemm.matmul(a, a, out=torch.empty(4, 4)).shape == (16, 16)


def test_options_are_kinds():
    a = integers(16, 16, dtype=torch.float16)
    for options in ({}, {"out_dtype": torch.float32}, {"accumulate": torch.float16}) * 2:
        got = tritemm.matmul(a, a, **options)
        assert got.dtype == options.get("out_dtype", torch.float16)
        assert torch.equal(got.double(), a.double() @ a.double())
    assert len(fast_path.KNOWN) == 3


def test_torch_flag_is_read_at_every_call():
    a = integers(16, 16)
    for word in ("ieee", "tf32") * 2:
        torch.backends.cuda.matmul.fp32_precision = word
        tritemm.matmul(a, a)
    assert sorted(p.problem.precision for p in fast_path.KNOWN.values()) == ["ieee", "tf32"]


def test_a_config_is_part_of_the_kind():
    a = integers(32, 32)
    for config in (
        tritemm.Config(16, 16, 16),
        tritemm.Config(32, 16, 16),
        {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32},  # can't be a key: the long way
    ):
        for _ in range(2):
            assert torch.equal(tritemm.matmul(a, a, kernel="naive", config=config), a @ a)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("pack", ["", "a", "b", "ab"])
def test_packed_and_swapped(pack, swap):
    """Odd pitches that TMA can't take are packed in every call, and only those asked for."""
    a = integers(24, 41, dtype=torch.float16)[:, :40]
    b = integers(40, 37, dtype=torch.float16)[:, :32]
    a = a if "a" in pack else a.contiguous()
    b = b if "b" in pack else b.contiguous()
    options = {"kernel": "tma", "config": tritemm.Config(32, 32, 32, SWAP=swap, PACK=pack)}
    for call in range(3):
        product = a.double() @ b.double()
        expect(product.half(), call > 0, a, b, **options)
        alpha, beta, residual = 2 + call, 3 - 7 * call, integers(24, 32).half()
        want = (alpha * product + beta * residual.double()).half()
        expect(want, call > 0, a, b, alpha=alpha, beta=beta, residual=residual, **options)
        a.add_(1)


@pytest.mark.parametrize("split", [1, 4])
def test_a_call_with_a_workspace(split):
    a, b = integers(3, 1024), integers(1024, 24)
    options = {"kernel": "gemv", "config": tritemm.Config(4, 8, 128, SPLIT_K=split)}
    for call in range(3):
        expect(a @ b, call > 0, a, b, **options)
        expect((2 + call) * (a @ b), call > 0, a, b, alpha=2 + call, **options)
