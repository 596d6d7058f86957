"""fp64 and fp32 by residues of int8: what is made of operands, what of products, what goes back."""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

import tritemm
from tests.harness import DEVICE, Guarded, assert_right, ids, operand, sweep
from tritemm import budget, plan
from tritemm.kernels import residues
from tritemm.problem import DEFAULT_MODULI, INTERPRETER, MODULI, Problem
from tritemm.problem.residues import LONGEST, RESIDUES, largest_norm
from tritemm.rungs import find

gpu = pytest.mark.gpu
TYPES = {"fp64": torch.float64, "fp32": torch.float32}


def multiplied(a, b, precision="int8", rung="pipelined"):
    """The product by residues, the flag, and the problem."""
    out = torch.full((*a.shape[:-1], b.shape[-1]), math.nan, dtype=a.dtype, device=a.device)
    problem, *views = plan.matrices(a, b, out, precision, None)
    kernel = find(rung)
    view = problem.packed("ab")
    config = kernel.interpreted if problem.device == INTERPRETER else kernel.configs(view)[0]
    config = dataclasses.replace(config, PACK="ab")
    launch = lambda *planes: kernel.launch(config.view(problem), config, *planes)  # noqa: E731
    flag, _ = residues.multiply(problem, *views, launch)
    return out, int(flag[0]), problem


def test_moduli_are_coprime_and_fit_in_bytes():
    for i, p in enumerate(MODULI):
        assert 128 < p <= 256 and all(math.gcd(p, q) == 1 for q in MODULI[:i])
    for dtype, count in DEFAULT_MODULI.items():
        bits = -math.log2(torch.finfo(dtype).eps / 2)
        assert bits + 3 < math.log2(largest_norm(count)) < bits + 7
    assert 128 * 128 * LONGEST < 2**31


@pytest.mark.parametrize("p", MODULI)
def test_any_int32_has_a_residue_of_a_byte(p):
    """By the arithmetic of `device.residues.residue`, for values around every kind of multiple."""
    inverse = 2**39 // p
    for value in (*range(2000), *range(2**32 - 2000, 2**32), *range(0, 2**32, 99_991 * p)):
        for v in {value, min(value + 1, 2**32 - 1), max(value - 1, 0)}:
            rest = v - ((v * inverse >> 32) >> 7) * p
            assert 0 <= rest < 256 and (rest - v) % p == 0


@sweep(
    size=ids([(40, 9, 70), (1, 1, 1), (9, 17, 300)]), layout=ids(["NN", "NT", "TN", "SS"]),
    batch=ids([(), (2,), (2, 1)]), offset=ids([0, 1]), dtype=ids(TYPES.values()),
)  # fmt: skip
def test_products(size, layout, batch, offset, dtype):
    M, N, K = size
    a = operand(M, K, dtype, layout[0], batch, offset)
    b = operand(K, N, dtype, layout[1], batch[-1:], offset)
    out, flag, _ = multiplied(a, b)
    verdict = budget.check(out, a, b, precision=f"int8x{DEFAULT_MODULI[dtype]}", planes=True)
    assert verdict.ok or flag, verdict


@pytest.mark.parametrize("count", [5, 9, 12, 15, 16])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_how_much_a_number_of_moduli_loses(count, dtype):
    a = torch.randn(24, 256, dtype=dtype, device=DEVICE)
    b = torch.randn(256, 20, dtype=dtype, device=DEVICE)
    precision = f"int8x{count}"
    out, flag, _ = multiplied(a, b, precision)
    assert not flag
    assert_right(out, a, b, precision=precision, planes=True)
    if dtype == torch.float64 and count < 12:
        less = f"int8x{count + 4}"
        assert not budget.check(out, a, b, precision=less, planes=True).ok


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_no_worse_than_sums_in_the_type(dtype):
    """Element by element, against exact sums."""
    a = torch.randn(8, 300, dtype=dtype, device=DEVICE)
    b = torch.randn(300, 8, dtype=dtype, device=DEVICE)
    out, flag, _ = multiplied(a, b)
    rows, columns = a.tolist(), b.mT.tolist()
    exact = [[sum(Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True))
              for column in columns] for row in rows]  # fmt: skip
    size = (a.double().abs() @ b.double().abs()).tolist()

    def worst(c):
        return max(
            abs(Fraction(c[i][j].item()) - exact[i][j]) / Fraction(size[i][j])
            for i in range(8) for j in range(8)
        )  # fmt: skip

    assert not flag
    assert worst(out) < max(worst(a @ b), Fraction(torch.finfo(dtype).eps))
    assert worst(out) < Fraction(torch.finfo(dtype).eps)


def test_whole_numbers_are_exact():
    a = torch.randint(-1000, 1000, (9, 500), device=DEVICE).double()
    b = torch.randint(-1000, 1000, (500, 7), device=DEVICE).double()
    out, flag, _ = multiplied(a, b)
    assert not flag and torch.equal(out.cpu(), a.cpu() @ b.cpu())


@pytest.mark.parametrize("precision", RESIDUES)
def test_sums_of_nothing_are_zero(precision):
    zeros = torch.zeros(3, 5, dtype=torch.float64, device=DEVICE)
    unit = torch.eye(5, dtype=torch.float64, device=DEVICE)
    assert torch.equal(multiplied(zeros, unit, precision)[0], zeros)
    assert torch.equal(multiplied(unit, unit, precision)[0], unit)


@pytest.mark.parametrize(("row", "column"), [
    ([1.0, 2.0], [math.inf, math.inf]), ([0.0, 0.0], [math.nan, 1.0]), ([0.0, 0.0], [math.inf] * 2),
    ([math.inf], [1.0]), ([-math.inf], [0.0]), ([1e200, 1e-200], [0.0, 1.0]),
], ids=str)  # fmt: skip
def test_what_no_bound_holds_for_goes_back(row, column):
    """Lines of nothing but infinity, or zero; and elements that vanish when the line is scaled."""
    a, b = (torch.tensor(x, dtype=torch.float64, device=DEVICE) for x in (row, column))
    assert multiplied(a[None], b[:, None])[1]
    assert multiplied(b[None], a[:, None])[1]


def test_an_overlap_that_fp32_cannot_tell_goes_back():
    K, d = 4096, 2.0**-15
    a = torch.where(torch.arange(K, device=DEVICE) >= K // 2, 1 + d, 1 - d)
    a[0] = 0
    b = torch.full((K,), 2.0**-70, device=DEVICE)
    b[0] = 1
    assert multiplied(a[None], b[:, None], "int8x16")[1]


def special(name, dtype):
    """Operands [20, 100] and [100, 30] in which something is special."""
    a = torch.randn(20, 100, dtype=dtype, device=DEVICE)
    b = torch.randn(100, 30, dtype=dtype, device=DEVICE)
    if name in ("inf", "-inf", "nan"):
        a[3, 5] = float(name)
        return a, b
    most = torch.finfo(dtype).max
    graded = torch.randn_like(a, dtype=torch.float64).mul(12).exp().to(dtype)
    return {
        "zero": (a * 0, b),
        "zero rows": (a * (torch.arange(20, device=DEVICE) % 2)[:, None], b),
        "graded rows": (a * torch.logspace(-30, 30, 20, dtype=dtype, device=DEVICE)[:, None], b),
        "graded columns": (a, b * torch.logspace(-35, 30, 30, dtype=dtype, device=DEVICE)),
        "graded": (a * graded, b),
        "largest": (a.clamp(-1, 1) * most, b),
        "small": (a * torch.finfo(dtype).tiny, b),
        "subnormal": (a * torch.finfo(dtype).tiny * 2.0**-10, b),
        "subnormal result": (a * torch.finfo(dtype).tiny, b * 2.0**-10),
    }[name]


SPECIAL = (
    "inf", "-inf", "nan", "zero", "zero rows", "graded rows", "graded columns", "graded", "largest",
    "small", "subnormal", "subnormal result",
)  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_what_is_special_is_right_or_goes_back(name, dtype):
    a, b = special(name, dtype)
    out, flag, problem = multiplied(a, b)
    if name in ("inf", "-inf", "nan", "graded"):
        assert flag
    if name in ("zero", "graded rows", "graded columns", "small"):
        assert not flag
    if flag:
        return
    if name == "largest":  # sums in the type overflow on the way
        a, out = a * 2.0**-20, out * 2.0**-20
        out[out.isinf()] = (a @ b)[out.isinf()]
    if name.startswith("subnormal") and dtype == torch.float64:  # where torch rounds each product
        torch.testing.assert_close(out, a @ b, rtol=0, atol=20 * 2.0**-1074)
        return
    verdict = budget.check(out, a, b, precision=problem.precision, planes=True)
    assert verdict.ok, verdict


class TestChoice:
    def explain(self, *size, dtype=torch.float64, device="H200", precision="int8", **options):
        M, N, K = size
        a = torch.empty(M, K, device="meta", dtype=dtype)
        b = torch.empty(N, K, device="meta", dtype=dtype).mT
        return tritemm.explain(a, b, device=device, precision=precision, **options)

    @pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
    def test_large_products(self, dtype):
        count = DEFAULT_MODULI[dtype]
        text = str(self.explain(4096, 4096, 4096, dtype=dtype))
        assert f"residues   a and b, modulo {count} numbers up to 256; {count} products" in text
        assert f"(int8x{count})" in text and "error      up to" in text

    @pytest.mark.parametrize(("size", "options"), [
        ((8, 4096, 4096), {}), ((512, 512, 512), {}), ((4096, 4096, LONGEST + 1), {}),
        ((4096, 4096, 4096), {"batch_invariant": True}), ((4096, 4096, 4096), {"device": "A100"}),
    ], ids=["rows", "small", "long", "invariant", "A100"])  # fmt: skip
    @pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
    def test_others_are_multiplied_as_they_are(self, size, options, dtype):
        choice = self.explain(*size, dtype=dtype, **options)
        assert choice.problem.precision == "ieee" and "residues" not in str(choice)

    @pytest.mark.parametrize(("K", "changed", "words"), [
        (LONGEST + 1, {}, "int32 holds sums"), (4096, {"SWAP": True}, "SWAP=False"),
        (4096, {"PACK": "a"}, 'PACK="ab"'),
    ])  # fmt: skip
    def test_configs_that_cannot_have_them(self, K, changed, words):
        config = self.explain(4096, 4096, 4096).config
        config = dataclasses.replace(config, **changed)
        with pytest.raises(ValueError, match=words):
            self.explain(4096, 4096, K, kernel="cluster", config=config)

    def test_residues_that_take_too_much_memory(self):
        choice = self.explain(100_000, 100_000, 1024)
        assert choice.problem.precision == "ieee" and "no kernel offers int8x15" in str(choice)

    def test_a_rung_that_has_none_says_so(self):
        with pytest.raises(ValueError, match="int8x15 is a product of residues"):
            self.explain(64, 64, 64, kernel="tiled")


def test_words_of_other_types_are_refused():
    a = torch.ones(4, 4, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(ValueError, match="how float32 or float64 operands are multiplied"):
        tritemm.matmul(a, a, precision="int8x9")
    with pytest.raises(ValueError, match="is unknown"):
        tritemm.matmul(a.double(), a.double(), precision="int8x4")
    with pytest.raises(ValueError, match="how float32 operands are multiplied"):
        tritemm.matmul(a.double(), a.double(), precision="bf16x9")


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_what_follows_is_torchs(dtype):
    a, b = (torch.randn(20, 20, dtype=dtype, device=DEVICE) for _ in range(2))
    c = torch.randn(20, 20, dtype=dtype, device=DEVICE)
    out = tritemm.addmm(c, a, b, alpha=2.0, beta=-1.0, precision="int8")
    torch.testing.assert_close(out, torch.addmm(c, a, b, alpha=2.0, beta=-1.0))


@gpu
@sweep(
    size=ids([(256, 512, 384), (333, 200, 77), (1000, 136, 513)]),
    layout=ids(["NN", "NT", "TN", "SS"]), batch=ids([(), (3,), (2, 3)]), offset=ids([0, 3]),
    dtype=ids(TYPES.values()), rung=ids(["cluster", "pipelined", "cluster_split_k"]),
)  # fmt: skip
def test_by_rungs(size, layout, batch, offset, dtype, rung):
    M, N, K = size
    a = operand(M, K, dtype, layout[0], batch, offset)
    b = operand(K, N, dtype, layout[1], batch, offset)
    guarded = Guarded.like((*batch, M, N), dtype)
    problem, *views = plan.matrices(a, b, guarded.tensor, "int8", None)
    kernel, view = find(rung), problem.packed("ab")
    if kernel.why_not(view):
        pytest.skip("the rung refuses it")
    for config in kernel.configs(view)[:4]:
        guarded.tensor.fill_(guarded.poison)
        plan.run(kernel, problem, dataclasses.replace(config, PACK="ab"), *views)
        guarded.assert_untouched_outside()
        verdict = budget.check(guarded.tensor, a, b, precision=problem.precision, planes=True)
        assert verdict.ok, f"{config}, {problem}: {verdict}"


@gpu
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_special_operands_are_multiplied_again(name, dtype):
    a, b = (t.repeat(60, 60) for t in special(name, dtype))
    first, again = (tritemm.matmul(a, b, precision="int8") for _ in range(2))
    want = a @ b
    if name != "largest":  # where torch's sums overflow on the way
        assert torch.equal(first.isnan(), want.isnan()) and torch.equal(first.isinf(), want.isinf())
    assert torch.equal(first.nan_to_num(), again.nan_to_num())
    fine = want.isfinite().all(1)
    if "subnormal" in name:
        torch.testing.assert_close(first[fine], want[fine], rtol=1e-4, atol=1e-37)
    elif fine.any():  # by residues, or as the instruction behind the flag does it
        of_one, of_other = (
            budget.check(first[fine], a[fine], b, precision=how, planes=how != "ieee")
            for how in ({torch.float64: "int8x15", torch.float32: "int8x7"}[dtype], "ieee")
        )
        assert of_one.ok or of_other.ok, of_one


@gpu
def test_captured_and_differentiated():
    a, b = (torch.randn(2048, 2048, dtype=torch.float64, device=DEVICE) for _ in range(2))
    a.requires_grad_()
    want = a.detach() @ b
    tritemm.matmul(a, b, precision="int8").sum().backward()
    torch.testing.assert_close(a.grad, torch.ones_like(want) @ b.mT)
    x = a.detach().clone()
    tritemm.matmul(x, b, precision="int8")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tritemm.matmul(x, b, precision="int8")
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(out, 2 * want)


def test_every_word_is_known():
    from tritemm.dtypes import PRECISIONS

    assert [word for word in PRECISIONS if word.startswith("int8x")] == list(RESIDUES)
    for word in RESIDUES:
        size = torch.empty(4, 4, dtype=torch.float64, device=DEVICE)
        assert Problem.of(size, size, size, precision=word).splits
