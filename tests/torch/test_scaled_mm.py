"""`scaled_mm`: torch's signature and layouts, what follows the product, errors, graphs."""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.harness import DEVICE, Guarded, assert_right
from tests.kernels.test_scaled import E4M3, E5M2, INT8, scale, values
from tritemm import budget
from tritemm.problem import RECIPES, EpilogueInputs
from tritemm.takeover import routing

F = torch.nn.functional
WORDS = ("tensor", "row", "block", "block2d")


def as_torch(normal, word, column=False):
    """Scales [lines, steps] as `scaled_mm` takes them."""
    if word == "tensor":
        return normal[:1, 0].reshape(())
    if word == "row":
        return normal.mT if column else normal
    return normal.mT if word == "block2d" else normal


def called(M, N, K, words=("row", "row"), types=(E4M3, E4M3), **options):
    """Operands, the normal form of their scales, and the arguments of a call."""
    a, b = values(M, K, types[0]), values(N, K, types[1]).mT
    of_a, of_b = scale(M, K, words[0]), scale(N, K, words[1])
    args = as_torch(of_a, words[0]), words[0], as_torch(of_b, words[1], True), words[1]
    return a, b, (of_a, of_b), args


@pytest.mark.wide
@pytest.mark.parametrize("words", list(itertools.product(WORDS, WORDS)), ids="-".join)
def test_recipes(words):
    a, b, scales, args = called(40, 136, 520, words)
    promoted = True
    c = tritemm.scaled_mm(a, b, *args, output_dtype=torch.float32)
    assert c.is_contiguous() and c.dtype == torch.float32
    assert_right(c, a, b, scales=(*scales, promoted))
    c = tritemm.scaled_mm(a, b, *args)
    assert c.dtype == torch.bfloat16
    assert_right(c, a, b, scales=(*scales, promoted))


def test_torchs_enums_lists_and_padded_scales():
    M, N, K = 24, 200, 640
    a, b, scales, _ = called(M, N, K, ("block", "block2d"))
    kinds = getattr(F, "ScalingType", None)
    if kinds is None:
        pytest.skip("torch has no ScalingType")
    padded = torch.full((8, 2), float("nan"), device=DEVICE).mT.contiguous().mT
    padded[:5] = scales[1].mT
    c = tritemm.scaled_mm(
        a, b, [scales[0]], [kinds.BlockWise1x128], padded, kinds.BlockWise128x128,
        output_dtype=torch.float32,
    )  # fmt: skip
    assert_right(c, a, b, scales=(*scales, True))


def test_square_scales_are_read_along_k_where_their_stride_is_one():
    a, b, scales, args = called(16, 384, 384, ("row", "block2d"))
    for given in (scales[1].contiguous(), scales[1].contiguous().mT):  # DeepGEMM's, and torch's
        c = tritemm.scaled_mm(a, b, *args[:2], given, "block2d", output_dtype=torch.float32)
        assert_right(c, a, b, scales=(*scales, True))


@pytest.mark.wide
@pytest.mark.parametrize("types", [(E4M3, E5M2), (E5M2, E5M2), (INT8, INT8)], ids=str)
@pytest.mark.parametrize("layout", ["NT", "NN", "TN", "TT"])
def test_types_and_strides(types, layout):
    M, N, K = 33, 47, 144
    a, b, scales, args = called(M, N, K, ("row", "tensor"), types)
    a = a.mT.contiguous().mT if layout[0] == "T" else a
    b = b.contiguous() if layout[1] == "N" else b
    c = tritemm.scaled_mm(a, b, *args, output_dtype=torch.float32)
    assert_right(c, a, b, scales=(*scales, types[0] != INT8))


def test_what_follows_and_what_out_holds():
    M, N, K = 40, 64, 272
    a, b, scales, args = called(M, N, K, ("block", "block2d"))
    bias, residual = torch.randn(N, device=DEVICE), torch.randn(M, N, device=DEVICE)
    then = EpilogueInputs(bias, residual, "gelu", 0.5, 2.0)
    more = {"bias": bias, "activation": "gelu", "alpha": 0.5, "output_dtype": torch.float32}
    c = tritemm.scaled_mm(a, b, *args, residual=residual, beta=2.0, **more)
    assert_right(c, a, b, scales=(*scales, True), ending=then)
    guarded = Guarded.like((M, N), torch.float32, pitch_gap=8)
    out = guarded.tensor
    out.copy_(residual)
    assert tritemm.scaled_mm(a, b, *args, out=out, beta=2.0, **more) is out
    guarded.assert_untouched_outside()
    assert_right(out, a, b, scales=(*scales, True), ending=then)


def test_gradients_of_weights_accumulate_in_fp32():
    a, b, scales, args = called(32, 48, 256, ("block", "block"))
    out = torch.zeros(32, 48, device=DEVICE)
    for _ in range(3):
        tritemm.scaled_mm(a, b, *args, output_dtype=torch.float32, out=out, beta=1)
    assert_right(out, a, b, scales=(*scales, True), ending=EpilogueInputs(alpha=3.0))


@pytest.mark.parametrize("size", [(0, 8, 16), (8, 0, 16), (8, 8, 0)], ids=str)
def test_nothing_to_multiply(size):
    M, N, K = size
    a, b = values(M, K, E4M3), values(N, K, E4M3).mT
    one, bias = torch.ones((), device=DEVICE), torch.ones(N, device=DEVICE)
    c = tritemm.scaled_mm(a, b, one, "tensor", one, "tensor", bias=bias)
    assert c.shape == (M, N) and (c == 1).all()


@pytest.mark.once
def test_compiled_and_counted():
    a, b, scales, args = called(40, 64, 272, ("row", "block2d"))

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def multiply(a, b, *args):
        return tritemm.scaled_mm(a, b, *args, output_dtype=torch.float32) * 2

    assert torch.equal(
        multiply(a, b, *args), tritemm.scaled_mm(a, b, *args, output_dtype=torch.float32) * 2
    )
    with FlopCounterMode(display=False) as counter:
        tritemm.scaled_mm(a, b, *args)
    assert counter.get_total_flops() == 2 * 40 * 64 * 272
    a, b, scales, _ = called(40, 64, 272, types=(INT8, INT8))  # opcheck can't copy fp8
    normal = a, b, *scales, None, False, False, None, None, "", 1.0, 1.0, "auto", torch.float32
    torch.library.opcheck(torch.ops.tritemm.scaled_mm.default, normal)


A = torch.zeros(16, 32, device=DEVICE)
ONE = torch.ones((), device=DEVICE)
FP8 = A.to(E4M3)
WRONG = {
    "3D": ((FP8[None], FP8.mT, ONE, "tensor", ONE, "tensor"), {}, RuntimeError, "mat_a is 3D"),
    "types": ((A, FP8.mT, ONE, "tensor", ONE, "tensor"), {}, NotImplementedError, "quantize"),
    "k": ((FP8, FP8, ONE, "tensor", ONE, "tensor"), {}, RuntimeError, "K is 32 in mat_a and 16"),
    "scale": ((FP8, FP8.mT, ONE, "row", ONE, "tensor"), {}, RuntimeError, r"scale_a .*\[16, 1\]"),
    "half": ((FP8, FP8.mT, ONE.half(), "tensor", ONE, "tensor"), {}, RuntimeError, "float32"),
    "recipe": ((FP8, FP8.mT, ONE, "column", ONE, "tensor"), {}, ValueError, "tensor, row, block"),
    "two": ((FP8, FP8.mT, [ONE, ONE], "row", ONE, "row"), {}, ValueError, "one level of scales"),
    "swizzle": ((FP8, FP8.mT, ONE, "tensor", ONE, "tensor", 1), {}, ValueError, "swizzle_a"),
    "no swizzle": ((FP8, FP8.mT, ONE, "tensor", ONE, "tensor", ONE), {}, ValueError, "swizzle_a"),
    "a dimension": (
        (FP8, FP8.mT, ONE, "tensor", ONE, "tensor"), {"contraction_dim": 1}, ValueError,
        "contraction_dim is 1",
    ),
    "no recipe": ((FP8, FP8.mT, ONE, {}, ONE, "tensor"), {}, ValueError, "is {}; one of tensor"),
    "out": (
        (FP8, FP8.mT, ONE, "tensor", ONE, "tensor"), {"output_dtype": torch.float64},
        ValueError, "output_dtype is torch.float64",
    ),
    "kernel": (
        (FP8, FP8.mT, ONE, "tensor", ONE, "tensor"), {"kernel": "tiled"}, ValueError,
        r"operands have scales; kernel=\"\w+\" can run this",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("args", "options", "error", "said"), WRONG.values(), ids=WRONG)
def test_errors(args, options, error, said):
    with pytest.raises(error, match=said):
        tritemm.scaled_mm(*args, **options)


def test_int8_has_no_blocks():
    a, b, _, args = called(16, 16, 256, ("block", "block"), (INT8, INT8))
    with pytest.raises(ValueError, match="int8 operands cover all of K"):
        tritemm.scaled_mm(a, b, *args)


def test_quantized_operands_multiply_as_they_are():
    x, w = torch.randn(40, 300, device=DEVICE), torch.randn(70, 300, device=DEVICE)
    for words in (("row", "row"), ("block", "block2d"), ("tensor", "row")):
        a, b = (tritemm.quantize(t, "fp8", word) for t, word in zip((x, w), words, strict=True))
        of_b = b.scale.mT if words[1] == "row" else b.scale
        c = tritemm.scaled_mm(
            a.values, b.values.mT, a.scale, words[0], of_b, words[1], output_dtype=torch.float32
        )
        right = a.dequantize().double() @ b.dequantize().double().mT
        assert (c - right).abs().max() < 2e-3 * right.abs().max()


def test_torch_agrees():
    """Where torch has a kernel for it: one card, and sizes that it takes."""
    if DEVICE == "cpu" or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("torch has no scaled product here")
    a, b, scales, args = called(64, 96, 512)
    want = torch._scaled_mm(a, b, args[0], args[2], out_dtype=torch.bfloat16)
    got = tritemm.scaled_mm(a, b, *args)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-1)
    assert budget.check(want, a, b, scales=(*scales, False)).ok


def test_what_learns_is_no_argument():
    a, b, _, args = called(40, 64, 256)
    bias = torch.zeros(64, device=DEVICE)

    def multiply(bias):
        return tritemm.scaled_mm(a, b, *args, bias=bias, output_dtype=torch.float32).sum()

    compiled = torch.compile(multiply, backend="aot_eager", fullgraph=True)
    for ask in (
        lambda: multiply(bias.clone().requires_grad_()),
        lambda: compiled(bias.clone().requires_grad_()),
        lambda: torch.func.grad(multiply)(bias),
        lambda: torch.func.jvp(multiply, (bias,), (bias,)),
    ):
        with pytest.raises(Exception, match="have no derivatives"):
            ask()
    with torch.no_grad():
        assert multiply(bias.requires_grad_()).isfinite()


def test_the_order_of_the_scales_changes_no_bit():
    x, w = torch.full((2, 128), 1e34, device=DEVICE), torch.full((2, 128), 1e-10, device=DEVICE)
    a, b = tritemm.quantize(x), tritemm.quantize(w)
    found = [
        tritemm.scaled_mm(
            p.values, q.values.mT, p.scale, "row", q.scale, "row", output_dtype=torch.float32
        )
        for p, q in ((a, b), (b, a))
    ]
    assert torch.equal(*found) and found[0].isfinite().all()


def test_explained_for_a_gpu_that_is_elsewhere():
    """What is copied is said, and counted; no rung is chosen that would leave scales out."""
    a, b, _, args = called(1024, 512, 2048, ("block", "block2d"))
    choice = tritemm.explain(a, b, scales=args, activation="silu", device="H200")
    assert choice.problem.sums == "block" and choice.problem.epilogue.activation == "silu"
    assert "block" in choice.kernel.limits.sums and not choice.config.PACK
    choice = tritemm.explain(a, b.contiguous(), scales=args, device="H200")
    assert choice.config.PACK == "b" and "packed     b, because" in str(choice)
    fast = tritemm.explain(
        a, b, scales=called(1024, 512, 2048)[3], use_fast_accum=True, device="H200"
    )
    assert fast.problem.sums == "whole"
    for wrong in (args[:2], 5):
        with pytest.raises(TypeError, match="scales are scale_a, its recipe, scale_b"):
            tritemm.explain(a, b, scales=wrong, device="H200")


def test_settings_reach_torchs_scaled_products(monkeypatch):
    a, b, scales, args = called(40, 64, 256)
    seen, product = [], routing.product

    def noted(a, b, out, options, *rest):
        seen.append(options[0])
        return product(a, b, out, options, *rest)

    monkeypatch.setattr(routing, "product", noted)
    for fixed in (False, True):
        with tritemm.enabled(batch_invariant=fixed):
            torch._scaled_mm(a, b, scales[0], args[2], out_dtype=torch.bfloat16)
    assert seen == ["auto", "auto/batch_invariant"]


def test_torchs_calls_are_routed():
    a, b, scales, args = called(40, 64, 256, ("row", "row"))
    i, j, *_ = called(40, 64, 256, types=(INT8, INT8))
    with tritemm.enabled() as report:
        whole = torch._int_mm(i, j)
        c = torch._scaled_mm(a, b, scales[0], args[2], out_dtype=torch.float32)
    assert report.ran == {"_int_mm": 1, "_scaled_mm": 1}
    assert torch.equal(whole.double(), i.double() @ j.double())
    assert_right(c, a, b, scales=(*scales, True))


WORDS = [("tensor", "tensor"), ("row", "row"), ("block", "block2d"), ("block", "block")]


@pytest.mark.parametrize("words", WORDS, ids="-".join)
def test_torchs_recipes_are_routed(words):
    """`_scaled_mm_v2`, which F.scaled_mm calls; its meta function refuses scales of blocks."""
    kinds = getattr(torch.nn.functional, "ScalingType", None)
    if kinds is None:
        pytest.skip("torch has no ScalingType")
    a, b, scales, args = called(48, 272, 512, words)
    recipes = [getattr(kinds, RECIPES[word]).value for word in words]
    given = [args[0]], recipes[:1], [], [args[2]], recipes[1:], [], None, torch.bfloat16
    with tritemm.enabled() as report:
        c = routing.ROUTES["_scaled_mm_v2"].work(a, b, *given)
        fast = torch.ops.aten._scaled_mm_v2(a, b, *given, (), True) if words[0] == "row" else c
    assert_right(c, a, b, scales=(*scales, True))
    assert_right(fast, a, b, scales=(*scales, False))
    assert report.ran == ({"_scaled_mm_v2": 1} if words[0] == "row" else {})


REFUSED_RECIPES = {
    "a swizzle": {4: [1]}, "two levels": {2: [torch.ones(()), torch.ones(())]},
    "an order": {10: [1, 0]}, "another recipe": {3: [3]}, "a scale": {2: [torch.ones(3)]},
    "a type": {9: torch.float64}, "a bias": {8: torch.ones(3)},
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED_RECIPES.values(), ids=REFUSED_RECIPES)
def test_recipes_that_are_torchs_to_judge(change):
    a, b, _, args = called(48, 64, 256, ("row", "row"))
    given = [a, b, [args[0]], [1], [], [args[2]], [1], [], None, torch.bfloat16, ()]
    for place, value in change.items():
        given[place] = value
    with pytest.raises(routing.Refused):
        routing.ROUTES["_scaled_mm_v2"].work(*given)


@pytest.mark.parametrize("words", [("block", "block2d"), ("block2d", "block"), ("block", "block")])
def test_torchs_blocks_are_routed(words):
    M, N, K = 48, 272, 512
    a, b, scales, _ = called(M, N, K, words)
    if DEVICE == "cpu":  # whose kernel checks less than the meta function of others
        pytest.skip("torch refuses such scales here, before a kernel is looked for")
    with tritemm.enabled() as report:
        c = torch._scaled_mm(a, b, scales[0], scales[1].mT, out_dtype=torch.bfloat16)
    assert report.ran == {"_scaled_mm": 1}
    assert_right(c, a, b, scales=(*scales, True))


def test_what_torch_refuses_is_torchs_to_refuse():
    a, b, _, args = called(40, 24, 256)  # N is no multiple of 16
    i, j, *_ = called(8, 64, 256, types=(INT8, INT8))
    with tritemm.enabled() as report:
        for call in (lambda: torch._int_mm(i, j), lambda: torch._scaled_mm(a, b, *args[::2])):
            try:
                call()
            except (RuntimeError, NotImplementedError):
                continue
    assert set(report.fell_back) == {"_int_mm", "_scaled_mm"}
    assert not report.ran.keys() & report.fell_back.keys()  # what torch makes of them may come here
