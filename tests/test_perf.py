"""The measuring tool without a GPU: its statistics, its refusals and who may race."""

import dataclasses
import json
import random

import pytest
import torch

from perf import competitors, engine, operands, report, stats
from perf.case import Case, parse_layout, parse_size
from perf.engine import Loop, Plan, Sample
from perf.reference import call_of, reference
from perf.rows import NULL, REFERENCE
from perf.stats import Quantiles
from tritemm.problem import Problem
from tritemm.rungs import RUNGS

from .perf_fakes import (
    CASE,
    QUIET,
    FakeBench,
    by_name,
    fake,
    leave_one,
    measure,
    spoil_one,
)

pytestmark = pytest.mark.host

# Statistics


def test_a_difference_of_5_percent_is_found_under_drift():
    found = by_name(measure([fake("k01_slow"), fake("k02_fast")], {"fast": 1e-3 / 1.05}))
    fast = found["fast"]
    assert fast.ratio.p50 == pytest.approx(1.05, abs=0.01)
    assert not fast.ratio.tie
    assert fast.below == "slow"
    assert fast.ratio_below.p50 == pytest.approx(1.05, abs=0.01)


def test_an_equal_pair_is_a_tie():
    found = by_name(measure([fake("k01_equal")]))
    for row in (found["equal"], found[NULL]):
        assert row.ratio.tie
        assert row.ratio.p50 == pytest.approx(1, abs=0.01)
    assert found["equal"].null == found[NULL].ratio
    assert found[REFERENCE].ratio == Quantiles(1, 1, 1)


def test_ratios_pair_times_of_the_same_round_only():
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 100.0}, {"b": 7.0}, {"a": 6.0, "b": 3.0}]
    assert stats.compare(rounds, "a", "b") == Quantiles(2, 2, 2)
    assert stats.compare(rounds, "a", "c") is None


def test_slow_competitors_take_part_in_fewer_rounds():
    found = by_name(measure([fake("k01_simt"), fake("k02_naive")], {"simt": 0.5}))
    assert (found["simt"].rounds, found["naive"].rounds) == (6, 24)
    assert found["simt"].launches == 1
    assert found["naive"].below == "simt"


def test_rounds_can_be_set_by_time():
    loop = Loop(30, 1e-3, None, None)
    plan = Plan(seconds=6.1)
    assert engine.rounds_for(plan, [loop] * 10) == 10
    assert engine.rounds_for(plan, [loop] * 1000) == engine.MIN_ROUNDS


def test_the_order_differs_between_rounds():
    order = []

    def timer(name):
        return lambda: order.append(name) or Sample(1e-3)

    loops = {name: Loop(1, 1e-3, None, timer(name)) for name in "abcd"}
    engine.run_rounds(loops, 8, random.Random(0))
    rounds = [tuple(order[i : i + 4]) for i in range(0, 32, 4)]
    assert all(sorted(names) == list("abcd") for names in rounds)
    assert len(set(rounds)) > 4


# Refusals


@pytest.mark.parametrize("spoil", [spoil_one, leave_one])
def test_a_red_kernel_is_not_timed(spoil):
    found = by_name(measure([fake("k01_good"), fake("k02_red", spoil)]))
    red = found["red"]
    assert red.outcome == "wrong"
    assert red.reason
    assert red.us is red.tflops is red.ratio is None
    assert found["good"].us
    assert "wrong" in report.text_table(list(found.values()))


def test_refused_failed_and_skipped_competitors_have_a_row_and_a_reason():
    def explode(c):
        raise RuntimeError("out of resource: shared memory, Required: 262144")

    kernels = [
        fake("k01_simt"),
        fake("k02_big", explode),
        fake("k03_tma", why_not=lambda problem: "TMA needs a multiple of 16", configs=None),
    ]
    found = by_name(measure(kernels, {"simt": 2.0}))
    assert {name: row.outcome for name, row in found.items()} == {
        "simt": "skipped", "big": "failed", "tma": "refused",
        REFERENCE: "measured", NULL: "measured",
    }  # fmt: skip
    assert "Required: 262144" in found["big"].reason
    assert found["tma"].reason == "TMA needs a multiple of 16"
    assert "2.0 s" in found["simt"].reason


def test_the_interrupt_keeps_what_was_measured():
    calls = []

    def timer():
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return Sample(1e-3)

    taken, interrupted = engine.run_rounds({"a": Loop(1, 1e-3, None, timer)}, 9, random.Random(0))
    assert interrupted
    assert sum(len(samples) for samples in taken) == 4


def test_a_device_that_is_lost_ends_the_run():
    class Lost(FakeBench):
        def recover(self):
            raise RuntimeError("device lost")

    def explode(c):
        raise RuntimeError("illegal address")

    bench = Lost(CASE, {})
    field = competitors.of_kernels(Problem.of(*bench.sets[0]), [fake("k01_bad", explode)])
    with pytest.raises(RuntimeError, match="device lost"):
        engine.measure(field, bench, QUIET, random.Random(0))


# Competitors


def test_every_rung_enters_with_its_first_config():
    field = competitors.ladders(CASE, operands.operands(CASE, "cpu"))
    assert [c.name for c in field] == [*(kernel.name for kernel in RUNGS), REFERENCE, NULL]


def test_all_configs_and_those_of_a_file_enter(tmp_path):
    path = tmp_path / "tiles.json"
    tile = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 8, "num_stages": 3}
    rung = "persistent"
    path.write_text(json.dumps([{"rung": rung, **tile, "ORDER": "grouped", "GROUP_M": 4}]))
    [candidate] = competitors.read_candidates(path)
    case = dataclasses.replace(CASE, dtype="bf16", accumulate="fp32")
    given = operands.operands(case, "cpu")
    field = competitors.ladders(case, given, only=[rung], configs="all", candidates=[candidate])
    names = [c.name for c in field]
    assert names[:2] == [rung, f"{rung}[1]"]
    assert names[-3:] == [f"{rung} 128x64x32 w8 s3 grouped4", REFERENCE, NULL]
    assert field[-3].config["GROUP_M"] == 4


@pytest.mark.parametrize(
    ("entry", "message"),
    [({"rung": "nope"}, "no rung is called 'nope'"), ({"rung": RUNGS[0].name, "X": 1}, "X")],
)
def test_a_bad_config_file_is_named(tmp_path, entry, message):
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match=message):
        competitors.read_candidates(path)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_have_the_layout_and_poisoned_outputs(layout):
    case = dataclasses.replace(CASE, layout=layout, dtype="bf16")
    a, b, c = operands.operands(case, "cpu")
    assert Problem.of(a, b, c).layout == layout
    assert (a.shape, b.shape, c.shape) == ((48, 32), (32, 40), (48, 40))
    assert c.isnan().all()
    assert a.float().std() == pytest.approx(1, abs=0.1)


def test_sizes_and_layouts_are_parsed():
    assert parse_size("4096") == (4096,) * 3
    assert parse_size("8x9x10") == (8, 9, 10)
    for bad in ("8x9", "0", "x"):
        with pytest.raises(ValueError, match="a size is"):
            parse_size(bad)
    with pytest.raises(ValueError, match="a layout is"):
        parse_layout("NX")


# Cases and the reference


@pytest.mark.parametrize(
    ("case", "flops", "moved"),
    [
        (Case(3, 5, 7), 210, 2 * (21 + 35 + 15)),
        (Case(3, 5, 7, "NT", "bf16", batch=4), 840, 4 * 2 * (21 + 35 + 15)),
        (Case(3, 5, 7, out_dtype="fp32"), 210, 2 * (21 + 35) + 4 * 15),
        (Case(3, 5, 7, "NT", "int8", "int32"), 210, 21 + 35 + 4 * 15),
        (Case(3, 5, 7, "NT", "fp8"), 210, 21 + 35 + 2 * 15),
        (Case(3, 5, 7, dtype="fp64", accumulate="fp64"), 210, 8 * (21 + 35 + 15)),
    ],
)
def test_flops_and_bytes_are_counted(case, flops, moved):
    assert (case.flops, case.bytes) == (flops, moved)
    a, b, c = operands.operands(case, "cpu")
    assert sum(t.numel() * t.element_size() for t in (a, b, c)) == moved


def test_rates_are_of_the_median():
    row = by_name(measure([fake("k01_fast")], {"fast": 2e-6}))["fast"]
    assert row.tflops == pytest.approx(2 * 48 * 40 * 32 / row.us.p50 / 1e6)
    assert row.gbs == pytest.approx(4 * (48 * 32 + 40 * 32 + 48 * 40) / row.us.p50 / 1e3)


@pytest.mark.parametrize(
    ("case", "call"),
    [
        (Case(32, 48, 64), "torch.matmul"),
        (Case(32, 48, 64, batch=3), "torch.matmul"),
        (Case(32, 48, 64, "NT", "int8", "int32"), "torch._int_mm"),
        (Case(32, 48, 64, "NT", "fp8"), "torch._scaled_mm"),
        (Case(32, 48, 64, out_dtype="fp32"), "torch.mm(out_dtype=)"),
        (Case(32, 48, 64, out_dtype="fp32", batch=2), "torch.bmm(out_dtype=)"),
    ],
)
def test_the_reference_is_what_a_user_would_call(case, call):
    assert call_of(case) == call
    a, b, c = operands.operands(case, "cpu")
    run = reference(case)
    try:
        run(a, b, c)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"torch has it on a GPU only: {error}"[:80])
    assert operands.verify(case, [(a, b, c)], lambda: run(a, b, c), 1).ok


def test_the_reference_multiplies_fp32_as_the_case_says():
    flags, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
    try:
        for precision, expected in (("tf32", "tf32"), ("ieee", "ieee"), ("bf16x3", "ieee")):
            reference(dataclasses.replace(CASE, precision=precision))
            assert flags.fp32_precision == expected
    finally:
        flags.fp32_precision = before


def test_an_unwritten_integer_is_found():
    case = Case(33, 17, 40, "NT", "int8", "int32")
    given = operands.operands(case, "cpu")

    def multiply(rows):
        given[2][:rows] = (given[0].double() @ given[1].double())[:rows].int()

    assert operands.verify(case, [given], lambda: multiply(33), 1).ok
    left = operands.verify(case, [given], lambda: multiply(32), 1)
    assert not left.ok and "unwritten" in str(left)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_check_sees_every_strip(batch, monkeypatch):
    """Large outputs are judged in strips; a wrong element in the last one is found."""
    case = dataclasses.replace(CASE, batch=batch)
    monkeypatch.setattr(operands, "STRIP", 40 * 7)
    given = operands.operands(case, "cpu")
    assert len(list(operands._strips(*given))) == (7 if batch == 1 else 3)

    def multiply(error):
        torch.matmul(given[0], given[1], out=given[2])
        given[2][..., -1, -1] += error

    assert operands.verify(case, [given], lambda: multiply(0), 1).ok
    assert not operands.verify(case, [given], lambda: multiply(1), 1).ok


# Ties


def test_a_ratio_inside_the_noise_is_a_tie():
    row = by_name(measure([fake("k01_equal")]))["equal"]
    clear = Quantiles(1.002, 1.003, 1.004)
    noisy = dataclasses.replace(row, ratio=clear, null=Quantiles(0.99, 1.001, 1.01))
    quiet = dataclasses.replace(row, ratio=clear, null=Quantiles(0.999, 1.0, 1.001))
    assert noisy.tie and not quiet.tie
    assert not dataclasses.replace(noisy, ratio=Quantiles(1.05, 1.06, 1.07)).tie
    assert dataclasses.replace(quiet, ratio=Quantiles(0.99, 1.003, 1.01)).tie
    assert "=1.003" in report.text_table([noisy]) and "=1.003" not in report.text_table([quiet])


def test_the_geometric_mean():
    assert stats.geomean([2.0, 0.5]) == pytest.approx(1)
    assert stats.geomean([1.1, 1.1, 1.1]) == pytest.approx(1.1)
    assert stats.geomean([]) != stats.geomean([])  # NaN
