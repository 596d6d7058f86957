"""Groups: products whose rows, columns or K offsets on the device cut, by each rung that can."""

import dataclasses
import itertools
import math

import pytest
import torch

import tritemm
from tests.dispatch.choosing import H200
from tests.harness import DEVICE, Guarded, assert_right, ids, operand, sweep
from tests.sweep import CODE, EVERY, drawn
from tritemm import Config, plan
from tritemm.dispatch import cache
from tritemm.dispatch.request import why_not
from tritemm.problem import GATED, EpilogueInputs, Problem, activated
from tritemm.problem.tile_space import Grouped
from tritemm.rungs import RUNGS

BF16, HALF, FP32, FP64, INT8 = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8
)  # fmt: skip
ABLE = [kernel for kernel in RUNGS if kernel.limits.groups]
#: Sizes of groups, and of what lies behind the last.
SIZES = {
    "ragged": ((5, 0, 40, 33, 0, 3, 70), 0),
    "rest": ((5, 0, 40, 33, 0, 3, 70), 37),
    "first": ((0, 0, 1), 0),
    "empty": ((0,) * 7, 37),
    "one": ((50,), 0),
    "ones": ((1,) * 40, 3),
    "whole": ((32, 64, 96), 0),
    "last": ((7, 90, 13, 0, 0, 27) + (0,) * 60, 37),
}
NARROW = Config(128, 16, 128, 4, 5, "grouped", SWAP=True)


def offsets(sizes):
    return torch.tensor(sizes, dtype=torch.int64).cumsum(0).to(DEVICE, torch.int32)


def bounds(offs):
    ends = offs.tolist()
    return list(zip([0, *ends], ends, strict=False))


def cut(form, n, k, count, total, dtype, layout="NN", **options):
    """A and B of a product of which so many rows, columns or terms are cut into groups."""
    a = {"m": (total, k), "n": (n, k), "k": (n, total)}[form]
    b = {"m": (k, n), "n": (k, total), "k": (total, n)}[form]
    of_a, of_b = ((count,) if form == "n" else ()), ((count,) if form == "m" else ())
    return (
        operand(*a, dtype, layout[0], of_a, **options),
        operand(*b, dtype, layout[1], of_b, **options),
    )


def poison(form, a, b, begin, end):
    """Fill what is cut with NaN from `begin` to `end`."""
    parts = {"m": (a,), "n": (b.mT,), "k": (a.mT, b)}[form]
    for part in parts:
        part[begin:end] = math.nan


def parts(form, c, a, b, offs):
    """The result and the operands of each group, and what of the result is behind the last."""
    pairs = []
    for g, (i, j) in enumerate(bounds(offs)):
        if form == "m":
            pairs.append((c[i:j], a[i:j], b[g]))
        elif form == "n":
            pairs.append((c[:, i:j], a[g], b[:, i:j]))
        else:
            pairs.append((c[g], a[:, i:j], b[i:j]))
    end = offs[-1]
    return pairs, {"m": c[end:], "n": c[:, end:], "k": c[:0]}[form]


def check(form, c, a, b, offs, bias=None, activation="", alpha=1.0, **options):
    pairs, rest = parts(form, c, a, b, offs)
    assert not rest.count_nonzero()
    for g, (found, x, y) in enumerate(pairs):
        then = EpilogueInputs(None if bias is None else bias[g], None, activation, alpha)
        if x.shape[1] == 0:
            assert not found.count_nonzero()
        elif found.numel():
            assert_right(found, x, y, ending=then, stepwise=activation in GATED, **options)


def able_configs(kernel, problem, configs):
    """Those of the `configs` that the kernel takes; with operands swapped if they say so."""
    return [
        config
        for config in configs
        if kernel.why_not(config.view(problem)) is None
        and why_not(kernel, config.view(problem), config) is None
    ]


@pytest.mark.wide
@sweep(
    kernel={kernel.name: kernel for kernel in ABLE if DEVICE == "cuda" or kernel.interpreted},
    form=ids("mk"),
    sizes=SIZES,
    n=ids((8, 72, 201, 256)),
    k=ids((16, 136, 137)),
    dtype=ids((BF16, HALF, FP32, FP64, INT8)),
    layout=ids(("NN", "NT", "TN")),
)
def test_every_rung_that_can(kernel, form, sizes, n, k, dtype, layout, request):
    """On a GPU in a third of its configs: neighbours are NaN, and nothing outside is written."""
    (sizes, rest), aligned = sizes, k != 137
    if DEVICE == "cuda":
        sizes, rest = [4 * size for size in sizes], 4 * rest
    elif n > 80:
        n = 40
    offs, total = offsets(sizes), sum(sizes) + rest
    layout = layout if form == "m" else "TN"
    a, b = cut(form, n, k, len(sizes), total, dtype, layout, aligned=aligned)
    poison_it = dtype.is_floating_point and rest
    if poison_it:
        poison(form, a, b, total - rest, total)
    out = torch.int32 if dtype == INT8 else dtype
    guarded = Guarded.like((total, n) if form == "m" else (len(sizes), n, n), out)
    c, precision = guarded.tensor, "ieee"
    if dtype == FP32 and kernel.interpreted is None:
        precision = "tf32"
    problem = Problem.of(a, b, c, precision=precision, groups=form)
    if reason := kernel.why_not(problem):
        assert any(word in reason for word in ("16 bits", "of 16", "along K", "128 is"))
        pytest.skip(reason)
    own = [kernel.interpreted] if DEVICE == "cpu" else [*kernel.configs(problem), NARROW]
    able = able_configs(kernel, problem, own)
    for config in drawn(able, max(3, -(-len(able) // 3)), code=CODE + request.node.name):
        c.fill_(guarded.poison)
        plan.run(kernel, problem, config, a, b, c, offs)
        guarded.assert_untouched_outside()
        check(form, c, a, b, offs, precision=precision)


@pytest.mark.parametrize("kernel", [k for k in ABLE if DEVICE == "cuda" or k.interpreted], ids=str)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("m", "n"), [(8, 72), (72, 8), (136, 264)])
@pytest.mark.parametrize("form", "mk")
def test_a_groups_bias_is_its_own_in_every_config(form, m, n, swap, kernel, request):
    """Also where operands are swapped, so that it runs along the rows of the kernel's product."""
    sizes = (16, 0, 24, 8)
    offs, total = offsets(sizes), sum(sizes)
    a, b = cut(form, n, m, len(sizes), total, BF16)
    if form == "k":
        a = operand(m, total, BF16, "T")
    bias, shape = operand(len(sizes), n, BF16), (total, n) if form == "m" else (len(sizes), m, n)
    c = torch.empty(shape, dtype=BF16, device=DEVICE)
    problem = Problem.of(a, b, c, groups=form, bias=BF16)
    view = problem.transposed() if swap else problem
    own = [kernel.interpreted] if DEVICE == "cpu" else kernel.configs(view)
    able = able_configs(kernel, problem, [dataclasses.replace(c, SWAP=swap) for c in own])
    assert able or (form == "m" and swap)  # which "grouped" refuses
    for config in drawn(able, 1, code=CODE + request.node.name):
        c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, kernel=kernel.name, config=config)
        for g, (found, x, y) in enumerate(parts(form, c, a, b, offs)[0]):
            if x.shape[1]:
                assert_right(found, x, y, ending=EpilogueInputs(bias[g]))
            else:
                assert torch.equal(found, bias[g].expand_as(found))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(2, 0, 9, 1, 5), (16, 0, 70, 30, 1)], ids=str)
def test_groups_of_short_k(sizes):
    """Which have small tiles and short steps where C is large."""
    a, b = cut("k", 264, 16, len(sizes), sum(sizes) + 3, BF16, "TN", aligned=True)
    b = torch.cat([b] * 17, 1)
    poison("k", a, b, sum(sizes), sum(sizes) + 3)
    offs = offsets(sizes)
    check("k", tritemm.grouped_mm(a, b, offs=offs), a, b, offs)


@pytest.mark.gpu
@pytest.mark.skipif(not EVERY, reason="takes two minutes: TRITEMM_SWEEP=all")
def test_a_group_of_as_many_terms_as_offsets_can_count():
    one, K = torch.ones(1, dtype=INT8, device=DEVICE), 2**31 - 1
    config = Config(64, 64, 256, 4, 3, "grouped")
    options = {"offs": offsets([K]), "kernel": "grouped", "config": config}
    assert tritemm.grouped_mm(one.expand(1, K), one.expand(K, 1), **options).item() == K


@pytest.mark.parametrize(("form", "sizes"), [("m", (2**31, 1, 1)), ("k", (1, 2**31, 1))])
def test_more_than_offsets_can_count_are_refused(form, sizes):
    M, K, N = sizes
    a, b = (torch.empty(1, device="meta").expand(*each) for each in ((M, K), (K, N)))
    with pytest.raises(RuntimeError, match=f"the {form.upper()} that it cuts is 2147483648:"):
        Problem.of(a, b, a[:, :1], groups=form, device=H200)


@pytest.mark.parametrize("form", "mnk")
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_no_group_reads_another(form, dtype):
    sizes = (20, 0, 13, 30)
    offs = offsets(sizes)
    a, b = cut(form, 24, 40, len(sizes), sum(sizes), dtype)
    clean = tritemm.grouped_mm(a, b, offs=offs)
    for group, (i, j) in enumerate(bounds(offs)):
        if i == j:
            continue
        x, y = a.clone(), b.clone()
        poison(form, x, y, i, j)
        spoilt = tritemm.grouped_mm(x, y, offs=offs)
        both = (parts(form, c, a, b, offs)[0] for c in (spoilt, clean))
        for g, ((found, *_), (want, *_)) in enumerate(zip(*both, strict=True)):
            if g == group:
                assert found.isnan().all()
            else:
                assert torch.equal(found, want)


@pytest.mark.parametrize("count", [1, 257, 1500 if DEVICE == "cuda" else 300])
@pytest.mark.parametrize("form", "mk")
def test_any_number_of_groups(form, count):
    sizes = [g % 3 for g in range(count)]
    offs = offsets(sizes)
    a, b = cut(form, 16, 24, count, sum(sizes) + 2, BF16)
    check(form, tritemm.grouped_mm(a, b, offs=offs), a, b, offs)


@pytest.mark.parametrize("dtype", [BF16, FP64, INT8], ids=str)
def test_what_follows_in_any_type(dtype):
    offs = offsets((5, 0, 9))
    a, b = cut("m", 16, 24, 3, 20, dtype)
    bias = operand(3, 16, torch.int32 if dtype == INT8 else dtype)
    c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, alpha=3)
    check("m", c, a, b, offs, bias, "", 3.0)
    added = operand(3, 24, bias.dtype)  # where K is cut, each of a group's rows gets it
    c = tritemm.grouped_mm(a.mT, a[:, :24], offs=offs, bias=added, alpha=3)
    for g, (i, j) in enumerate(bounds(offs)):
        x, y = (a.mT[:, i:j], a[i:j, :24]) if j > i else (a.mT[:, :1] * 0, a[:1, :24] * 0)
        assert_right(c[g], x, y, ending=EpilogueInputs(added[g], alpha=3.0))
    if dtype == INT8:  # a factor is a whole number of 64 bits, of which 32 are kept
        c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, alpha=2**53 + 1)
        check("m", c, a, b, offs, bias, "", 1.0)
    for ends in ((3, 50, 60), (9, 3, 12), (-3, 2, 4)):  # nothing is raised, or read outside
        wrong = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
        assert tritemm.grouped_mm(a, b, offs=wrong, bias=bias).shape == (20, 16)


@pytest.mark.parametrize("sizes", [SIZES["rest"], SIZES["last"]], ids=["rest", "last"])
@pytest.mark.parametrize("activation", ["", "relu", "gelu", "silu", "swiglu", "geglu"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_follows(sizes, activation, bias):
    sizes, rest = sizes
    offs = offsets(sizes)
    a, b = cut("m", 48, 40, len(sizes), sum(sizes) + rest, BF16, "NT")
    added = operand(len(sizes), 48, BF16) if bias else None
    c = tritemm.grouped_mm(a, b, offs=offs, bias=added, activation=activation or None, alpha=0.5)
    check("m", c, a, b, offs, added, activation, 0.5)


@pytest.mark.parametrize("form", "mnk")
@pytest.mark.parametrize("dtype", [torch.float16, FP32], ids=str)
def test_out(form, dtype):
    sizes = (9, 0, 12)
    offs = offsets(sizes)
    a, b = cut(form, 16, 24, 3, 25, dtype)
    plain = tritemm.grouped_mm(a, b, offs=offs)
    out = torch.empty_like(plain.mT.contiguous()).mT
    assert tritemm.grouped_mm(a, b, offs=offs, out=out) is out
    assert torch.equal(out, plain)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        tritemm.grouped_mm(a, b, offs=offs, out=out.double())
    if form == "m":  # of its own memory, also where the shape changes
        own = a.clone()
        with pytest.warns(UserWarning, match="out was resized"):
            assert torch.equal(tritemm.grouped_mm(own, b, offs=offs, out=own), plain)
        square = torch.randn(3, 24, 24, device=DEVICE).to(dtype)
        want = tritemm.grouped_mm(a, square, offs=offs)
        assert torch.equal(tritemm.grouped_mm(a, square, offs=offs, out=a), want)


def test_nothing_to_add_up():
    """alpha = 0, K = 0, no groups and no rows: zeros, or the bias alone."""
    offs, bias = offsets((4, 6)), operand(2, 16, FP32)
    nan = torch.full((12, 8), math.nan, device=DEVICE)
    weights = torch.full((2, 8, 16), math.nan, device=DEVICE)
    want = torch.cat([bias[0].expand(4, -1), bias[1].expand(6, -1), bias.new_zeros(2, 16)])
    for a, b, alpha in ((nan, weights, 0), (nan[:, :0], weights[:, :0], 1)):
        assert torch.equal(tritemm.grouped_mm(a, b, offs=offs, bias=bias, alpha=alpha), want)
    columns = nan[:, :1].expand(-1, 16)
    for rows, alpha in ((12, 0), (0, 1)):
        found = tritemm.grouped_mm(
            nan.mT[:, :rows], columns[:rows], offs=offs, bias=bias, alpha=alpha
        )
        assert torch.equal(found, bias[:, None].expand(-1, 8, -1))
    assert not tritemm.grouped_mm(nan.mT, nan, offs=offs, alpha=0).count_nonzero()
    whole = tritemm.grouped_mm(weights.mT, weights, bias=bias, alpha=0)
    assert torch.equal(whole, bias[:, None].expand(-1, 16, -1))
    none = offs[:0]
    assert not tritemm.grouped_mm(nan, weights[:0], offs=none).count_nonzero()
    assert tritemm.grouped_mm(nan.mT, nan, offs=none).shape == (0, 8, 8)
    assert tritemm.grouped_mm(nan[:0], weights, offs=offs * 0).shape == (0, 16)


@pytest.mark.parametrize("ends", [(9, 3, 12), (-5, 4, 12), (5, 50, 60), (2**31 - 1,) * 3])
def test_offsets_that_decrease_or_reach_out_write_nothing_outside(ends):
    offs = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    for form in "mnk":
        a, b = cut(form, 16, 24, 3, 20, FP32)
        guarded = Guarded.like({"m": (20, 16), "n": (16, 20), "k": (3, 16, 16)}[form], FP32)
        tritemm.grouped_mm(a, b, offs=offs, out=guarded.tensor)
        guarded.assert_untouched_outside()


def test_three_dimensions_are_a_batch():
    a, b = operand(8, 24, FP32, batch=(3,)), operand(24, 16, FP32, batch=(3,))
    bias = operand(3, 16, FP32)
    assert_right(tritemm.grouped_mm(a, b), a, b)
    found = tritemm.grouped_mm(a, b, bias=bias, activation="relu")
    torch.testing.assert_close(found, torch.relu(torch.baddbmm(bias[:, None], a, b)))
    out = torch.empty(0, device=DEVICE)
    assert torch.equal(tritemm.grouped_mm(a, b, bias=bias, activation="relu", out=out), found)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        tritemm.grouped_mm(a, b, bias=bias, out=out.int())
    with torch.inference_mode():
        out = torch.empty(0, device=DEVICE)
    for more in ({}, {"bias": bias}):
        with pytest.raises(RuntimeError, match=r"[Ii]nference"):
            tritemm.grouped_mm(a, b, out=out, **more)


def test_groups_and_dense_products_are_not_tuned_as_one():
    """A batch of one is a dense product, and one group isn't."""
    a, b = operand(64, 32, BF16), operand(32, 48, BF16)
    c = torch.empty(64, 48, dtype=BF16, device=DEVICE)
    keys = {cache.key(Problem.of(a, b, c))}
    keys.add(cache.key(Problem.of(a, b[None], c, groups="m")))
    keys.add(cache.key(Problem.of(a, b, c[None], groups="k")))
    assert len(keys) == 3


@pytest.mark.parametrize("form", "mnk")
def test_the_same_as_torch(form):
    """Where torch has it for this device; it leaves what is behind the last group as it was."""
    functional = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    offs = offsets((16, 0, 24, 8))
    a, b = cut(form, 32, 64, 4, 48, BF16, "NT" if form != "k" else "TN")
    try:
        theirs = functional(a, b, offs=offs)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(str(error))
    mine = tritemm.grouped_mm(a, b, offs=offs)
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype
    torch.testing.assert_close(mine, theirs, rtol=2**-6, atol=0.1)


@pytest.mark.parametrize("form", "mnk")
def test_derivatives(form):
    """Forwards and backwards, and to second order; of what is behind the last group, zeros."""
    offs = offsets((3, 2))
    a, b = (t.contiguous().requires_grad_() for t in cut(form, 3, 2, 2, 6, FP64))
    bias = (operand(2, 3, FP64).requires_grad_(),) if form != "n" else ()

    def product(a, b, *bias):
        return tritemm.grouped_mm(a, b, offs=offs, bias=bias[0] if bias else None, alpha=0.5)

    first, second = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    (second if form == "m" else first)(product, (a, b, *bias), fast_mode=True)
    if form != "n":
        options = {"check_forward_ad": True, "check_backward_ad": False}
        first(product, (a, b, *bias), fast_mode=True, **options)


def test_gradients_of_a_layer():
    """With a gated activation, a bias and a wider result, in the operands' types."""
    offs = offsets((17, 0, 30))
    a, b = (t.contiguous().requires_grad_() for t in cut("m", 24, 16, 3, 50, HALF))
    bias = operand(3, 24, FP32).requires_grad_()
    c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, activation="swiglu", out_dtype=FP32)
    found = torch.autograd.grad(c.square().sum(), (a, b, bias))
    x, y, z = (t.detach().double().requires_grad_() for t in (a, b, bias))
    rows = [x[i:j] @ y[g] + z[g] for g, (i, j) in enumerate(bounds(offs))]
    gate, up = torch.cat(rows).chunk(2, -1)
    total = (torch.nn.functional.silu(gate) * up).square().sum()
    for mine, want in zip(found, torch.autograd.grad(total, (x, y, z)), strict=True):
        scale = want.abs().max().item()
        torch.testing.assert_close(mine.double(), want, rtol=2**-8, atol=2**-9 * scale)
    assert not found[0][47:].count_nonzero()


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_the_gate_of_a_product_that_is_differentiated(activation):
    """Its kernel and that of its gradient, against torch in fp64, and to second order."""

    def by_kernel(x):
        return torch.ops.tritemm.gate(x, activation)

    x = operand(5, 14, FP64).requires_grad_()
    first, second = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    assert first(by_kernel, (x,), check_forward_ad=True)
    assert second(by_kernel, (x,))
    for dtype in (BF16, HALF, FP32):
        x = operand(33, 2062, dtype, "S").requires_grad_()
        grad = operand(33, 1031, dtype)
        mine = by_kernel(x)
        double = x.detach().double().requires_grad_()
        want = activated(double, activation)
        (found,) = torch.autograd.grad(mine, x, grad)
        (wanted,) = torch.autograd.grad(want, double, grad.double())
        eps = max(torch.finfo(dtype).eps, 2**-18)
        torch.testing.assert_close(mine.double(), want, rtol=eps, atol=eps)
        torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=eps)


def test_transforms_and_graphs():
    offs = offsets((3, 0, 4))
    a, b = cut("m", 16, 24, 3, 8, FP32)

    def product(a, b, offs):
        return tritemm.grouped_mm(a, b, offs=offs, activation="relu")

    plain = product(a, b, offs)
    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, offs), plain)

    class Layer(torch.nn.Module):
        def forward(self, a, b, offs):
            return product(a, b, offs)

    exported = torch.export.export(Layer(), (a, b, offs)).module()
    assert torch.equal(exported(a, b, offs), plain)
    others = offsets((1, 6, 0))
    assert torch.equal(exported(a, b, others), product(a, b, others))
    both = torch.stack([offs, others])
    many = torch.func.vmap(product, in_dims=(None, None, 0))(a, b, both)
    assert torch.equal(many, torch.stack([plain, product(a, b, others)]))
    none = torch.func.vmap(product, in_dims=(None, None, 0))(a, b, both[:0])
    assert none.shape == (0, *plain.shape)
    empty = torch.func.jacrev(lambda a: product(a, b[..., :0], offs))(a)
    assert empty.shape == (len(a), 0, *a.shape)
    torch.library.opcheck(
        torch.ops.tritemm.grouped_mm.default,
        (a, b, offs, None, "", 1.0, "auto", None, None, FP32),
    )


@pytest.mark.gpu
def test_a_cuda_graph_is_replayed_with_other_sizes():
    a, b = cut("m", 256, 128, 5, 1000, BF16, "NT")
    offs = offsets((1000, 0, 0, 0, 0))
    tritemm.grouped_mm(a, b, offs=offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = tritemm.grouped_mm(a, b, offs=offs)
    for sizes in ((0, 0, 0, 0, 900), (200,) * 5, (1, 0, 7, 500, 0)):
        offs.copy_(offsets(sizes))
        graph.replay()
        check("m", c, a, b, offs)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_bits_of_a_row_do_not_depend_on_the_others(dtype):
    """With batch_invariant=True, whatever is routed where; without, run to run."""
    weights = cut("m", 264, 512, 4, 1, dtype, "NT")[1]
    rows = operand(600, 512, dtype)
    want = tritemm.grouped_mm(rows[:1], weights, offs=offsets((0, 1, 0, 0)), batch_invariant=True)
    count = 600 if DEVICE == "cuda" else 40
    for before, after in ((0, 3), (7, 1), (count - 20, 19)):
        sizes = (before, 1 + after, 0, 0)
        some = torch.cat([rows[1 : 1 + before], rows[:1], rows[1 : 1 + after]])
        found = tritemm.grouped_mm(some, weights, offs=offsets(sizes), batch_invariant=True)
        assert torch.equal(found[before], want[0])
        one, two = (tritemm.grouped_mm(some, weights, offs=offsets(sizes)) for _ in range(2))
        assert torch.equal(one, two)


def refusals():
    x, w, offs = torch.randn(8, 4), torch.randn(2, 4, 6), torch.tensor([3, 8], dtype=torch.int32)
    yield TypeError, "argument 'b'", (x, None), {}
    yield RuntimeError, "a is 1D; 2 or 3", (x[0], w), {"offs": offs}
    yield RuntimeError, "K is 4 in a and 6", (x, w.mT), {"offs": offs}
    yield RuntimeError, "offs is missing", (x, w), {}
    yield RuntimeError, "int32", (x, w), {"offs": offs.long()}
    yield RuntimeError, "offs has 1 groups and b has 2", (x, w), {"offs": offs[:1]}
    yield RuntimeError, "leave it out", (w, w.mT), {"offs": offs}
    yield RuntimeError, "bias has shape", (x, w), {"offs": offs, "bias": x[0]}
    yield ValueError, "columns are cut", (w, torch.randn(6, 8)), {"offs": offs, "bias": w[:, 0]}
    yield ValueError, "pairs of columns", (w, torch.randn(6, 8)), {
        "offs": offs, "activation": "swiglu",
    }  # fmt: skip
    yield ValueError, "no rung is called", (x, w), {"offs": offs, "kernel": "none"}
    yield ValueError, "all of one size", (x, w), {"offs": offs, "kernel": "tiled"}
    yield ValueError, "alpha is -inf; here it must", (x, w), {"offs": offs, "alpha": -math.inf}
    yield ValueError, "alpha is nan", (w, w.mT), {"alpha": math.nan}
    yield RuntimeError, "int64 without", (x.char(), w.char()), {"offs": offs, "alpha": 2**70}
    yield ValueError, "int8", (x.char(), w.char()), {"offs": offs, "alpha": 0.5}


@pytest.mark.parametrize("case", list(refusals()), ids=lambda case: case[1])
def test_refusals(case):
    error, words, tensors, named = case
    move = [t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in tensors]
    named = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in named.items()}
    with pytest.raises(error, match=words):
        tritemm.grouped_mm(*move, **named)


@pytest.mark.host
@pytest.mark.parametrize("axis", "mnk")
def test_the_host_counts_no_fewer_tiles_than_there_are(axis):
    for sizes, rest in SIZES.values():
        total = sum(sizes) + rest
        M, N = (total if axis == name else 100 for name in "mn")
        space = Grouped(M, N, len(sizes), axis)
        for rows, columns in itertools.product((16, 64), (32, 128)):
            down, across = math.ceil(100 / rows), math.ceil(100 / columns)
            if axis == "k":
                there = down * across * len(sizes)
            elif axis == "m":
                there = across * sum(math.ceil(size / rows) for size in (*sizes, rest))
            else:
                there = down * sum(math.ceil(size / columns) for size in (*sizes, rest))
            assert there <= space.tiles(rows, columns) <= space.elements
