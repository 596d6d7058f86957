"""The measuring tool without a GPU: its statistics, its refusals, its check, who may race."""

import dataclasses
import itertools
import math
import random
import statistics
import types

import pytest
import torch

import tritemm
from cuda_reference import loader
from perf import bench, competitors, engine, machine, operands, rungs, stats
from perf.case import Case
from perf.competitors import named, rivals, twins
from perf.engine import Competitor, Loop, Plan, Sample, admit
from perf.machine import State
from perf.operands import reference
from perf.roof import Roof
from perf.rows import HALF, NULL, REFERENCE
from perf.stats import Quantiles
from tests.perf.fakes import (
    CASE,
    ROOFS,
    Clock,
    FakeBench,
    by_name,
    fake,
    flat,
    headed,
    leave_one,
    measure,
    rows_after,
    spoil_one,
)
from tritemm.problem import Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Config

pytestmark = pytest.mark.host

# Statistics, and rounds


def test_a_difference_of_5_percent_is_found_under_drift_and_an_equal_pair_ties():
    found = by_name(measure([fake("k01_slow"), fake("k02_fast")], {"fast": 1e-3 / 1.05}))
    fast = found["fast"]
    assert fast.ratio.p50 == pytest.approx(1.05, abs=0.01) and not fast.tie
    assert fast.below == "slow" and fast.ratio_below.p50 == pytest.approx(1.05, abs=0.01)
    for each in (found["slow"], found[NULL]):
        assert each.tie and each.ratio.p50 == pytest.approx(1, abs=0.01)
    assert found["slow"].null == found[NULL].ratio and found[REFERENCE].ratio == flat(1)
    assert fast.tflops == pytest.approx(2 * 48 * 40 * 32 / fast.us.p50 / 1e6)
    assert fast.gbs == pytest.approx(4 * (48 * 32 + 40 * 32 + 48 * 40) / fast.us.p50 / 1e3)


def test_a_ratio_inside_the_noise_is_a_tie():
    row = by_name(measure([fake("k01_equal")]))["equal"]
    clear = Quantiles(1.002, 1.003, 1.004)
    for ratio, null, tie in (
        (clear, Quantiles(0.99, 1.001, 1.01), True),
        (clear, Quantiles(0.999, 1.0, 1.001), False),
        (Quantiles(1.05, 1.06, 1.07), Quantiles(0.99, 1.001, 1.01), False),
        (Quantiles(0.99, 1.003, 1.01), Quantiles(0.999, 1.0, 1.001), True),
    ):
        assert dataclasses.replace(row, ratio=ratio, null=null).tie is tie


def test_ratios_pair_times_of_the_same_round_only():
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 100.0}, {"b": 7.0}, {"a": 6.0, "b": 3.0}]
    assert stats.compare(rounds, "a", "b") == flat(2) and stats.compare(rounds, "a", "c") is None
    assert stats.geomean([2.0, 0.5]) == pytest.approx(1) and math.isnan(stats.geomean([]))


def test_slow_competitors_take_part_in_fewer_rounds():
    found = by_name(measure([fake("k01_simt"), fake("k02_naive")], {"simt": 0.5}))
    assert (found["simt"].rounds, found["naive"].rounds) == (6, 24)
    assert found["simt"].launches == 1 and found["naive"].below == "simt"


def test_the_order_differs_between_rounds():
    order = []
    timer = lambda name: lambda: order.append(name) or Sample(1e-3)  # noqa: E731
    loops = {name: Loop(1, 1e-3, None, timer(name)) for name in "abcd"}
    engine.run_rounds(loops, 8, random.Random(0))
    rounds = [tuple(order[i : i + 4]) for i in range(0, 32, 4)]
    assert all(sorted(names) == list("abcd") for names in rounds) and len(set(rounds)) > 4


@pytest.mark.parametrize(
    ("noise", "least", "most"), [(0.0001, 5, 5), (0.006, 6, 19), (0.1, 20, 20)]
)
def test_rounds_end_when_the_ratios_are_precise(monkeypatch, noise, least, most):
    rng = random.Random(0)
    monkeypatch.setattr(Clock, "slowness", lambda clock: rng.gauss(1, noise))
    found = measure([fake("k01_x")], plan=Plan(rounds=5, most=20, error=0.006, settle=0))
    assert {least <= row.rounds <= most for row in found} == {True}


def test_the_standard_error_is_that_of_a_median():
    rng = random.Random(0)
    for count, most in ((100, 1.1), (25, 1.2), (5, 1.6)):
        samples = [[rng.gauss(1, 0.02) for _ in range(count)] for _ in range(800)]
        claimed = statistics.mean(map(stats.standard_error, samples))
        assert 0.9 < claimed / statistics.stdev(map(statistics.median, samples)) < most


# Refusals


@pytest.mark.parametrize("spoil", [spoil_one, leave_one])
def test_what_is_red_refused_failed_or_slow_is_not_timed_and_has_a_row_and_a_reason(spoil):
    def explode(c):
        raise RuntimeError("out of resource: shared memory, Required: 262144")

    refuses = {"why_not": lambda problem: "TMA needs a multiple of 16", "configs": None}
    kernels = [fake("k01_simt"), fake("k02_big", explode), fake("k03_tma", **refuses)]
    found = by_name(measure([*kernels, fake("k04_red", spoil)], {"simt": 2.0}))
    said = {"simt": ("skipped", "about 2.0 s"), "big": ("failed", "Required: 262144"),
            "tma": ("refused", "TMA needs a multiple of 16"), "red": ("wrong", "")}  # fmt: skip
    for name, (outcome, reason) in said.items():
        each = found[name]
        assert each.outcome == outcome and each.reason and reason in each.reason
        assert each.us is each.tflops is each.ratio is None
    assert found[REFERENCE].us and "wrong" in rungs.text(list(found.values()))


def test_the_interrupt_keeps_what_was_measured(monkeypatch):
    def timed(clock):
        clock.ticks += 1
        if clock.ticks == 5:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(Clock, "slowness", timed)
    assert sum(row.rounds for row in measure([fake("k01_x")])) == 4


def test_a_device_that_is_lost_ends_the_run(monkeypatch):
    def lost(*given):
        raise RuntimeError("device lost")

    monkeypatch.setattr(FakeBench, "recover", lost)
    with pytest.raises(RuntimeError, match="device lost"):
        measure([fake("k01_bad", lost)])


@pytest.mark.parametrize(
    ("slack", "factor", "outcome"),
    [(1000.0, 0.02, "measured"), (1000.0, 200.0, "wrong"), (math.inf, 200.0, "measured")],
)
def test_a_peer_is_wrong_far_beyond_the_bound_a_reference_never_and_a_rung_at_once(
    slack, factor, outcome
):
    def run(a, b, c):
        torch.matmul(a, b, out=c)
        c[3, 5] *= 1 + factor

    torch.manual_seed(7)
    case = Case(24, 16, 40, "NT")
    entrant = admit(Competitor("x", run, slack=slack), FakeBench(case, {}), Plan())
    assert entrant.outcome == outcome and entrant.worst > 1 and entrant.reason
    assert (entrant.loop is None) == (outcome == "wrong")
    rung = Competitor("x", run, rung="x", slack=slack)
    assert admit(rung, FakeBench(case, {}), Plan()).outcome == "wrong"


# Cases, operands, the check


@pytest.mark.parametrize(
    ("case", "flops", "moved"),
    [
        (Case(3, 5, 7), 210, 2 * (21 + 35 + 15)),
        (Case(3, 5, 7, "NT", "bf16", batch=4), 840, 4 * 2 * (21 + 35 + 15)),
        (Case(3, 5, 7, out_dtype="fp32"), 210, 2 * (21 + 35) + 4 * 15),
        (Case(3, 5, 7, "NT", "int8", "int32"), 210, 21 + 35 + 4 * 15),
        (Case(3, 5, 7, "NT", "fp8"), 210, 21 + 35 + 2 * 15),
        (Case(3, 5, 7, "NT", "fp8", scaling="tensor"), 210, 21 + 35 + 2 * 15 + 4 * 2),
        (Case(3, 5, 7, "NT", "int8", scaling="row"), 210, 21 + 35 + 2 * 15 + 4 * 8),
        (Case(3, 130, 140, "TN", "fp8", scaling="block"), 109200, 420 + 18200 + 780 + 4 * 10),
        (Case(3, 6, 7, "NT", ending="swiglu"), 252, 2 * (21 + 42 + 9)),
        (Case(3, 5, 7, "NT", ending="bias silu residual"), 210, 2 * (21 + 35 + 15 + 5 + 15)),
    ],
)
def test_flops_and_bytes_are_counted(case, flops, moved):
    assert (case.flops, case.bytes) == (flops, moved)
    there = [t for t in operands.operands(case, "cpu") if t is not None]
    assert sum(t.numel() * t.element_size() for t in there) == moved


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_have_the_layout_and_poisoned_outputs(layout):
    a, b, c = operands.operands(dataclasses.replace(CASE, layout=layout, dtype="bf16"), "cpu")
    assert Problem.of(a, b, c).layout == layout and c.isnan().all()
    assert a.float().std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("case", [
    Case(32, 48, 64), Case(32, 48, 64, "NT", "int8", "int32"), Case(32, 48, 64, "NT", "fp8"),
    Case(32, 48, 64, out_dtype="fp32", batch=2),
], ids=str)  # fmt: skip
def test_the_reference_is_right(case):
    given = operands.operands(case, "cpu")
    run = reference(case)
    try:
        run(*given)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"torch has it on a GPU only: {error}"[:80])
    assert operands.verify(case, [given], lambda: run(*given), 1).ok


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("dtype", "precision"), [
    ("fp32", "bf16x9"), ("fp32", "int8x7"), ("fp64", "int8x15"),
])  # fmt: skip
def test_what_is_split_is_judged_by_the_bound_of_that(dtype, precision, split):
    """An error between the two bounds of a sum of 4096 terms."""
    case = Case(8, 8, 4096, "NT", dtype, dtype, precision)

    def run(a, b, c):
        sizes = a.double().abs() @ b.double().abs()
        c.copy_(a.double() @ b.double() + 100 * torch.finfo(a.dtype).eps * sizes)

    torch.manual_seed(0)
    entrant = admit(Competitor("x", run, rung="x", split=split), FakeBench(case, {}), Plan())
    assert entrant.outcome == ("wrong" if split else "measured")


@pytest.mark.parametrize(("dtype", "precision"), [
    ("fp32", "bf16x6"), ("fp32", "int8x7"), ("fp64", "int8x15"), ("fp64", "ieee"),
])  # fmt: skip
def test_tritemm_is_asked_for_the_cases_precision(monkeypatch, dtype, precision):
    case, asked = Case(24, 16, 40, "NT", dtype, dtype, precision), []
    given = operands.operands(case, "cpu")
    entrant = competitors.of_matmul(case, given, "auto")
    assert not entrant.split and entrant.refusal is None  # the interpreter splits nothing
    matmul = tritemm.matmul
    watched = lambda *a, **options: asked.append(options["precision"]) or matmul(*a, **options)  # noqa: E731
    monkeypatch.setattr(tritemm, "matmul", watched)
    assert admit(entrant, FakeBench(case, {}), Plan()).outcome == "measured"
    assert set(asked) == {precision}


@pytest.mark.parametrize(("precision", "PACK", "split"), [
    ("int8x15", "ab", True), ("int8x15", "", False), ("ieee", "ab", False),
])  # fmt: skip
def test_residues_are_split_where_both_are_made(precision, PACK, split):
    a = torch.empty(8, 8, dtype=torch.float64)
    problem = Problem.of(a, a, a, precision=precision)
    assert competitors.is_split(problem, Config(16, 16, 16, PACK=PACK)) is split


def test_the_reference_multiplies_as_the_case_says():
    flags, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
    seen = []

    class Out:
        @classmethod
        def __torch_function__(cls, *_):
            seen.append(flags.allow_fp16_accumulation)

    try:
        for precision, expected in (("tf32", "tf32"), ("ieee", "ieee"), ("bf16x3", "ieee")):
            reference(dataclasses.replace(CASE, precision=precision))
            assert flags.fp32_precision == expected
    finally:
        flags.fp32_precision = before
    for accumulate in ("fp16", "fp32"):
        reference(Case(8, 8, 8, dtype="fp16"), accumulate)(Out(), Out(), Out())
    assert seen == [True, False]


@pytest.mark.parametrize("case", [CASE, dataclasses.replace(CASE, batch=3),
                                  Case(48, 40, 32, "NT", "int8", "int32")])  # fmt: skip
def test_the_check_sees_every_strip_and_every_unwritten_element(case, monkeypatch):
    monkeypatch.setattr(operands, "STRIP", 40 * 7)
    a, b, c = operands.operands(case, "cpu")

    def multiply(error=0, left=0):
        product = (a.double() @ b.double()).to(c.dtype)
        c[..., : 48 - left, :] = product[..., : 48 - left, :]
        c[..., -1, -1] += error

    for options, ok in (({}, True), ({"error": 1}, False), ({"left": 1}, False)):
        verdict = operands.verify(case, [(a, b, c)], lambda o=options: multiply(**o), 1)
        assert verdict.ok is ok
    assert "unwritten" in str(verdict)


def test_a_wrong_fp16_sum_is_found_where_the_bound_is_wide():
    """At K = 2048 the bound of an fp16 accumulator is several times as large as the result."""
    case = Case(48, 40, 2048, "NT", "fp16", "fp16")

    def spoil(c):
        c[3, 5] += 16

    for kernel, good in ((fake("k01_good"), True), (fake("k02_bad", spoil), False)):
        there = FakeBench(case, {})
        before = [operand.clone() for operand in there.sets[0]]
        problem = Problem.of(*there.sets[0], accumulate=torch.float16)
        loop = there.loop(competitors.of_kernels(problem, [kernel])[0])
        verdict = there.verify(loop)
        assert verdict.ok is good and there.verify(loop, "fp32").ok is good
        assert all(map(torch.equal, there.sets[0][:2], before[:2]))
    assert str(verdict).startswith("1 of 1920 are wrong; at (3, 5): got ")


def test_what_accumulates_is_judged_by_how_often_it_did():
    case = Case(17, 24, 32, "TN", out_dtype="fp32", ending="accumulate")
    sets = [operands.operands(case, "cpu") for _ in range(2)]

    def replay(launches=5):
        for index in range(launches):
            a, b, c, *_ = sets[index % 2]
            c.add_(a.float() @ b.float())

    assert operands.verify(case, sets, replay, 5).ok
    assert not operands.verify(case, sets, lambda: replay(4), 5).ok


# Competitors, twins


def test_every_rung_enters_with_its_first_config_or_all():
    field = competitors.ladders(CASE, operands.operands(CASE, "cpu"))
    assert [c.name for c in field] == [*(kernel.name for kernel in RUNGS), REFERENCE, NULL]
    given = operands.operands(dataclasses.replace(CASE, dtype="bf16"), "cpu")
    options = {"only": ["persistent"], "configs": "all"}
    names = [c.name for c in competitors.ladders(Case(48, 40, 32, "NT"), given, **options)]
    assert names[:2] == ["persistent", "persistent[1]"] and names[-2:] == [REFERENCE, NULL]


TWINS = [
    headed("k01_simt", "nothing", "simt_naive"),
    headed("k03_tiled", "simt: tiles", "wmma_base and mma_base"),
    headed("k09_persistent", "tiled: a loop", "wgmma_persistent"),
]
CUDA_TWINS = [
    headed("k01_simt_naive", "nothing", "simt"),
    headed("k02_wmma_base", "simt_naive: wmma", "tiled"),
    headed("k03_mma_base", "simt_naive: ldmatrix and mma", "tiled, swizzled"),
    headed("k04_mma_permuted", "mma_base: no conflicts", "permuted, tiled"),
    headed("k05_wgmma", "nothing: another instruction", "pipelined", why_not=lambda p: "no fp16"),
]
HALF_CASE = dataclasses.replace(CASE, dtype="fp16", accumulate="fp16")


def compared(broken=None):
    """A race of both made-up ladders."""
    seconds = {"tiled": 1e-3, "wmma_base": 2e-3, "mma_base": 1.25e-3, "simt": 0.4, HALF: 0.9e-3}
    there = FakeBench(HALF_CASE, seconds)
    options = {"cuda": CUDA_TWINS, "triton": TWINS, "broken": broken}
    return rows_after(competitors.ladders(HALF_CASE, there.sets[0], **options), there)


def test_twins_are_named_by_either_header():
    _, tiled, persistent = TWINS
    assert named(tiled, CUDA_TWINS) == ("wmma_base", "mma_base")
    assert twins(tiled, CUDA_TWINS) == ("wmma_base", "mma_base", "mma_permuted")
    assert twins(CUDA_TWINS[3], TWINS) == ("tiled",) and twins(persistent, CUDA_TWINS) == ()
    # Where no twin is built, the twins of the rung below are the nearest.
    assert rivals(persistent, TWINS, CUDA_TWINS) == twins(tiled, CUDA_TWINS)
    assert rivals(CUDA_TWINS[-1], CUDA_TWINS, TWINS) == ()


def test_both_ladders_race_twins_within_rounds_and_each_rung_against_the_one_below():
    found = by_name(compared())
    kernels = [kernel.name for kernel in (*TWINS, *CUDA_TWINS)]
    assert list(found) == [*kernels, REFERENCE, NULL, HALF]
    assert {row.ladder for row in found.values()} == {"triton", "cuda", None}
    below = {name: row.below for name, row in found.items() if row.below}
    # Numbers collide between the ladders, and a CUDA rung is compared with what it adds to.
    assert below == {"tiled": "simt", "persistent": "tiled", "wmma_base": "simt_naive",
                     "mma_base": "simt_naive", "mma_permuted": "mma_base"}  # fmt: skip
    assert found["wgmma"].outcome == "refused" and found[HALF].versus is None
    for name, rival, ratio in (("mma_base", "tiled", 0.8), ("tiled", "mma_base", 1.25),
                               ("tiled", HALF, 0.9), ("simt_naive", "simt", 400)):  # fmt: skip
        assert found[name].versus[rival].p50 == pytest.approx(ratio, rel=0.1)
    full = dataclasses.replace(HALF_CASE, accumulate="fp32")
    given = operands.operands(full, "cpu")
    field = competitors.ladders(full, given, cuda=CUDA_TWINS, triton=TWINS)
    assert not any(c.name == HALF or HALF in c.rivals for c in field)


def test_what_does_not_build_is_a_failed_row_and_no_compiler_one_reason(monkeypatch):
    monkeypatch.setattr(loader, "unavailable", lambda: "nvcc was not found")
    assert rungs.build([]) == (None, {})
    assert rungs.build(["mma_base"]) == ("nvcc was not found", {})
    monkeypatch.setattr(loader, "unavailable", lambda: None)
    monkeypatch.setattr(loader, "build", lambda names: {"mma_base": "it does not compile"})
    found = by_name(compared(rungs.build(["mma_base"])[1]))
    assert found["mma_base"].reason == "RuntimeError: it does not compile"
    assert found["mma_permuted"].below == "wmma_base"


# The card


def test_the_version_of_cublas_is_that_of_the_libraries_that_are_loaded(monkeypatch):
    """Under LD_PRELOAD they aren't those of torch's own packages."""
    loaded = {"libcublas.so.13": (13, 1, 0)}

    def library(file):
        if file not in loaded:
            raise OSError("no such file")

        def ask(which, into):
            into._obj.value = loaded[file][which]
            return 0

        return types.SimpleNamespace(cublasGetProperty=ask, cublasLtGetProperty=ask)

    monkeypatch.setattr(machine.ctypes, "CDLL", library)
    assert [machine._cublas(cuda) for cuda in (None, "12.8", "13.0")] == [None, None, "13.1.0"]
    loaded["libcublasLt.so.13"] = (13, 5, 1)
    assert machine._cublas("13.0") == "13.1.0 with Lt 13.5.1"
    loaded["libcublas.so.13"] = (13, 5, 1)
    assert machine._cublas("13.0") == "13.5.1"


@pytest.mark.parametrize(
    ("visible", "index", "among"), [("", 1, 1), ("3, 5,7", 0, 3), ("GPU-a,GPU-b", 0, 0)]
)
def test_nvml_counts_the_cards_that_are_not_visible_too(monkeypatch, visible, index, among):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine._among_all(index) == among


READINGS = {
    "nothing limits it": ([(1980, 400, False), (1980, 600, False)], False),
    "the same power": ([(1450, 700, True), (1460, 690, True)], False),
    "another power under a limit": ([(1450, 700, True), (1980, 500, False)], True),
    "an unknown power": ([(1450, 700, True), (1980, None, None)], True),
}


@pytest.mark.parametrize("name", READINGS)
def test_the_clock_adapts_where_powers_differ_under_a_limit(name):
    readings, adapts = READINGS[name]
    there = object.__new__(bench.Sustained)
    there.plan = Plan(settle=0)
    states = [State(mhz, power, 50, limited) for mhz, power, limited in readings]
    loops = [Loop(1, 1e-3, None, lambda state=state: Sample(1e-3, state)) for state in states]
    assert there.settle(loops) == states[-1] and there.adapts is adapts


@pytest.mark.parametrize("clocks", [[1500, 1450, 1400, 1410, 1420, 1405], [None, None]])
def test_the_clock_has_settled_when_four_readings_agree(monkeypatch, clocks):
    taken, ticks = [], itertools.count()
    monkeypatch.setattr(bench.time, "monotonic", lambda: next(ticks))
    there = object.__new__(bench.Sustained)
    there.plan = Plan(settle=1.5)

    def timer():
        taken.append(clocks[len(taken)])
        return Sample(1e-3, State(taken[-1], 500, 50, taken[-1] == 1450))

    assert there.settle([Loop(1, 1e-3, None, timer)]).sm_mhz == (clocks[0] and 1407.5)
    assert taken == clocks


@pytest.mark.parametrize(
    ("mhz", "power", "limited"),
    [(1980, 400, False), (1980, 680, True), (1410, 500, True), (None, 700, None)],
)
def test_the_clock_is_limited_below_its_maximum_and_near_the_power_limit(mhz, power, limited):
    assert machine._limited(mhz, 1980, power, 700) is limited
    states = [State(limited=False), State(limited=limited)]
    assert State.median(states).limited is bool(limited)


@pytest.mark.parametrize(
    ("dtype", "share"),
    [("bf16", 1.0), ("fp8", 2.0), ("int8", 2.0), ("tf32", 0.5), ("fp64", 1 / 15)],
)
def test_the_roof_is_arithmetic_or_memory_at_the_rate_of_the_type(dtype, share):
    precision = "tf32" if dtype == "tf32" else "ieee"
    case = Case(1, 1, 1, dtype="fp32" if dtype == "tf32" else dtype, precision=precision)
    found = dataclasses.replace(ROOFS, mhz=1410.0).of(case)
    assert found.tflops == pytest.approx(share * 762.3, rel=1e-3)
    roof, thin = Roof(tflops=700.0, gbs=4000.0), Case(1, 8192, 8192)
    assert roof.floor(Case(8192, 8192, 8192)) == pytest.approx(2 * 8192**3 / 700e6)
    assert roof.floor(thin) == pytest.approx((2 * 8192 + 8192**2) * 2 / 4e6, rel=1e-3)
