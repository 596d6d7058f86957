"""fp32 as planes of bf16: what is split, what is multiplied, and what goes to FFMA."""

import dataclasses
import inspect
import math

import pytest
import torch

import tritemm
from tests.harness import DEVICE, Guarded, assert_right, ids, operand, sweep
from tritemm import budget, dispatch, plan
from tritemm.compile import asm
from tritemm.dispatch.request import Request, why_not
from tritemm.kernels import pack as packing
from tritemm.kernels.pack import copied_bytes, pack
from tritemm.problem import PLANE_STEP, PLANES, PRODUCTS, EpilogueInputs, EpilogueSpec, Problem
from tritemm.rungs import find

CLUSTER = find("cluster")
FP32 = torch.float32
gpu = pytest.mark.gpu


def problem_of(a, b, precision="bf16x9", **more):
    return Problem.of(a, b, torch.empty(*a.shape[:-1], b.shape[-1], device="meta"),
                      precision=precision, **more)  # fmt: skip


@sweep(
    size=ids([(40, 70), (129, 64), (3, 200), (1, 1)]), layout=ids(["N", "T", "S"]),
    batch=ids([(), (2,), (2, 3)]), offset=ids([0, 1]), aligned=ids([False, True]),
)  # fmt: skip
def test_planes_sum_up_to_the_operand(size, layout, batch, offset, aligned):
    rows, K = size
    a = operand(rows, K, FP32, layout, batch, offset, aligned)
    b = operand(K, rows + 1, FP32, layout, batch, offset, aligned)
    for t in (a, b):
        t[..., 0, 0] = 1.4e-45
    problem = problem_of(a, b)
    target = problem.packed("ab")
    assert target.planes and PRODUCTS["bf16x9"] * -(-K // PLANE_STEP) * PLANE_STEP == target.K
    depth = target.a.cols // PLANES
    first, second, flag, _ = pack(problem, "ab", a, b)
    assert flag[0] == 0
    for planes, t, dim in ((first, a, -1), (second, b, -2)):
        parts = planes.double().view(*batch, *planes.shape[-2:]).split(depth, dim)
        size = t.shape[dim]
        assert torch.equal(sum(p.narrow(dim, 0, size) for p in parts), t.double() * 2.0**16)
        if depth > size:
            assert all((p.narrow(dim, size, depth - size) == 0).all() for p in parts)


@pytest.mark.parametrize("operands", ["a", "b"])
def test_a_copy_of_one_operand_is_no_split(operands):
    """Triton's dot multiplies it; so there is no flag, and nothing behind one."""
    a, b = torch.randn(20, 30, device=DEVICE), torch.randn(30, 12, device=DEVICE)
    problem = problem_of(a, b, "bf16x6")
    *_, flag, _ = pack(problem, operands, a, b)
    assert flag is None and len(copied_bytes(problem, operands)) == 1
    kernel = find("pipelined")
    config = dataclasses.replace(kernel.configs(problem)[0], PACK=operands)
    out = tritemm.matmul(a, b, precision="bf16x6", kernel="pipelined", config=config)
    assert_right(out, a, b, precision="bf16x6")


def test_every_finite_number_below_2_to_111_is_the_sum_of_its_planes():
    exponents = torch.arange(-149, 111, dtype=torch.float64)
    b = (exponents.exp2() * 1.7320508).to(FP32)[:, None].to(DEVICE)
    b = torch.cat([b, (exponents.exp2() * (2 - 2.0**-23)).to(FP32)[:, None].to(DEVICE)])
    problem = problem_of(b.mT, b)
    first, _, _, _ = pack(problem, "ab", b.mT, b)
    parts = first.double().split(problem.packed("ab").a.cols // PLANES, 1)
    assert torch.equal(sum(p[:, : len(b)] for p in parts), b.mT.double() * 2.0**16)


def test_what_has_no_planes_becomes_infinite():
    """Which the product's flag is for."""
    a = torch.full((1, 1), torch.finfo(FP32).max, device=DEVICE)
    assert pack(problem_of(a, a), "ab", a, a)[0][0, 0] == math.inf


def test_bytes_are_those_of_the_copies_and_a_flag():
    a, b = torch.empty(40, 100, device=DEVICE), torch.empty(100, 30, device=DEVICE)
    problem = problem_of(a, b)
    first, second, *_ = pack(problem, "ab", a, b)
    assert copied_bytes(problem, "ab") == [
        first.untyped_storage().nbytes(), second.untyped_storage().nbytes(), 16,
    ]  # fmt: skip
    assert problem.copied("ab") == 10 * (a.numel() + b.numel())


@pytest.mark.parametrize("precision", PRODUCTS)
class TestChoice:
    def explain(self, precision, *size, device="H200", **options):
        M, N, K = size
        a, b = torch.empty(M, K, device="meta"), torch.empty(N, K, device="meta").mT
        return tritemm.explain(a, b, device=device, precision=precision, **options)

    def test_large_products_are_split(self, precision):
        text = str(self.explain(precision, 4096, 4096, 4096))
        assert f"split      a and b, into 3 planes of bf16 each; {PRODUCTS[precision]}" in text
        assert "error      up to" in text

    @pytest.mark.parametrize(("size", "options"), [
        ((8, 4096, 4096), {}), ((2048, 2048, 2048), {"batch_invariant": True}),
        ((2048, 2048, 2048), {"symmetric": True}), ((2048, 2048, 2048), {"device": "A100"}),
        ((2048, 2048, 2048), {"device": "B200"}),
    ], ids=["rows", "invariant", "symmetric", "A100", "B200"])  # fmt: skip
    def test_others_are_multiplied_as_they_are(self, precision, size, options):
        choice = self.explain(precision, *size, **options)
        assert choice.config.PACK != "ab" and "into 3 planes" not in str(choice)
        by_triton = "device" in options and precision == "bf16x6"
        assert choice.problem.precision == (precision if by_triton else "ieee")

    def test_a_rung_without_planes_says_so(self, precision):
        if precision == "bf16x9":
            with pytest.raises(ValueError, match="bf16x9 is a product of planes"):
                self.explain(precision, 64, 64, 64, kernel="tiled")
        else:
            assert self.explain(precision, 64, 64, 64, kernel="tiled").kernel.name == "tiled"


def test_torchs_own_word(monkeypatch):
    from tritemm import dtypes

    class Flags:
        fp32_precision = "bfx9"

    monkeypatch.setattr(torch.backends.cuda, "matmul", Flags)
    assert dtypes.resolve(None, FP32) == "bf16x9"
    assert dtypes.resolve(None, torch.bfloat16) == "ieee"


def test_fp32_is_another_name_of_precision():
    layer = torch.nn.Linear(8, 8, device=DEVICE)
    tritemm.convert(layer, fp32="bf16x9")
    assert "precision=bf16x9" in repr(layer)
    with pytest.raises(ValueError, match="one option"):
        tritemm.convert(layer, fp32="bf16x9", precision="tf32")
    with pytest.raises(ValueError, match=r"^fp32='bf16x7' is"), tritemm.enabled(fp32="bf16x7"):
        pass
    a, b = torch.randn(5, 16, device=DEVICE), torch.randn(16, 4, device=DEVICE)
    with tritemm.enabled(fp32="bf16x9") as report:
        c = a @ b
    assert report.ran == {"mm": 1}
    assert_right(c, a, b, precision="bf16x9")


def configs_of(problem):
    """Some of the rung's configs of planes, and some that it doesn't list."""
    view = problem.packed("ab")
    own = CLUSTER.configs(view)
    more = [dataclasses.replace(own[0], BLOCK_M=m, BLOCK_N=n, num_stages=s)
            for m, n, s in ((256, 128, 3), (128, 192, 3), (256, 64, 4))]  # fmt: skip
    found = [dataclasses.replace(c, PACK="ab") for c in (*own[:2], own[-1], *more)]
    able = [c for c in found if why_not(CLUSTER, view, c) is None]
    assert able
    return able


def run(problem, config, a, b, c, *more):
    plan.run(CLUSTER, problem, config, a, b, c, *more)
    return c


@gpu
@sweep(
    size=ids([(256, 512, 384), (333, 200, 77), (129, 1000, 1), (1000, 136, 513)]),
    layout=ids(["NN", "NT", "TN", "TT"]), batch=ids([(), (3,)]), offset=ids([0, 3]),
    precision=ids(PRODUCTS),
)  # fmt: skip
def test_every_config(size, layout, batch, offset, precision):
    M, N, K = size
    a = operand(M, K, FP32, layout[0], batch, offset)
    b = operand(K, N, FP32, layout[1], batch, offset)
    guarded = Guarded.like((*batch, M, N), FP32)
    problem = Problem.of(a, b, guarded.tensor, precision=precision)
    for config in configs_of(problem):
        guarded.tensor.fill_(guarded.poison)
        run(problem, config, a, b, guarded.tensor)
        guarded.assert_untouched_outside()
        verdict = budget.check(guarded.tensor, a, b, precision=precision, planes=True)
        assert verdict.ok, f"{config}, {problem}: {verdict}"


@gpu
@pytest.mark.parametrize("precision", PRODUCTS)
@pytest.mark.parametrize("K", [64, 1024, 8192])
def test_sums_of_one_sign_are_promoted(precision, K):
    """Which one sum by the tensor core would not hold."""
    a, b = (torch.rand(256, K, device=DEVICE) + 0.5 for _ in range(2))
    b = b.mT
    problem = Problem.of(a, b, torch.empty(256, 256, device=DEVICE), precision=precision)
    out = run(problem, configs_of(problem)[0], a, b, torch.empty(256, 256, device=DEVICE))
    assert_right(out, a, b, precision=precision, planes=True)
    if K == 8192:
        x, y = (t.bfloat16() for t in (a, b))
        whole = tritemm.matmul(x, y, kernel="cluster", out_dtype=FP32)
        assert not budget.check(whole, x.float(), y.float(), precision=precision, planes=True).ok


@gpu
@pytest.mark.parametrize("precision", PRODUCTS)
@pytest.mark.parametrize("activation", ["", "silu", "relu"])
def test_what_follows(precision, activation):
    a, b = torch.randn(200, 300, device=DEVICE), torch.randn(300, 260, device=DEVICE)
    bias, c = torch.randn(260, device=DEVICE), torch.randn(200, 260, device=DEVICE)
    then = EpilogueInputs.made(a, b, bias, c, activation, 0.5, 2.0)
    out = torch.empty_like(c)
    problem = Problem.of(a, b, out, precision=precision, residual=c, **then.fields)
    for config in configs_of(problem):
        run(problem, config, a, b, out, *then.tensors, *then.factors)
        assert_right(out, a, b, precision=precision, ending=then, planes=True)


def special(name):
    """Operands [200, 300] and [300, 260] in which something is special."""
    a, b = torch.randn(200, 300, device=DEVICE), torch.randn(300, 260, device=DEVICE)
    if name in ("inf", "-inf", "nan", "largest"):
        a[3, 5] = torch.finfo(FP32).max if name == "largest" else float(name)
        return a, b * 1e-3
    k = torch.logspace(-30, 30, 300, device=DEVICE)
    return {
        "zero": (a * 0, b),
        "large": (a * 1e20, b * 1e15),
        "overflow": (a.abs() * 1e20, b.abs() * 1e20),
        "subnormal": (a * 1e-40, b),
        "small result": (a * 1e-20, b * 1e-21),
        "1e30": (a * 1e30, b * 1e-30),
        "graded rows": (a * torch.randn(200, 1, device=DEVICE).mul(20).exp(), b),
        "graded": (a * torch.randn_like(a).mul(10).exp(), b * torch.randn_like(b).mul(10).exp()),
        "graded along K": (a * k, b / k[:, None]),
        "cancelling": (torch.cat([a, a], 1), torch.cat([b, b * -(1 + 1e-6)])),
    }[name]


SPECIAL = ("inf", "-inf", "nan", "largest", "zero", "large", "overflow", "subnormal",
           "small result", "1e30", "graded rows", "graded", "graded along K",
           "cancelling")  # fmt: skip


@gpu
@pytest.mark.parametrize("precision", PRODUCTS)
@pytest.mark.parametrize("name", SPECIAL)
def test_infinities_and_all_exponents(name, precision):
    a, b = special(name)
    out = torch.empty(a.shape[0], b.shape[1], device=DEVICE)
    problem = Problem.of(a, b, out, precision=precision)
    run(problem, configs_of(problem)[0], a, b, out)
    want = a.double() @ b.double()
    beyond = want.abs() > torch.finfo(FP32).max
    usual = want.isfinite() & ~beyond
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out[beyond].double(), want[beyond].sign() * math.inf)
    error = budget.relative(a.shape[1]) + 4 * budget.OPERAND_ERROR[precision]
    most = (a.double().abs() @ b.double().abs())[usual] * error + 2.0**-149
    assert ((out.double() - want)[usual].abs() <= most + want[usual].abs() * 2.0**-24).all()


@gpu
class TestFallback:
    def test_it_ends_as_the_product_does(self):
        a, b = special("-inf")
        then = {"activation": "relu", "bias": torch.randn(260, device=DEVICE)}
        config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3,
                  "ORDER": "grouped", "CLUSTER": 2, "PACK": "ab"}  # fmt: skip
        out = tritemm.matmul(a, b, precision="bf16x9", kernel="cluster", config=config, **then)
        want = torch.relu(a.double() @ b.double() + then["bias"].double())
        assert torch.equal(out[3].isfinite(), want[3].isfinite())
        assert (out - want).nan_to_num(0, 0, 0).abs().max() < 1e-4

    def test_what_is_added_to_is_read_once(self):
        """The first kernel writes C; FFMA, after it, must not add that again."""
        a, b = torch.randn(1024, 1024, device=DEVICE), torch.randn(1024, 1024, device=DEVICE)
        a[5, 7] = math.inf
        c = torch.ones(1024, 1024, device=DEVICE)
        assert tritemm.explain(a, b, precision="bf16x9").config.PACK == "ab"
        for _ in range(3):
            out = c.clone()
            other = tritemm.matmul(a, b, residual=c, precision="bf16x9", out=torch.empty_like(c))
            tritemm.matmul(a, b, out=out, beta=1, precision="bf16x9")
            assert torch.equal(out.nan_to_num(), other.nan_to_num())
            rest = torch.arange(1024, device=DEVICE) != 5
            assert not out[5].isfinite().any()
            want = a[rest].double() @ b.double() + 1
            assert (out[rest] - want).abs().max() < 1e-3

    def test_each_replay_of_a_graph_looks_anew(self):
        a, b = torch.randn(1024, 1024, device=DEVICE), torch.randn(1024, 1024, device=DEVICE)
        out = torch.empty(1024, 1024, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        assert tritemm.explain(a, b, precision="bf16x6").config.PACK == "ab"
        tritemm.matmul(a, b, precision="bf16x6", out=out)
        with torch.cuda.graph(graph):
            tritemm.matmul(a, b, precision="bf16x6", out=out)
        for value in (math.inf, 1.0, math.nan, 2.0):
            a[0, 0] = value
            graph.replay()
            assert bool(out[0].isfinite().all()) == math.isfinite(value)
            assert out[1:].isfinite().all()
        assert_right(out, a, b, precision="bf16x6", planes=True)


@gpu
def test_gradients_use_the_same(monkeypatch):
    asked = []
    choose = dispatch.choose_whole
    monkeypatch.setattr(dispatch, "choose_whole", lambda p, w: asked.append(p) or choose(p, w))
    a, b = (torch.randn(1024, 1216, device=DEVICE, requires_grad=True) for _ in range(2))
    tritemm.matmul(a, b.mT, precision="bf16x9").square().sum().backward()
    assert [p.precision for p in asked] == ["bf16x9"] * 3
    want = 2 * (a @ b.mT).double() @ b.double()
    assert (a.grad - want).abs().max() < 1e-2


def test_planes_are_made_of_both_operands():
    asked = asm.problem_of(asm.Job("cluster", 90, 512, 512, 512, "NT", "fp32", precision="bf16x9"))
    config = CLUSTER.configs(asked.packed("ab"))[0]
    for pack_ in ("a", "b"):
        word = Request("cluster", dataclasses.replace(config, PACK=pack_))
        with pytest.raises(ValueError, match=r'bf16x9 is a product of planes, .* PACK="ab"'):
            dispatch.choose(asked, str(word))
    symmetric = dataclasses.replace(asked, epilogue=EpilogueSpec(symmetric=True))
    with pytest.raises(ValueError, match="don't support symmetric products or groups"):
        dispatch.choose(symmetric, str(Request("cluster", dataclasses.replace(config, PACK="ab"))))


def test_lines_far_apart_are_split():
    """A stride of 2**31 elements, in units of 16 bytes, is a number of 32 bits."""
    problem = problem_of(torch.empty(2, 64), torch.empty(64, 2))
    far = dataclasses.replace(problem.a, strides=(0, 0, 2**31, 1))
    plan_ = packing._plan(dataclasses.replace(problem, a=far), "ab")
    assert plan_.args["A_WAY"] == "split wide" and plan_.args["a_src_line"] == 2**29
    code = inspect.getsource(packing.pack_matrix.fn)
    assert "src_line = src_line.to(tl.int64)" in code


def test_the_code_of_planes():
    """Both kinds of sums are in registers."""
    job = asm.Job("cluster", 90, 4096, 4096, 4096, "NT", "fp32", precision="bf16x9")
    view = asm.problem_of(job).packed("ab")
    own = [dataclasses.replace(c, PACK="ab") for c in CLUSTER.configs(view)]
    assert {(c.BLOCK_M, c.BLOCK_N) for c in own} >= {(128, 256), (256, 128)}
    jobs = [dataclasses.replace(job, config=config) for config in own[:2]]
    for code in asm.compile_many(jobs, "mix"):
        assert code.local == code.spills == 0 and code.fits, code.config
        assert code.count("HGMMA") >= 16 and code.count("FADD") >= 64
