"""Symmetric products: half of the tiles, mirrored; `syrk`, and Muon's orthogonalisation."""

import itertools

import pytest
import torch
from torch.optim import _muon

import tritemm
from docs.pictures import formulas
from tests.dispatch.choosing import H200
from tests.harness import DEVICE, assert_right, ids, operand, operands, sweep
from tritemm import dispatch
from tritemm.problem import EpilogueInputs, Problem
from tritemm.problem.tile_space import TileSpace, Triangle
from tritemm.rungs import RUNGS

BF16, HALF, FP32 = torch.bfloat16, torch.float16, torch.float32
ABLE = [kernel for kernel in RUNGS if kernel.limits.symmetric]
#: Not slow where kernels are interpreted, and of several tiles in squares and steps of K elsewhere.
LARGE = 1 if DEVICE == "cpu" else 8


def symmetric(n, dtype=FP32, batch=()):
    half = torch.randn(*batch, n, n, dtype=torch.float64, device=DEVICE)
    return (half + half.mT).to(dtype)


@pytest.mark.wide
@sweep(
    kernel={kernel.name: kernel for kernel in ABLE if DEVICE == "cuda" or kernel.interpreted},
    n=ids((8, 72, 136, 1000)),
    batch=ids(((), (3,), (2, 2)), name=lambda b: "x".join(map(str, b)) or "one"),
    dtype=ids((BF16, HALF, FP32)),
    layout={"rows": "N", "columns": "T"},
    after={"alone": (False, 1.0), "residual": (True, -0.5)},
)
def test_every_rung_that_can(kernel, n, batch, dtype, layout, after):
    if DEVICE == "cpu" and n > 200:
        n = 104
    a = operand(n, 40 * LARGE, dtype, layout, batch, aligned=True)
    added, alpha = after
    residual = symmetric(n, dtype, batch) if added else None
    precision = "tf32" if dtype == FP32 and kernel.interpreted is None else None
    more = {"residual": residual, "beta": 2.0} if added else {}
    try:
        c = tritemm.matmul(
            a, a.mT, symmetric=True, alpha=alpha, kernel=kernel.name, precision=precision, **more
        )
    except ValueError as refusal:
        known = "16 or 8 bits are needed", "b is not stored along K, as WGMMA reads tf32"
        if not any(sentence in str(refusal) for sentence in known):
            raise
        pytest.skip(str(refusal))
    assert torch.equal(c, c.mT)
    ending = EpilogueInputs(None, residual, "", alpha, 2.0)
    assert_right(c, a, a.mT, precision=precision or "ieee", ending=ending)


def test_it_may_be_invariant_too():
    a = operand(40, 24, FP32)
    c = tritemm.syrk(a, batch_invariant=True)
    assert torch.equal(c, c.mT)
    assert_right(c, a, a.mT)
    with pytest.raises(TypeError, match=r"syrk\(\) got an unexpected keyword argument 'symmetric'"):
        tritemm.syrk(a, symmetric=False)


@pytest.mark.parametrize("order", ["NT", "TN"])
def test_choices_do_not_depend_on_those_before_them(order):
    """How C is stored decides what fits, and one of each is asked for in turn."""
    dispatch.forget()
    for n in (512, 3904, 4096):
        a = torch.empty(n, 64, dtype=BF16, device="meta")
        for layout in order:
            c = torch.empty(n, n, dtype=BF16, device="meta")
            c = c if layout == "N" else c.mT
            found = dispatch.choose(Problem.of(a, a.mT, c, device=H200, symmetric=True))
            assert found.kernel.config_why_not(found.problem, found.config) is None
            tile = found.kernel.limits.tile(found.problem, found.config)
            assert tile.buffers and tile.in_squares == (layout == "N") and not found.config.SWAP


def test_one_operand_for_all_of_a_batch():
    """Which makes one tall product of one that isn't symmetric."""
    a = operand(24, 16, FP32)
    batch = torch.stack([a, 2 * a, -a])
    c = tritemm.matmul(batch, a.mT, symmetric=True)
    assert torch.equal(c, c.mT)
    assert_right(c, batch, a.mT)


def test_a_kind_that_was_made_before_is_checked_and_has_the_same_bits():
    a, b = operand(24, 16, FP32).requires_grad_(), operand(16, 24, FP32)

    def half(activation):
        return tritemm.matmul(a, b, symmetric=True, activation=activation)

    first = half("silu")
    tritemm.matmul(a, b)
    assert torch.equal(half(None), half(None))
    assert torch.equal(half("silu"), first)
    with pytest.raises(ValueError, match="swiglu halves the columns"):
        half("swiglu")


def test_the_upper_half_is_the_lower():
    """Whatever the product is: a caller who promises too much gets what lies below, twice."""
    a, b = operands(40, 40, 24, FP32)
    c, plain = tritemm.matmul(a, b, symmetric=True), tritemm.matmul(a, b)
    assert torch.equal(c, c.mT) and not torch.equal(plain, plain.mT)
    torch.testing.assert_close(c.tril(), plain.tril())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8], ids=str)
def test_types_whose_triangle_torch_mirrors(dtype):
    a = (10 * torch.randn(33, 20, device=DEVICE)).to(dtype)
    c = tritemm.syrk(a)
    assert torch.equal(c, c.mT)
    torch.testing.assert_close(c.double(), a.double() @ a.double().mT)


def test_no_terms_and_no_product():
    r = symmetric(20)
    empty = torch.empty(20, 0, device=DEVICE)
    assert torch.equal(tritemm.syrk(empty, r, beta=3.0), 3 * r)
    a = torch.full((20, 4), float("nan"), device=DEVICE)
    assert torch.equal(tritemm.syrk(a, r, alpha=0.0, beta=1.0), r)


def test_in_place_of_what_out_holds():
    a, c = operand(50, 30, FP32), symmetric(50)
    want = a @ a.mT - 2 * c
    found = tritemm.syrk(a, out=c, beta=-2.0)
    assert found is c and torch.equal(c, c.mT)
    torch.testing.assert_close(c, want, rtol=1e-4, atol=1e-4)


def test_derivatives():
    x = torch.randn(3, 2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    r = symmetric(3, torch.float64).requires_grad_()

    def of(x, r):
        return tritemm.matmul(x, x.mT, symmetric=True, residual=r, alpha=0.5, beta=2.0)

    def of_symmetric(x, r):  # what is varied stays symmetric
        return of(x, (r + r.mT) / 2)

    assert torch.autograd.gradcheck(of_symmetric, (x, r), check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: of(x, r.detach()), (x,), fast_mode=True)
    active = tritemm.matmul(x, x.mT, symmetric=True, activation="silu")
    assert torch.equal(active, active.mT)


@pytest.mark.parametrize("activation", ["relu", "silu", None])
def test_derivatives_are_those_of_the_product(activation):
    """Operands vary each for itself, and so does a residual: nothing is folded to a triangle."""
    x = torch.randn(3, 3, dtype=torch.float64, device=DEVICE)
    a, b, r = x + x.mT, (x + x.mT) @ (x + x.mT), symmetric(3, torch.float64)
    varied = torch.randn(3, 3, dtype=torch.float64, device=DEVICE)

    def of(**more):
        return lambda a, b, r: tritemm.matmul(a, b, residual=r, activation=activation, **more)

    for transform in (
        lambda f: torch.func.vjp(f, a, b, r)[1](varied),
        lambda f: torch.func.jvp(f, (a, b, r), (varied, varied.mT, 2 * varied))[1],
        lambda f: torch.func.grad(
            lambda *args: (torch.vmap(f)(*(t[None] for t in args)) * varied).sum(), (0, 1, 2)
        )(a, b, r),
    ):
        torch.testing.assert_close(transform(of(symmetric=True)), transform(of()))


def test_vmapped_and_compiled():
    a = operand(24, 16, FP32, batch=(3,))
    each = torch.vmap(tritemm.syrk)(a)
    assert torch.equal(each, each.mT)
    torch.testing.assert_close(each, a @ a.mT, rtol=1e-4, atol=1e-4)
    whole = torch.compile(tritemm.syrk, fullgraph=True)(a)
    assert torch.equal(whole, tritemm.syrk(a))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (lambda: {"bias": torch.ones(8, device=DEVICE)}, "bias= adds to columns"),
        (lambda: {"activation": "swiglu"}, "swiglu halves the columns"),
        (lambda: {"symmetric": "yes"}, "symmetric must be True or False"),
        (lambda: {"symmetric": ""}, "symmetric must be True or False"),
        (
            lambda: {"other": operand(6, 7, FP32)},
            r"has shape \[8, 7\], and a symmetric one is square",
        ),
    ],
    ids=["bias", "gated", "word", "no word", "square"],
)
def test_what_is_not_symmetric_is_refused(more, sentence):
    a = operand(8, 6, FP32)
    with pytest.raises((TypeError, ValueError), match=sentence):
        tritemm.matmul(a, **{"other": a.mT, "symmetric": True} | more())
    with pytest.raises(ValueError, match=r"input has shape \[8\]; "):
        tritemm.syrk(a[:, 0])


def test_rungs_that_compute_all_tiles_say_so():
    a = operand(32, 32, FP32)
    with pytest.raises(ValueError, match="it doesn't support a symmetric C"):
        tritemm.matmul(a, a.mT, symmetric=True, kernel="pipelined")


# Tiles


@pytest.mark.parametrize("order", ["linear", "serpentine", "grouped"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 1), (1, 3), (2, 3), (3, 3)])
def test_each_square_below_the_diagonal_has_its_tiles_once(rows, columns, order):
    """The folded triangle, of any side: no tile twice, and all that hold the lower half."""
    raster = formulas.module("raster")  # the device functions, of plain numbers
    for n in (1, 2, 5, 6, 7, 12, 13):
        count = Triangle(n, n, 1).tiles(rows, columns)
        tiles = [raster.triangular(pid, n, rows, columns, order, 2) for pid in range(count)]
        assert len(set(tiles)) == count
        needed = {
            (i, j)
            for i, j in itertools.product(range(-(-n // rows)), range(-(-n // columns)))
            if (i + 1) * rows - 1 >= j * columns
        }
        assert needed <= set(tiles)
        assert count == raster.tiles_of(n, n, rows, columns, True)


def test_a_triangle_is_half_of_a_square():
    dense, half = TileSpace(4096, 4096, 2), Triangle(4096, 4096, 2)
    assert half.tiles(128, 128) == 2 * 32 * 33 // 2 < dense.tiles(128, 128)
    assert half.elements == 2 * 4096 * 4097 // 2
    a, c = torch.empty(4096, 512, dtype=BF16, device="meta"), torch.empty(4096, 4096, device="meta")
    problem = Problem.of(a, a.mT, c.to(BF16), device=H200, symmetric=True)
    assert problem.flops == 4096 * 4097 * 512
    plain = dispatch.choose(Problem.of(a, a.mT, c.to(BF16), device=H200))
    found = dispatch.choose(problem)
    assert found.kernel in ABLE and found.predicted < 0.75 * plain.predicted


def test_offered_tiles_fit_with_their_mirrors():
    """What stages and two buffers for each piece take is less than the device's shared memory."""
    for rung in (rung for rung in ABLE if rung.interpreted is None):
        a = torch.empty(2048, 2048, dtype=BF16, device="meta")
        problem = Problem.of(a, a.mT, a, device=H200, symmetric=True)
        assert rung.why_not(problem) is None
        for config in rung.configs(problem):
            assert rung.config_why_not(problem, config) is None
            shape = rung.limits.tile(problem, config).shape
            assert shape.TRIANGULAR.value
            assert (shape.C_MAJOR.value == "N") == (shape.ROWS.value == shape.EPI_N.value)


# Muon


def newton_schulz(x, steps=5, a=3.4445, b=-4.7750, c=2.0315):
    """In fp64."""
    x = x.double()
    x = x / x.norm(dim=(-2, -1), keepdim=True)
    for _ in range(steps):
        r = x @ x.mT
        x = a * x + (b * r + c * r @ r) @ x
    return x


@pytest.mark.wide
@pytest.mark.parametrize("gram", [False, True], ids=["step by step", "Gram"])
@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32), (2, 16, 24)], ids=str)
def test_newton_schulz(shape, gram):
    x = torch.randn(*shape, device=DEVICE)
    found = tritemm.newton_schulz(x, gram=gram)
    assert found.shape == x.shape and found.dtype == BF16
    wide = x if shape[-2] <= shape[-1] else x.mT
    want = newton_schulz(wide)
    want = want if shape[-2] <= shape[-1] else want.mT
    error = (found.double() - want).norm() / want.norm()
    assert error < (0.01 if gram else 0.03)


def test_newton_schulz_is_torchs():
    x = torch.randn(24, 40, device=DEVICE)
    torchs = _muon._zeropower_via_newtonschulz(x, (3.4445, -4.7750, 2.0315), 3, 1e-7)
    torch.testing.assert_close(tritemm.newton_schulz(x, 3), torchs, rtol=0.1, atol=0.03)
    assert tritemm.newton_schulz(0 * x).count_nonzero() == 0


@pytest.mark.parametrize("gram", [False, True])
def test_newton_schulz_compiled_and_under_autocast(gram):
    x = torch.randn(40, 24, device=DEVICE)
    want = tritemm.newton_schulz(x, 3, gram=gram)
    whole = torch.compile(tritemm.newton_schulz, fullgraph=True, backend="aot_eager")
    assert torch.equal(whole(x, 3, gram=gram), want)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert torch.equal(tritemm.newton_schulz(x, 3, gram=gram), want)
    assert tritemm.newton_schulz(x.to("meta"), gram=gram).shape == x.shape


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: tritemm.newton_schulz(torch.ones(3)), "two dimensions or more"),
        (lambda: tritemm.newton_schulz(torch.ones(3, 3), 0), "steps must be a whole number"),
        (lambda: tritemm.newton_schulz(torch.ones(3, 3).int()), "not torch.int32"),
        (lambda: tritemm.newton_schulz(torch.ones(3, 3), coefficients=(1, 2)), "three numbers"),
        (lambda: tritemm.newton_schulz(torch.ones(3, 3), coefficients=3.0), "numbers.* not float"),
        (lambda: tritemm.newton_schulz(torch.ones(3, 3), eps=0), "eps must be a number above 0"),
        (lambda: tritemm.newton_schulz(torch.eye(3).to_sparse()), "Use .to_dense"),
    ],
    ids=["vector", "steps", "type", "coefficients", "no coefficients", "eps", "sparse"],
)
def test_newton_schulz_refuses(call, error):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=error):
        call()
