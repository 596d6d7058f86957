"""Products of 8-bit operands with scales, by each rung that can, in each of its configs."""

import dataclasses
import itertools

import pytest
import torch

from tests.harness import DEVICE, Guarded, assert_right, ids, sweep
from tests.kernels.test_signs import expect_no_faults
from tests.sweep import drawn
from tritemm import budget, plan
from tritemm.compile import asm
from tritemm.dispatch.request import why_not
from tritemm.problem import BLOCK, EpilogueInputs, Problem
from tritemm.rungs import RUNGS

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
FP32, BF16, HALF = torch.float32, torch.bfloat16, torch.float16
RECIPES = ("tensor", "row", "block", "block2d")
ABLE = [kernel for kernel in RUNGS if kernel.limits.sums]
by_rung = pytest.mark.parametrize("kernel", [
    pytest.param(kernel, id=kernel.name, marks=[] if kernel.interpreted else [pytest.mark.gpu])
    for kernel in ABLE
])  # fmt: skip


def values(lines, K, dtype, pitch=None):
    """Random numbers [lines, K] by rows, whose pitch is a multiple of 16 bytes."""
    shape = lines, pitch or -(-K // 16) * 16
    if dtype == INT8:
        made = torch.randint(-127, 128, shape, dtype=dtype, device=DEVICE)
    else:
        made = torch.randn(shape, device=DEVICE).to(dtype)
    return made[:, :K]


def scale(lines, K, recipe):
    """Scales as `Problem.of` takes them: a view [lines, steps], each of a line or of 128."""
    steps = -(-K // BLOCK)
    shape = {
        "tensor": (1, 1), "row": (lines, 1), "block": (steps, lines),
        "block2d": (-(-lines // BLOCK), steps),
    }[recipe]  # fmt: skip
    made = torch.rand(shape, device=DEVICE) + 0.5
    if recipe == "block":
        return made.mT
    return made.expand(lines, 1) if recipe == "tensor" else made


def problem_of(M, N, K, types, recipes, promoted, out_dtype=FP32, **epilogue):
    """A, B, their scales, a guarded C and the problem."""
    a, b = values(M, K, types[0]), values(N, K, types[1]).mT
    less = 2.0**-8 if types[0] == INT8 else 1.0  # so that fp16 holds the results
    scales = scale(M, K, recipes[0]) * less, scale(N, K, recipes[1]), promoted
    guarded = Guarded.like((M, N), out_dtype)
    problem = Problem.of(a, b, guarded.tensor, scales=scales, **epilogue)
    return a, b, scales, guarded, problem


def configs_of(kernel, problem):
    """Configs of a rung for the problem as it is and swapped, some of many."""
    if kernel.interpreted and DEVICE == "cpu":
        return [kernel.interpreted]
    found = []
    for swap in (False, True):
        view = problem.transposed() if swap else problem
        if kernel.why_not(view) is None:
            every = kernel.configs(view)
            found += [dataclasses.replace(c, SWAP=swap) for c in {*every[:2], *every[-1:]}]
    assert all(why_not(kernel, c.view(problem), c) is None for c in found)
    return found


@by_rung
@sweep(
    size=ids([(40, 70, 300), (129, 257, 128), (7, 300, 1040), (260, 9, 130), (1, 1, 1)]),
    types=ids([(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (INT8, INT8)]),
    recipe_a=ids(RECIPES), recipe_b=ids(RECIPES), promoted=ids([False, True]),
    out_dtype=ids([FP32, BF16, HALF]),
)  # fmt: skip
def test_every_config(kernel, size, types, recipe_a, recipe_b, promoted, out_dtype):
    if types[0] == INT8:
        promoted = False
        recipe_a, recipe_b = (
            r if r in ("tensor", "row") else "row" for r in (recipe_a, recipe_b)
        )  # fmt: skip
    elif "block" in recipe_a + recipe_b:
        promoted = True
    made = problem_of(*size, types, (recipe_a, recipe_b), promoted, out_dtype)
    a, b, scales, guarded, problem = made
    for config in configs_of(kernel, problem):
        guarded.tensor.fill_(guarded.poison)
        plan.run(kernel, problem, config, a, b, guarded.tensor, *scales[:2])
        guarded.assert_untouched_outside()
        verdict = budget.check(guarded.tensor, a, b, scales=scales)
        assert verdict.ok, f"{kernel.name}, {config}, {problem}: {verdict}"


@by_rung
@pytest.mark.parametrize("recipes", [("row", "row"), ("block", "block2d")], ids="-".join)
@pytest.mark.parametrize("activation", ["", "silu", "swiglu"])
def test_what_follows(kernel, recipes, activation):
    M, N, K = 40, 80, 272
    pairs = 2 if activation == "swiglu" else 1
    a, b = values(M, K, E4M3), values(N * pairs, K, E4M3).mT
    scales = scale(M, K, recipes[0]), scale(N * pairs, K, recipes[1]), "block" in recipes
    bias, residual = torch.randn(N * pairs, device=DEVICE), torch.randn(M, N, device=DEVICE)
    then = EpilogueInputs.made(a, b, bias, residual, activation, 0.5, 2.0)
    c = torch.full((M, N), float("nan"), device=DEVICE)
    problem = Problem.of(a, b, c, scales=scales, residual=residual, **then.fields)
    if reason := kernel.why_not(problem):
        assert pairs == 2 or "promoted" in reason or "blocks" in reason
        return
    more = *scales[:2], *then.tensors, *then.factors
    for config in configs_of(kernel, problem):
        plan.run(kernel, problem, config, a, b, c.fill_(float("nan")), *more)
        assert_right(c, a, b, scales=scales, ending=then)


@by_rung
def test_nothing_of_neighbours_is_read(kernel):
    """What stands behind lines and behind scales is NaN: of fp8 and of fp32."""
    M, N, K = 33, 17, 200
    for recipes in itertools.product(("row", "block"), ("row", "block2d")):
        a, b, scales, guarded, problem = problem_of(M, N, K, (E4M3, E4M3), recipes, True)
        a.as_strided((M, 8), a.stride(), K).fill_(float("nan"))
        b.mT.as_strided((N, 8), b.mT.stride(), K).fill_(float("nan"))
        if kernel.why_not(problem):
            continue
        for config in configs_of(kernel, problem):
            plan.run(kernel, problem, config, a, b, guarded.tensor, *scales[:2])
            assert_right(guarded.tensor, a, b, scales=scales)


def code_jobs():
    """What each rung multiplies with scales, in its config for large problems.

    Left out are the tile of cluster_pingpong, whose epilogue puts two words aside, and groups of
    rows with scales of blocks in warp_specialized, whose producer does so for each tile
    (Triton 3.6).
    """
    for kernel, sums, dtype, groups in itertools.product(
        ABLE, ("whole", "promoted", "block"), ("fp8_e4m3fn", "int8"), ("", "m", "k")
    ):
        words = "block,block2d" if sums == "block" else "row,row"
        more = {
            "scales": words,
            "fast": sums == "whole",
            "groups": groups,
            "batch": (16,) * bool(groups),
        }
        aside = kernel.name == "cluster_pingpong"
        aside |= (kernel.name, sums, groups) == ("warp_specialized", "block", "m")
        if aside or (dtype == "int8" and sums != "whole"):
            continue
        more["fast"] = sums == "whole" and dtype != "int8"
        job = asm.Job(kernel.name, layout="NT", dtype=dtype, **more)
        if asm.configs_of(job):
            yield job


@pytest.mark.latest
@pytest.mark.parametrize("kernel", [k for k in ABLE if "promoted" in k.limits.sums], ids=str)
def test_promoted_sums_compile(kernel):
    jobs = [job for job in code_jobs() if job.rung == kernel.name and not job.groups]
    jobs = [job for job in jobs if job.dtype != "int8" and not job.fast]
    assert jobs
    expect_no_faults(jobs, "mix", ("QGMMA",))


def test_code_is_of_8_bits():
    """The tensor core multiplies them as they are, and no thread puts words aside."""
    jobs = list(code_jobs())
    for sign, count in (("QGMMA", 6), ("IGMMA", 2)):
        own = [job for job in jobs if (job.dtype == "int8") == (sign == "IGMMA")]
        expect_no_faults(drawn(own, count), "mix", (sign,))


def test_a_rung_without_scales_says_so():
    made = problem_of(32, 32, 256, (E4M3, E4M3), ("row", "row"), True)
    for kernel in RUNGS:
        if not kernel.limits.sums:
            assert "are promoted" in kernel.why_not(made[-1])


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [k for k in ABLE if "promoted" in k.limits.sums], ids=str)
def test_long_sums_are_promoted(kernel):
    """At K = 65536 the tensor core's own sums are beyond the bound of promoted ones."""
    M, N, K = 64, 128, 65536
    a = torch.rand(M, K, device=DEVICE).add(0.5).to(E4M3)
    b = torch.rand(N, K, device=DEVICE).add(0.5).to(E4M3).mT
    one = torch.ones(1, 1, device=DEVICE)
    verdicts = []
    for promoted in (True, False):
        scales = one.expand(M, 1), one.expand(N, 1), promoted
        c = torch.empty(M, N, device=DEVICE)
        problem = Problem.of(a, b, c, scales=scales)
        for config in configs_of(kernel, problem):
            plan.run(kernel, problem, config, a, b, c, *scales[:2])
            assert_right(c, a, b, scales=scales)
            verdicts.append((promoted, budget.check(c, a, b, scales=(*scales[:2], True)).ok))
    assert {ok for promoted, ok in verdicts if promoted} == {True}
    assert {ok for promoted, ok in verdicts if not promoted} == {False}


@pytest.mark.parametrize("broken", ["step", "row", "scale", "swapped"])
def test_the_check_finds_what_is_wrong(broken):
    a, b, scales, _, _ = problem_of(40, 24, 384, (E4M3, E4M3), ("block", "block2d"), True)
    first, second = scales[0].clone(), scales[1].clone()
    x = a.clone()
    if broken == "step":
        x[:, 256:] = torch.zeros((), device=DEVICE).to(E4M3)
    elif broken == "row":
        first[7] *= 1.1
    elif broken == "scale":
        second = second.roll(1, 1)
    else:
        first = first.flip(0)
    wrong = budget.dequantized(x, first) @ budget.dequantized(b.mT, second).mT
    right = budget.dequantized(a, scales[0]) @ budget.dequantized(b.mT, scales[1]).mT
    assert budget.check(right.float(), a, b, scales=scales).ok
    assert not budget.check(wrong.float(), a, b, scales=scales).ok
