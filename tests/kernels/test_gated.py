"""Gated activations: activation(gate) * up of the halves of one product, in its kernel or after it.

The kernels run on a GPU alone. Here they are compiled, and what they are given is followed on the
CPU: which columns a stage of B gets, which sums make a pair, and where it is stored.
"""

import dataclasses

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.dispatch.choosing import A100, H200, problem
from tests.harness import DEVICE, assert_right, ids, operand, operands, run, rung_param, sweep
from tests.kernels.test_signs import expect_no_faults
from tests.sweep import drawn
from tritemm import budget, dispatch
from tritemm.arch.tiles import HALVES, Cooperative
from tritemm.compile import asm
from tritemm.dispatch import cache
from tritemm.problem import (
    GATED,
    INTERPRETED,
    INTERPRETER,
    EpilogueInputs,
    Problem,
    after,
    refusal,
    stored,
)
from tritemm.problem.config import Config
from tritemm.rungs import RUNGS, find

BF16, HALF, FP32 = torch.bfloat16, torch.float16, torch.float32
#: The rungs that finish pairs of columns.
PAIRS = ("warp_specialized", "pingpong")
pairs = pytest.mark.parametrize("kernel", [find(name) for name in PAIRS], ids=PAIRS)
on_gpu = pytest.mark.parametrize("kernel", [rung_param(find(name)) for name in PAIRS])
TORCHS = {"swiglu": F.silu, "geglu": F.gelu}


def ending_of(activation="swiglu", bias=None, residual=None):
    return EpilogueInputs(bias, residual, activation, 1.0, 1.0)


def ended(pair, activation):
    gate, up = pair.chunk(2, -1)
    return TORCHS[activation](gate) * up


# What is asked of a kernel


def test_a_problem_is_that_of_the_product_and_c_has_half_of_its_columns():
    gated, plain = problem(512, 1024, 256, activation="swiglu"), problem(512, 1024, 256)
    assert (gated.N, gated.c.cols) == (1024, 512)
    assert gated.flops == plain.flops == 2 * 512 * 1024 * 256
    assert plain.bytes - gated.bytes == 512 * 512 * 2
    config = Config(128, 256, 64, num_warps=8, num_stages=3)
    assert config.tiles(gated) == config.tiles(plain) == 16
    assert str(gated).endswith("; swiglu")
    turned = gated.transposed()
    assert (turned.M, turned.c.rows) == (1024, 512) and turned.transposed() is gated
    assert cache.key(gated) != cache.key(plain)
    assert dispatch.apart(gated)[0].problem == plain


def test_who_finishes_pairs():
    """Pairs of columns; all other rungs say that they can't finish them."""
    asked = problem(512, 1024, 256, activation="geglu")
    reasons = {rung.name: rung.why_not(asked) for rung in RUNGS}
    assert {name for name, reason in reasons.items() if reason is None} == set(PAIRS)
    for reason in filter(None, reasons.values()):
        assert "geglu" in reason and ("takes pairs" in reason or "has no epilogue" in reason)
    for name in PAIRS:
        assert "here they are rows" in find(name).why_not(asked.transposed())
        odd = problem(512, 2 * 333, 256, "NN", activation="geglu")
        odd = dataclasses.replace(odd, b=odd.b.packed("N", (1, 1)))
        assert "333 elements into a row" in find(name).why_not(odd)
        assert find(name).why_not(problem(512, 2 * 333, 256, activation="geglu")) is None
        assert "interpreter" in find(name).why_not(on_cpu())


def on_cpu():
    a, b = torch.empty(64, 64, dtype=HALF), torch.empty(64, 64, dtype=HALF)
    return Problem.of(a, b, a[:, :32], activation="swiglu", device=INTERPRETER)


@pytest.mark.parametrize("size", [(8192, 28672, 4096), (1024, 22016, 4096), (16, 28672, 4096)])
def test_one_kernel_where_that_is_faster(size):
    asked = problem(*size, activation="swiglu")
    choice = dispatch.choose_whole(asked)
    assert choice.kernel.name in PAIRS
    assert choice.predicted < dispatch.apart(asked)[1]


def test_what_was_measured_decides(monkeypatch):
    asked = problem(8192, 28672, 4096, activation="swiglu")
    monkeypatch.setattr(cache, "_TABLES", {H200.name: {}})
    config = Config(128, 128, 64, num_warps=8, num_stages=4, ORDER="grouped")
    rung, before = "warp_specialized", dispatch.apart(asked)[0].problem
    for whole, product, one in ((3e-3, 2.9e-3, True), (3.3e-3, 2.9e-3, False), (1e-3, 1e-3, True)):
        cache._TABLES[H200.name] = {
            cache.key(asked): cache.entry(rung, config, whole),
            cache.key(before): cache.entry(rung, config, product),
        }
        dispatch.forget()
        assert (dispatch.choose_whole(asked) is not None) is one
    dispatch.forget()


@pytest.mark.parametrize("batches", [(1, 1), (1, 3), (2, 3)])
def test_the_product_before_it_is_the_one_that_is_made(batches):
    a, b = (torch.empty(*batches, *s, dtype=BF16, device="meta") for s in ((5, 8), (8, 6)))
    c, pair = (torch.empty(*batches, 5, n, dtype=BF16, device="meta") for n in (3, 6))
    gated = Problem.of(a, b, c, device=H200, activation="swiglu")
    plain = Problem.of(a, b, pair, device=H200)
    assert dispatch.selection.argument_of(gated) == plain


def test_a_product_and_then_torch_where_one_kernel_cannot():
    asked = problem(512, 1024, 256, activation="swiglu")
    assert dispatch.choose_whole(asked, "auto/batch_invariant") is None
    assert dispatch.choose_whole(asked, "tma") is None
    assert dispatch.choose_whole(problem(512, 1024, 256, dtype=FP32, activation="swiglu")) is None
    assert dispatch.choose_whole(problem(512, 1024, 256, device=A100, activation="swiglu")) is None
    assert dispatch.choose_whole(on_cpu()) is None
    choice, seconds = dispatch.apart(asked, "tma")
    assert choice.kernel.name == "tma" and seconds > choice.predicted
    assert choice.why.endswith("swiglu by torch's kernels after it")


def test_a_rung_or_a_config_that_is_named():
    asked = problem(512, 1024, 256, activation="swiglu")
    assert dispatch.choose_whole(asked, "pingpong").kernel.name == "pingpong"
    word = "warp_specialized/BLOCK_M=128,BLOCK_N=256,BLOCK_K={},num_warps=8,num_stages={}"
    assert dispatch.choose_whole(asked, word.format(64, 4)).config.num_stages == 4
    assert dispatch.choose_whole(asked, word.format(128, 2)) is None


def test_tiles_whose_columns_are_two_halves():
    for major, n, k, can in (
        ("T", 256, 64, True), ("T", 256, 128, False), ("T", 160, 64, True), ("T", 136, 64, False),
        ("N", 256, 128, True), ("N", 192, 64, False), ("N", 64, 64, False),
    ):  # fmt: skip
        asked = problem(512, 1024, 256, "N" + major, activation="swiglu")
        tile = Cooperative(asked, Config(128, n, k))
        assert (refusal(HALVES, tile) is None) is can, (major, n, k)


# What a launch is given


def stage_of(desc, depth, columns, major):
    """[K, columns] of B's tensor, as a descriptor has it; zeros outside."""
    whole = desc.base.as_strided(desc.shape, desc.strides).float()
    whole = F.pad(whole if major == "N" else whole.T, (0, 256))
    return whole[:depth, columns.start : columns.stop]


def followed(kernel, asked, config, a, b, c, bias):
    """C as a launch writes it: the kernel's steps on what it is called with."""
    args = kernel.prepare(asked, config, a, b, c, bias).args
    shape = {name: value.value for name, value in vars(args["SHAPE"]).items()}
    assert shape["GATED"] and shape["ACTIVATION"] == GATED[asked.epilogue.activation]
    n, epi = shape["BLOCK_N"], shape["EPI_N"]
    first = 1 << (n.bit_length() - 1)
    half = args["N"] // 2
    for col in range(0, args["N"], n):
        gates, ups = [], []
        for desc, begin, width in (
            (args["b_desc"], col, first), (args["b1_desc"], col + first, n - first),
        ):  # fmt: skip
            if not width:
                assert desc is None
                continue
            major = shape["B_MAJOR"]
            assert desc.block_shape[major == "N"] == width // 2
            columns = desc.shape[major == "N"] // 2
            for side, sums in enumerate((gates, ups)):
                where = range(begin // 2 + side * columns, begin // 2 + side * columns + width // 2)
                stage = stage_of(desc, asked.K, where, major)
                sums.append(a.float() @ stage)
        gate, up = torch.cat(gates, 1), torch.cat(ups, 1)
        assert gate.shape[1] % epi == 0
        for i in range(gate.shape[1] // epi):
            place = col // 2 + i * epi
            inside = max(0, min(epi, half - place))
            x, y = (t[:, i * epi : i * epi + inside] for t in (gate, up))
            x, y = x + bias[place : place + inside], y + bias[half + place :][:inside]
            made = TORCHS[asked.epilogue.activation](x) * y
            c[:, place : place + inside] = made.to(c.dtype)
    if args["c_desc"] is not None:
        assert args["c_desc"].block_shape[1] == epi and args["c_desc"].shape[1] == half
    return c


@pytest.mark.skipif(not INTERPRETED, reason="follows a launch on the CPU")
@pairs
@pytest.mark.parametrize(("layout", "half"), [("N", 320), ("T", 320), ("T", 333)])
def test_every_pair_is_finished_and_stored_once(kernel, layout, half):
    pitch = -(-half // 4) * 8
    a = torch.randn(24, 72).to(BF16)
    b = stored(torch.randn, 72, pitch, layout=layout).to(BF16)[:, : 2 * half]
    bias = torch.randn(2 * half).to(BF16)
    c = torch.full((24, half), torch.nan, dtype=BF16)
    asked = Problem.of(a, b, c, device=H200, activation="swiglu", bias=BF16)
    for config in kernel.configs(asked):
        c.fill_(torch.nan)
        followed(kernel, asked, config, a, b, c, bias)
        assert_right(c, a, b, ending=ending_of(bias=bias))


def test_the_bound_finds_one_wrong_element():
    a, b = (torch.randn(size).to(BF16) for size in ((24, 40), (40, 32)))
    pair = a.double() @ b.double()
    for activation in GATED:
        c = ended(pair, activation).to(BF16)
        assert budget.check(c, a, b, ending=ending_of(activation)).ok
        by_steps = ended(pair.to(BF16), activation)
        assert budget.check(by_steps, a, b, ending=ending_of(activation), stepwise=True).ok
        c[3, 5] += 0.03 * c.abs().max()
        verdict = budget.check(c, a, b, ending=ending_of(activation))
        assert str(verdict).startswith("1 of 384 elements are wrong, all between (3, 5) and (3, 5)")


# What it compiles to


VARIANTS = {
    "narrow": {"N": 4096, "layout": "NT"},
    "two parts, all of it, by threads": {"N": 666, "layout": "NT", "bias": True, "residual": True},
    "along N": {"N": 1024, "layout": "NN", "bias": True, "activation": "geglu"},
    "batches": {"N": 1024, "layout": "NT", "batch": (3,), "b_batch": (1,), "dtype": "fp16"},
}


def test_variants_compile():
    jobs = []
    for number, variant in enumerate(VARIANTS.values()):
        job = asm.Job(PAIRS[number % 2], M=512, K=1024, **({"activation": "swiglu"} | variant))
        configs = asm.configs_of(job)
        parted = [config for config in configs if config.BLOCK_N & (config.BLOCK_N - 1)]
        jobs.append(dataclasses.replace(job, config=(parted or configs)[-1]))
    few = asm.Job("warp_specialized", M=16, N=4096, K=1024, layout="NT", activation="swiglu")
    jobs.append(dataclasses.replace(few, config=asm.configs_of(few)[-1]))
    expect_no_faults(jobs, "usage")


def test_the_multiplication_is_that_of_a_plain_product():
    """As wide, and without local memory; TMA loads each half by itself."""
    jobs = [
        asm.Job("warp_specialized", M=512, N=1024, K=1024, layout="NT", activation=activation)
        for activation in ("swiglu", "")
    ]
    gated, plain = asm.compile_many(jobs, "mix")
    assert gated.count("HGMMA.64x256x16") == plain.count("HGMMA.64x256x16") > 0
    assert gated.count("UTMALDG") == plain.count("UTMALDG") + 1
    assert gated.local == gated.spills == 0


# On a GPU


@on_gpu
@pytest.mark.parametrize(("layout", "half"), [("NT", 456), ("NT", 333), ("NN", 456)])
def test_configs(kernel, layout, half):
    """Several tiles and steps, the last of them incomplete; few rows have tiles of their own. Of
    all configs some are drawn."""
    tried = set()
    for M in (392, 24):
        a = operand(M, 1096, BF16, layout[0])
        b = operand(1096, 2 * half, BF16, layout[1], aligned=True)
        bias, residual = operand(1, 2 * half, BF16)[0], operand(M, half, BF16)
        c = torch.empty(M, half, dtype=BF16, device=DEVICE)
        asked = Problem.of(a, b, c, activation="swiglu", bias=BF16, residual=residual)
        for config in drawn(sorted(set(kernel.configs(asked)) - tried, key=str), 3):
            tried.add(config)
            assert run(kernel, a, b, config=config, ending=ending_of(bias=bias)) is None
        ending = ending_of("geglu", bias, residual)
        assert run(kernel, a, b, ending=ending) is None
    assert len(tried) >= 3


@pytest.mark.gpu
@sweep(
    kernel={name: find(name) for name in PAIRS},
    activation=ids(GATED), dtype=ids([BF16, HALF]), layout=ids(["NT", "NN"]),
    out_dtype=ids([None, FP32]), batch=ids([(), (3,), (2, 2)]), with_bias=ids([False, True]),
    guard={"dense": {}, "padded": {"pitch_gap": 8}, "odd": {"pitch_gap": 3},
           "turned": {"transposed": True}},
)  # fmt: skip
def test_results(kernel, activation, dtype, layout, out_dtype, batch, with_bias, guard):
    M, half, K = 300, 264, 200
    a, b = operands(M, 2 * half, K, dtype, layout, batch=batch)
    bias = operand(1, 2 * half, dtype)[0] if with_bias else None
    ending = ending_of(activation, bias)
    assert run(kernel, a, b, ending=ending, out_dtype=out_dtype, **guard) is None


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 300, 2048])
def test_calls_take_the_kernel_and_the_short_path(rows):
    x, w, bias = operand(rows, 512, BF16), operand(1536, 512, BF16), operand(1, 1536, BF16)[0]
    first = tritemm.linear(x, w, bias, activation="swiglu")
    for _ in range(2):
        out = torch.full_like(first, torch.nan)
        assert tritemm.linear(x, w, bias, activation="swiglu", out=out) is out
        assert torch.equal(out, first)
        assert torch.equal(tritemm.linear(x, w, bias, activation="swiglu"), first)
    assert_right(first, x, w.mT, ending=ending_of(bias=bias), stepwise=True)
    named = tritemm.linear(x, w, bias, activation="swiglu", kernel="warp_specialized")
    assert_right(named, x, w.mT, ending=ending_of(bias=bias))


@pytest.mark.gpu
def test_graphs_and_compiled_code():
    x, w = operand(2048, 512, BF16), operand(2048, 512, BF16)
    with torch.no_grad():
        want = tritemm.linear(x, w, activation="swiglu")
        compiled = torch.compile(lambda x, w: tritemm.linear(x, w, activation="swiglu"))
        assert torch.equal(compiled(x, w), want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = tritemm.linear(x, w, activation="swiglu")
    for _ in range(2):
        got.fill_(torch.nan)
        graph.replay()
        assert torch.equal(got, want)


# What callers see, whoever computes it


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (8,)], ids=str)
def test_linear(activation, shape):
    x, w, b = (torch.randn(s, device=DEVICE) for s in (shape, (12, 8), 12))
    want = ended(F.linear(x, w, b), activation)
    residual = torch.randn(want.shape, device=DEVICE)
    for _ in range(2):
        got = tritemm.linear(x, w, b, activation=activation)
        torch.testing.assert_close(got, want)
        assert got.is_contiguous()
        got = tritemm.linear(x, w, b, activation=activation, residual=residual)
        torch.testing.assert_close(got, want + residual)
        out = torch.empty_like(want)
        assert tritemm.linear(x, w, b, activation=activation, out=out) is out
        torch.testing.assert_close(out, want)
        got = tritemm.matmul(x, w.mT, bias=b, activation=activation, residual=residual, beta=-2)
        torch.testing.assert_close(got, want - 2 * residual)


def test_halves_round_as_torchs_do_where_torch_ends_them():
    """Apart, with a gradient or without, each step has the type of the result."""
    x, w = (torch.randn(s, device=DEVICE).to(HALF) for s in ((7, 24), (10, 24)))
    want = ended(tritemm.linear(x, w, kernel="pipelined"), "swiglu")
    for needs_grad in (False, True):
        w.requires_grad_(needs_grad)
        assert torch.equal(tritemm.linear(x, w, activation="swiglu", kernel="pipelined"), want)


def test_a_residual_counts_alike_however_it_is_broadcast():
    """As for whoever expands it, and in whichever call of a kind torch ends the product."""
    x, r = operand(5, 32, HALF), torch.tensor(1 / 3, device=DEVICE)
    whole = r.expand(5, 16)
    want = (F.gelu(x[:, :16]) * x[:, 16:] + whole).to(HALF)
    assert torch.equal(after(x, "geglu", r, 1.0), want)
    assert torch.equal(after(x, "geglu", whole, 1.0, out=torch.empty_like(want)), want)
    assert not torch.equal(F.gelu(x[:, :16]) * x[:, 16:] + r, want)  # torch rounds r first


def test_backward_keeps_no_more_than_torch():
    x, w = (torch.randn(s, device=DEVICE).requires_grad_() for s in ((6, 8), (12, 8)))

    def kept(function):
        found = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: found.setdefault(t.data_ptr(), t), lambda t: t
        ):
            function()
        return sum(t.numel() for t in found.values())

    ours = kept(lambda: tritemm.linear(x, w, activation="swiglu"))
    assert ours <= kept(lambda: ended(F.linear(x, w), "swiglu"))


def test_sums_of_no_terms_and_results_without_elements():
    x, w = (torch.empty(s, 0, device=DEVICE) for s in (3, 10))
    bias = torch.randn(10, device=DEVICE)
    want = ended(bias.expand(3, 10), "swiglu")
    torch.testing.assert_close(tritemm.linear(x, w, bias, activation="swiglu"), want)
    assert tritemm.linear(x, w, activation="swiglu").eq(0).all()
    x, w = torch.randn(3, 4, device=DEVICE), torch.empty(0, 4, device=DEVICE)
    assert tritemm.linear(x, w, activation="swiglu").shape == (3, 0)
    assert tritemm.linear(x[:0], x[:2], activation="swiglu").shape == (0, 1)


@pytest.mark.parametrize("training", [False, True])
def test_compiled_whole(training):
    x, w = (torch.randn(s, device=DEVICE).requires_grad_(training) for s in ((3, 4), (10, 4)))

    compiled = torch.compile(tritemm.linear, backend="aot_eager", fullgraph=True)
    got, want = compiled(x, w, activation="geglu"), ended(F.linear(x, w), "geglu")
    torch.testing.assert_close(got, want)
    if training:
        grads = (torch.autograd.grad(result.sum(), (x, w)) for result in (got, want))
        torch.testing.assert_close(*grads)


def test_operator_and_flops():
    x, w, b = (torch.randn(s, device=DEVICE).double() for s in ((3, 4), (10, 4), (10,)))
    r = torch.randn(3, 5, device=DEVICE).double()
    types = torch.float64, torch.float64
    args = (x, w.mT, b, r, "swiglu", 2.0, 0.5, False, "auto", None, *types)
    torch.library.opcheck(torch.ops.tritemm.gemm, args)

    with FlopCounterMode(display=False) as counter:
        tritemm.linear(x, w, b, activation="swiglu")
    assert counter.get_total_flops() == 2 * 3 * 4 * 10
    with FlopCounterMode(display=False) as counter:
        tritemm.matmul(x, w.mT, activation="swiglu", out=x.new_empty(3, 5))
        tritemm.matmul(x, w.mT, out=x.new_empty(3, 10))
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 10


def test_what_is_explained_and_warmed_up():
    a, b = operands(16, 24, 32, HALF)
    choice = tritemm.explain(a, b, activation="swiglu", kernel="pipelined")
    assert "swiglu by torch's kernels after it" in str(choice)
    assert tritemm.explain(a, b, activation="relu").problem.epilogue.activation == "relu"
    a, b = operands(16, 24, 32, torch.float64)
    for activation in ("relu", "swiglu"):
        choice = tritemm.explain(a, b, activation=activation)
        assert choice.why.endswith(f"; {activation} by torch's kernels after it")
        assert not choice.problem.epilogue.activation and choice.problem.c.cols == 24
    with pytest.raises(RuntimeError, match="needs an even number"):
        tritemm.explain(a, b[:, :23], activation="swiglu")
    (warm,) = tritemm.warmup([(16, 24, 32)], dtype=HALF, activation="swiglu")
    assert warm.problem.M == 16 and warm.problem.N == 24
