"""The suite's problems, random problems, and what their rows say together."""

import dataclasses
import math
import random
import statistics

import pytest

from perf import bench, engine, problems, select, summary, views
from perf.case import Case
from perf.engine import Loop, Plan, Sample
from perf.machine import State, _limited
from perf.plots import figures
from perf.roof import Roof, Roofs
from perf.roofline import text as roofline_text
from perf.rows import NULL, REFERENCE, Row
from perf.stats import Quantiles, standard_error
from tritemm.problem import Device

from .perf_fakes import heading

pytestmark = pytest.mark.host

HEAD = "id,class,name,batch,M,N,K,dtype,out_dtype,layout\n"


def row(key, group, ratio=None, competitor="auto", null=1.0, run="2026-01-02T00:00:00", **fields):
    """A row of a suite, with a ratio of no spread, or refused."""
    shared = vars(heading(Case(64, 64, 64, dtype=fields.pop("dtype", "bf16"))))
    shared |= {"experiment": "suite", "run": run, "roof": Roof(700.0, 4000.0)}
    shared |= {"problem": {"id": key, "class": group, "name": "made up"}}
    measured = {
        "outcome": "measured", "us": Quantiles(2, 2, 2),
        "ratio": Quantiles(ratio, ratio, ratio), "null": Quantiles(null, null, null),
    } if ratio else {"outcome": "refused", "reason": "not implemented"}  # fmt: skip
    none = {"rung": None, "number": None, "config": None}
    return Row(**shared | none | measured | {"competitor": competitor} | fields)


# The suite's file


def test_the_suite_is_read():
    found = problems.read_suite()
    known = {problem.id: problem for problem in found}
    assert len(known) == len(found) == 75
    assert known["S8"].case == Case(4096, 4096, 4096, "NN", "fp32", precision="tf32")
    assert known["S10"].case == Case(4096, 14336, 4096, "NT", "int8", "int32")
    assert known["F1"].case == Case(4096, 24576, 1536, "NT", "fp8")
    assert known["M1"].case.out_dtype == "fp32" and known["P1"].case.out_dtype is None
    assert known["B4"].case.batch == 4096
    assert known["M1"].name == "lm_head, fp32 output"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,class,name\n", "no column batch"),
        (HEAD + "A,one,x,1,0,2,3,bf16,bf16,NT\n", "line 2: M is a count of 1 or more, not '0'"),
        (HEAD + "A,one,x,1,2,2,3,bf17,bf16,NT\n", "a type is one of .*, not 'bf17'"),
        (HEAD + "A,one,x,1,2,2,3,int32,int32,NT\n", "int32 is no type of operands"),
        (HEAD + "A,one,x,1,2,2,3,bf16,bf16,NX\n", "a layout is"),
        (HEAD + "A,one,x,1,2,2,3,bf16,bf16,NT\n" * 2, "line 3: a second A"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"mine.csv.*{message}"):
        problems.read_suite(path)


# Random problems


def test_random_problems_are_the_seeds_and_of_every_kind():
    found = problems.random_problems(400, 5)
    assert found[:60] == problems.random_problems(60, 5)
    assert found != problems.random_problems(400, 6)
    assert {p.case.layout for p in found} == {"NN", "NT", "TN", "TT"}
    assert {p.case.dtype for p in found} == {"bf16", "fp16"}
    assert len({p.id for p in found}) == 400
    for multiple in problems.MULTIPLES:
        own = [p.case for p in found if p.group == problems.group_of(multiple)]
        assert 60 < len(own) < 140
        assert all(case.N % multiple == case.K % multiple == 0 for case in own)
    assert all(p.case.flops <= problems.FLOPS for p in found)
    assert sum(p.case.M < 64 for p in found) > 60


def test_random_sizes_are_log_uniform():
    logs = [math.log2(p.case.N) for p in problems.random_problems(2000, 0)]
    low, high = problems.SIZES
    for share in (0.25, 0.5, 0.75):
        at = statistics.quantiles(logs, n=100)[round(100 * share) - 1]
        assert at == pytest.approx(low + share * (high - low), abs=0.4)


# Summaries


ROWS = [
    row("A", "one", 1.25), row("A", "one", 1.0, REFERENCE),
    row("B", "one", 0.8, null=1.01), row("B", "one", 1.0, REFERENCE, null=1.01),
    row("C", "two", 1.004, null=1.005), row("C", "two", 1.0, REFERENCE, null=1.005),
    row("D", "two", None, dtype="fp8"), row("D", "two", 1.0, REFERENCE, dtype="fp8"),
]  # fmt: skip


def test_classes_and_all_are_summed_up():
    one, two, sixteen, every = summary.summarise(summary.of(ROWS, "auto"))
    assert [s.name for s in (one, two, sixteen, every)] == ["one", "two", "all 16-bit", "all"]
    assert (one.problems, one.timed, one.reached, one.wins, one.ties, one.losses) == (
        2, 2, 1, 1, 0, 1,
    )  # fmt: skip
    assert one.geomean == pytest.approx(1.0)
    assert one.least.problem["id"] == "B"
    assert (two.problems, two.timed, two.reached, two.wins, two.ties) == (2, 1, 1, 0, 1)
    assert (sixteen.problems, every.problems, every.timed) == (3, 4, 3)
    assert every.geomean == pytest.approx((1.25 * 0.8 * 1.004) ** (1 / 3))
    assert every.share == pytest.approx(2 / 3)


def test_the_noise_is_that_of_the_null_test():
    found = summary.noise(ROWS)
    assert found.geomean == pytest.approx((1.01 * 1.005 * 1 * 1) ** 0.25)
    assert (found.farthest, found.at) == (1.01, "B")
    assert summary.noise([]) is None


def test_the_text_has_wins_losses_and_refusals():
    text = summary.text(ROWS)
    assert "wins (1): A 1.250" in text and "losses (1): B 0.800" in text
    assert "refused: not implemented" in text
    assert "cuBLAS against itself: geomean 1.0037, farthest from 1 1.0100 (B)" in text


def test_markdown_tables_are_whole():
    for table in (summary.markdown(ROWS, "auto"), summary.markdown_problems(ROWS, "auto")):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
        assert "nan" not in table


# Which run is shown


def test_a_partial_run_does_not_displace_a_full_one():
    later = [dataclasses.replace(r, run="2026-02-02T00:00:00") for r in ROWS]
    latest = {"experiment": "suite", "enough": 4}
    assert select.latest_run([*ROWS, *later], **latest) == later
    assert select.latest_run([*ROWS, *later[:4]], **latest) == ROWS
    assert select.latest_run([*ROWS, *later[:4]], "suite", enough=2) == later[:4]
    assert select.latest_run(ROWS, "random") == []
    tma = [dataclasses.replace(r, competitor="tma") for r in later if r.competitor == "auto"]
    assert select.latest_run([*ROWS, *tma], **latest, competitor="auto") == ROWS
    assert select.latest_run([*ROWS, *tma], **latest, competitor="tma") == tma
    assert select.latest_run(tma, **latest, competitor="auto") == []
    burst = [dataclasses.replace(r, mode="burst") for r in later]
    assert select.latest_run([*ROWS, *burst], **latest) == ROWS
    assert select.latest_run([*ROWS, *burst], **latest, mode="burst") == burst


def test_each_problems_newest_race_is_shown_whichever_run_it_was_of():
    ids = list(dict.fromkeys(row.problem["id"] for row in ROWS))
    few = [
        dataclasses.replace(r, run="2026-02-02T00:00:00") for r in ROWS if r.problem["id"] == ids[0]
    ]
    rest = [row for row in ROWS if row.problem["id"] != ids[0]]
    assert rest
    assert select.newest_races([*few, *ROWS], "suite", ids) == [*few, *rest]
    backwards = sorted(rest, key=lambda row: ids.index(row.problem["id"]), reverse=True)
    found = select.newest_races([*ROWS, *few], "suite", ids[::-1])
    assert [row.problem for row in found] == [row.problem for row in [*backwards, *few]]
    assert select.newest_races([*ROWS, *few], "suite", [])[: len(few)] == few
    assert select.newest_races([*ROWS, *few], "suite", ["of another file"])[: len(few)] == few
    assert select.newest_races([*few, *ROWS], "suite", ids[:1]) == few
    assert select.newest_races(ROWS, "random", ids) == []


# The roofs


def test_the_roof_is_arithmetic_or_memory():
    roof = Roof(tflops=700.0, gbs=4000.0)
    large, thin = Case(8192, 8192, 8192), Case(1, 8192, 8192)
    assert roof.floor(large) == pytest.approx(2 * 8192**3 / 700e6)
    assert roof.floor(thin) == pytest.approx((2 * 8192 + 8192**2) * 2 / 4e6, rel=1e-3)


@pytest.mark.parametrize(
    ("case", "share"),
    [
        (Case(1, 1, 1), 1.0),
        (Case(1, 1, 1, dtype="fp8"), 2.0),
        (Case(1, 1, 1, dtype="int8", accumulate="int32"), 2.0),
        (Case(1, 1, 1, dtype="fp32", precision="tf32"), 0.5),
        (Case(1, 1, 1, dtype="fp64", accumulate="fp64"), 1 / 15),
    ],
)
def test_the_dense_rate_is_that_of_the_type(case, share):
    roofs = Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), mhz=1410.0, gbs=4300.0)
    assert roofs.of(case).tflops == pytest.approx(share * 762.3, rel=1e-3)


def test_the_roofline_text_orders_by_the_share_of_the_roof():
    lines = roofline_text([], ROWS).splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["D", "A", "B", "C"]
    assert "% of roof" in lines[-5]


# Precision


def race(noise, plan):
    """How many rounds a plan takes of a competitor whose time alternates by `noise`."""
    ticks = {"n": 0}

    def timer(name):
        def time():
            ticks["n"] += 1
            return Sample(1e-3 * (1 + noise * (-1) ** ticks["n"] * (name != REFERENCE)))

        return time

    loops = {name: Loop(1, 1e-3, None, timer(name)) for name in (REFERENCE, NULL, "auto")}
    enough = lambda taken: engine._precise(taken, plan)  # noqa: E731
    taken, _ = engine.run_rounds(loops, plan.most, random.Random(0), enough=enough)
    return len(taken)


def test_rounds_end_when_the_ratios_are_precise():
    plan = Plan(rounds=5, most=20, error=0.006)
    assert race(0.0001, plan) == 5
    assert 5 < race(0.01, plan) < 20
    assert race(0.1, plan) == 20


def test_the_standard_error_is_that_of_a_median():
    rng = random.Random(0)
    for count, most in ((100, 1.1), (25, 1.2), (5, 1.6)):
        samples = [[rng.gauss(1, 0.02) for _ in range(count)] for _ in range(800)]
        medians = [statistics.median(sample) for sample in samples]
        claimed = statistics.mean(map(standard_error, samples))
        assert 0.9 < claimed / statistics.stdev(medians) < most


# Whether the clock is limited


@pytest.mark.parametrize(
    ("mhz", "power", "limited"),
    [(1980, 400, False), (1980, 680, True), (1410, 500, True), (None, 700, None)],
)
def test_the_clock_is_limited_below_its_maximum_and_near_the_power_limit(mhz, power, limited):
    assert _limited(mhz, 1980, power, 700) is limited


@pytest.mark.parametrize(
    ("states", "adapts"),
    [
        ([State(1980, 400, 50, False), State(1980, 600, 50, False)], False),  # nothing limits it
        ([State(1450, 700, 50, True), State(1460, 690, 50, True)], False),  # the same power
        ([State(1450, 700, 50, True), State(1980, 500, 50, False)], True),
        ([State(1450, 700, 50, True), State(1980, None, 50, None)], True),  # unknown
        ([State(), State()], True),
    ],
)
def test_the_clock_adapts_where_powers_differ_under_a_limit(states, adapts):
    assert bench._adapts(states) is adapts


def test_a_clock_is_steady_when_four_readings_agree():
    assert bench._steady([1400, 1410, 1420, 1405])
    assert not bench._steady([1400, 1410, 1450, 1405])
    assert not bench._steady([1400, 1410, 1420])
    assert bench._steady([None] * 4)  # nobody knows: the time decides


def test_a_state_is_limited_if_any_is():
    states = [State(1980.0, 500.0, 50.0, False), State(1500.0, 700.0, 50.0, True)]
    assert State.median(states) == State(1740.0, 600.0, 50.0, True)
    assert State.median([State()]) == State()


def test_views_show_the_kernel_that_was_asked_for(tmp_path):
    """A later run of one rung hides nothing of `auto`, and can be shown itself."""
    tma = [
        dataclasses.replace(r, run="2026-02-02T00:00:00", competitor="tma")
        for r in ROWS
        if r.competitor == "auto"
    ]
    known = [*ROWS, *tma, *(dataclasses.replace(r, run=tma[0].run) for r in ROWS[1::2])]
    for name, table in views.TABLES.items():
        if name not in ("suite", "problems"):
            continue
        auto, asked = views.Selection(), views.Selection(competitor="tma")
        assert table.chosen(known, auto) == (ROWS,)
        (chosen,) = table.chosen(known, asked)
        assert "A" in table.table(chosen, asked) and "nan" not in table.table(chosen, asked)
    pictures = {}
    for asked in (auto, views.Selection(competitor="tma")):
        view, path = views.PICTURES["suite"], tmp_path / f"{asked.competitor}.png"
        lists = view.chosen(known, asked)
        view.draw(*lists, path, asked)
        pictures[asked.competitor] = figures.drawn_from(path)
        assert pictures[asked.competitor] == view.digest(lists)
    assert pictures["auto"] != pictures["tma"]


def test_what_was_not_measured_is_not_chosen():
    for view in views.VIEWS.values():
        assert view.chosen([], views.Selection()) is None
