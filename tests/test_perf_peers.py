"""The peers that race beside cuBLAS: who takes part, what is kept and refused, and their report."""

import dataclasses
import sys
import types

import pytest
import torch

from perf import (
    __main__,
    bench,
    competitors,
    cublaslt,
    machine,
    operands,
    peers,
    peers_report,
    quick,
    roof,
    rows,
    views,
)
from perf.case import Case
from perf.commands import suite
from perf.engine import Competitor, Loop, Plan, Sample, admit
from perf.machine import State
from perf.rows import NULL, PEERS, REFERENCE
from perf.stats import Quantiles
from tritemm.problem import INTERPRETED, Device

from .fake_cublaslt import FakeLibrary
from .perf_fakes import ENVIRONMENT, FakeBench, by_name, four_gpus, here, rows_after
from .test_perf_suite import row

pytestmark = pytest.mark.host
interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")

LT, QUACK = "cublaslt", "quack"
CASE = Case(24, 16, 40, "NT")


class FakeQuick:
    """A `Quick` on the CPU: algorithms take `seconds`, in the order in which they are prepared."""

    seconds = ()
    made = 0

    def __init__(self, case):
        type(self).made += 1
        self.exact, self.want = quick.integers(case, "cpu")
        self.prepared = self.recovered = 0

    def loop(self, competitor):
        seconds = self.seconds[self.prepared]
        self.prepared += 1
        return Loop(1, seconds, lambda: None, lambda: Sample(seconds))

    def recover(self):
        self.recovered += 1


@pytest.fixture
def card(monkeypatch):
    """CPU tensors pass for a GPU's; `card.library` is the cuBLASLt, `card.quick` the bench."""
    torch.manual_seed(7)
    fakes = types.SimpleNamespace(library=FakeLibrary(), quick=type("Q", (FakeQuick,), {}))
    fakes.quick.seconds, fakes.alignments = (3e-6, 1e-6, 2e-6), {}
    monkeypatch.setattr(cublaslt, "library", lambda: cublaslt.Library(fakes.library))
    monkeypatch.setattr(cublaslt, "_stream", lambda device: 0)
    # On a GPU torch's tensors begin at multiples of 512 bytes, here of 64 or more.
    monkeypatch.setattr(cublaslt, "alignment", lambda t: fakes.alignments.get(t.data_ptr(), 64))
    monkeypatch.setattr(peers, "Quick", lambda case: fakes.quick(case))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    return fakes


@pytest.fixture
def no_quack(monkeypatch):
    monkeypatch.setitem(sys.modules, "quack", None)


def installed(monkeypatch, gemm):
    package, interface = types.ModuleType("quack"), types.ModuleType("quack.gemm_interface")
    package.__version__, interface.gemm = "0.6.5", gemm
    monkeypatch.setitem(sys.modules, "quack", package)
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", interface)


def field(case, *words):
    return peers.peers(case, operands.operands(case, "cpu"), words)


# cuBLASLt's list


@pytest.mark.parametrize("case", [
    CASE, Case(24, 16, 40, "TN", "fp16", batch=3), Case(8, 16, 24, "NN", out_dtype="fp32"),
    Case(8, 16, 24, "TT", "fp32"), Case(1, 16, 24, "NT", "fp32", precision="tf32"),
], ids=str)  # fmt: skip
def test_the_fastest_of_the_list_is_kept_and_races(card, case):
    (lt,) = field(case, "lt")
    assert (lt.name, lt.refusal, lt.fault, lt.rung, lt.ladder) == (LT, None, None, None, None)
    assert lt.config == {"algorithm": 1, "us": [3.0, 1.0, 2.0]}
    card.library.launched.clear()
    there = FakeBench(case, {})
    entrant = admit(lt, there, Plan())
    assert entrant.outcome == "measured" and set(card.library.launched) == {1}
    assert entrant.worst <= 1


def test_what_was_timed_on_other_alignments_says_nothing(card):
    given = operands.operands(CASE, "cpu")
    card.alignments[given[1].data_ptr()] = 2
    (lt,) = peers.peers(CASE, given, ["lt"])
    assert "other strides or alignments" in admit(lt, FakeBench(CASE, {}), Plan()).reason


def test_an_algorithm_that_cant_run_is_left_out(card):
    card.library.broken = (1,)
    (lt,) = field(CASE, "lt")
    assert lt.config == {"algorithm": 2, "us": [3.0, None, 1.0]}
    card.library.broken = (0, 1, 2)
    (lt,) = field(CASE, "lt")
    entrant = admit(lt, FakeBench(CASE, {}), Plan())
    assert entrant.outcome == "failed"
    assert "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED" in entrant.reason


def test_an_algorithm_that_is_wrong_is_told_and_nothing_is_timed(card):
    card.library.wrong = 2
    (lt,) = field(CASE, "lt")
    entrant = admit(lt, FakeBench(CASE, {}), Plan())
    assert entrant.outcome == "wrong" and entrant.loop is None
    assert entrant.reason.startswith("algorithm 2 of 3: on small integers it is off by ")


def test_another_geometry_has_its_own_product(card):
    """A bench estimates by a strip of A's rows: nothing may be written below it."""
    a, b, c = operands.operands(CASE, "cpu")
    (lt,) = peers.peers(CASE, (a, b, c), ["lt"])
    c.fill_(99)
    card.library.launched.clear()
    lt.run(a[:8], b, c[:8])
    assert card.library.launched == [0] and (c[8:] == 99).all() and (c[:8] != 99).all()
    alive = len(card.library.alive)
    for _ in range(3):
        lt.run(a, b, c)
    assert len(card.library.alive) == alive and card.library.launched[1:] == [1] * 3
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(8, 8, 8, "NT", "int8", "int32"), "not for int8"),
        (Case(8, 8, 8, "NT", "fp8"), "not for fp8"),
        (Case(8, 8, 8, "NT", "fp64", "fp64"), "not for fp64"),
        (Case(8, 8, 8, "NT", "fp16", "fp16"), "not in fp16"),
        (Case(8, 8, 8, "NT", "fp32", precision="tf32x3"), "cuBLASLt has no tf32x3"),
        (Case(8, 8, 8, "NT", "bf16", ending="bias"), "products alone"),
        (Case(8, 8, 8, "NT", "bf16", out_dtype="fp16"), "results of the operands' type or fp32"),
    ],
)
def test_what_cublaslt_is_not_asked_for_is_refused(card, case, reason):
    (lt,) = field(case, "lt")
    assert reason in lt.refusal and card.quick.made == 0
    assert admit(lt, None, Plan()).outcome == "refused"


def test_tensors_on_the_cpu_and_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setattr(cublaslt, "candidates", lambda: iter(["/nowhere/libcublasLt.so.13"]))
    cublaslt.library.cache_clear()
    (lt,) = field(CASE, "lt")
    assert lt.refusal == "the tensors are on the CPU; cublaslt needs them on a GPU"
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    (lt,) = field(CASE, "lt")
    with pytest.raises(OSError, match="libcublasLt was not found"):
        lt.run(None, None, None)


# quack


def test_quack_races_in_its_default_config(card, monkeypatch):
    asked = []

    def gemm(A, B, out=None, tuned=True, **more):
        asked.append((tuned, more))
        out.copy_(A @ B)
        return out

    installed(monkeypatch, gemm)
    _, quack_ = field(CASE, "lt", "quack", "lt")
    assert card.quick.made == 1  # for both
    assert (quack_.name, quack_.config) == (QUACK, {"version": "0.6.5", "tuned": False})
    assert admit(quack_, FakeBench(CASE, {}), Plan()).outcome == "measured"
    assert {(tuned, *more) for tuned, more in asked} == {(False,)}


def test_a_quack_that_is_wrong_or_fails_is_told(card, monkeypatch):
    installed(monkeypatch, lambda A, B, out, tuned: out.copy_(A @ B)[3:].fill_(0))
    (found,) = field(CASE, "quack")
    assert admit(found, FakeBench(CASE, {}), Plan()).outcome == "wrong"
    installed(monkeypatch, lambda A, B, out, tuned: 1 // 0)
    (found,) = field(CASE, "quack")
    entrant = admit(found, FakeBench(CASE, {}), Plan())
    assert (entrant.outcome, entrant.reason[:17]) == ("failed", "ZeroDivisionError")


def test_a_result_that_was_not_written_is_wrong(card, monkeypatch):
    """Integers may lie in C already; poison may not."""
    installed(monkeypatch, lambda A, B, out, tuned: None)
    (found,) = field(CASE, "quack")
    assert (
        found.fault
        == "on small integers it is off by nan, where results are about "
        + (found.fault.rpartition(" ")[2])
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(8, 8, 8, "NT", "fp32", precision="tf32"), "not for fp32"),
        (Case(8, 20, 8, "NT"), "rows of whole 16 bytes"),  # of C
        (Case(8, 8, 12, "NT"), "rows of whole 16 bytes"),  # of A and B
        (Case(12, 8, 8, "TN"), "rows of whole 16 bytes"),  # of A
    ],
)
def test_what_quack_does_not_take_is_refused(card, monkeypatch, case, reason):
    installed(monkeypatch, lambda A, B, out, tuned: out.copy_(A @ B))
    assert reason in field(case, "quack")[0].refusal
    assert field(Case(9, 8, 16, "NT"), "quack")[0].refusal is None  # any number of rows


def test_without_quack_the_refusal_says_how_to_install_it(card, no_quack):
    (found,) = field(CASE, "quack")
    assert "pip install quack-kernels" in found.refusal


# Results that break the bound


def spoilt(factor):
    """A product with one element off, by so much of its size."""

    def run(a, b, c):
        torch.matmul(a, b, out=c)
        c[3, 5] *= 1 + factor

    return run


@pytest.mark.parametrize(
    ("slack", "factor", "outcome"),
    [(1000.0, 0.02, "measured"), (1000.0, 200.0, "wrong"), (float("inf"), 200.0, "measured")],
)
def test_a_peer_is_wrong_far_beyond_the_bound_and_a_reference_never(slack, factor, outcome):
    torch.manual_seed(7)
    entrant = admit(Competitor("x", spoilt(factor), slack=slack), FakeBench(CASE, {}), Plan())
    assert entrant.outcome == outcome and entrant.worst > 1 and entrant.reason
    assert (entrant.loop is None) == (outcome == "wrong")
    rung = Competitor("x", spoilt(factor), rung="x", slack=slack)
    assert admit(rung, FakeBench(CASE, {}), Plan()).outcome == "wrong"


def test_a_peer_that_leaves_an_element_is_wrong():
    def run(a, b, c):
        torch.matmul(a[:-1], b, out=c[:-1])

    found = admit(Competitor("x", run, slack=peers.SLACK), FakeBench(CASE, {}), Plan())
    assert found.outcome == "wrong" and "unwritten" in found.reason


# The race, and its command


def stand_ins(monkeypatch, right=True):
    def made(name):
        def run(a, b, c):
            torch.matmul(a, b, out=c)
            if not right and name == LT:
                c.copy_(c.flip(-1) + 1)

        return lambda case, operands_, there: (
            Competitor(name, run, refusal="no fp8")
            if case.dtype == "fp8"
            else Competitor(name, run, config={"kept": name}, slack=peers.SLACK)
        )

    for word, name in PEERS.items():
        monkeypatch.setitem(peers.MAKERS, word, made(name))


@interpreted
def test_tritemm_is_compared_with_every_peer(monkeypatch):
    stand_ins(monkeypatch)
    there = FakeBench(CASE, {"auto": 1e-3, REFERENCE: 1.2e-3, LT: 1.1e-3, QUACK: 0.9e-3})
    found = peers.against(CASE, there.sets[0], ["auto", "simt"], ["quack", "lt"])
    assert [c.name for c in found] == ["auto", "simt", REFERENCE, NULL, QUACK, LT]
    assert [c.rivals for c in found] == [(QUACK, LT)] * 2 + [()] * 4
    raced = by_name(rows_after(found, there))
    assert raced["auto"].versus[LT].p50 == pytest.approx(1.1, rel=0.01)
    assert raced["auto"].versus[QUACK].p50 == pytest.approx(0.9, rel=0.01)
    assert raced[LT].config == {"kept": LT} and raced[LT].versus is None
    plain = competitors.matmul(CASE, there.sets[0], ["auto"])
    assert {c.rivals for c in plain} == {()}


SUITE = """id,class,name,batch,M,N,K,dtype,out_dtype,layout
A,prefill,small,1,32,24,40,fp16,fp16,NT
B,batched,batch,2,16,24,40,bf16,bf16,NN
C,fp8,eight bits,1,32,32,64,fp8,bf16,NT
"""


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """The command on the CPU, with stand-ins for the peers; times are `timed`'s by competitor."""
    seconds = {}
    roofs = roof.Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), 1450.0, 4200.0)
    monkeypatch.setattr(suite, "unable", lambda name: None)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0))
    monkeypatch.setattr(roof, "measure", lambda probe: roofs)
    make = lambda case, plan, probe: FakeBench(case, seconds)  # noqa: E731
    monkeypatch.setattr(bench, "BENCHES", {"sustained": make, "burst": make})
    here(monkeypatch)
    stand_ins(monkeypatch)
    (tmp_path / "mine.csv").write_text(SUITE)
    return seconds


@interpreted
def test_the_suite_races_peers_as_an_experiment_of_its_own(timed, tmp_path, capsys):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    timed |= {"auto": 1e-3, REFERENCE: 1.2e-3, LT: 1.1e-3, QUACK: 0.9e-3}
    words = ["suite", "--file", str(file), "--rounds", "12", "--out", str(path)]
    assert __main__.main([*words, "--peers", "lt,quack"]) == 0
    found = rows.read(path)
    names = ["auto", REFERENCE, LT, QUACK]
    assert [(r.problem["id"], r.competitor) for r in found] == [
        (key, name) for key in "ABC" for name in names
    ]
    assert {row.experiment for row in found} == {"peers"}
    told = capsys.readouterr().out
    last = next(line.split() for line in told.splitlines() if line.startswith("all  "))
    assert last[1:4] == ["2", "of", "3"] and last[-2:] == ["quack", "2"]
    assert [float(last[i]) for i in (4, 7)] == pytest.approx([1.2, 0.9], abs=0.01)
    assert "losses against the best peer (2): " in told and "cublaslt: C refused: no fp8." in told
    selection = views.Selection()
    (shown,) = views.VIEWS["peers"].chosen(found, selection)
    table = views.VIEWS["peers"].table(shown, selection)
    assert "| cublaslt µs | quack µs |" in table and "nan" not in table
    for name in ("suite", "problems", "runs", "random", "random-peers", "roofline", "invariant"):
        assert views.VIEWS[name].chosen(found, selection) is None

    assert __main__.main([*words, "--peers", "lt", "--id", "A", "--json"]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert __main__.main([*words, "--peers", "lt", "--batch-invariant"]) == 2
    assert "leave --peers out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        __main__.main([*words, "--peers", "cutlass"])


@interpreted
def test_random_problems_race_peers_too(timed, tmp_path, monkeypatch, capsys):
    path = tmp_path / "x.jsonl"
    chosen = [suite.Problem("0-0", "any size", "random", CASE)]
    monkeypatch.setattr(suite, "random_problems", lambda n, seed: chosen)
    words = ["random", "--rounds", "3", "--peers", "quack", "--out", str(path)]
    assert __main__.main(words) == 0
    found = rows.read(path)
    assert {row.experiment for row in found} == {"random peers"}
    assert [row.competitor for row in found] == ["auto", REFERENCE, QUACK]
    told = capsys.readouterr().out
    assert "x best peer" in told and peers_report.LARGE not in told
    selection = views.Selection()
    assert views.VIEWS["random-peers"].chosen(found, selection) == (found,)
    assert views.VIEWS["peers"].chosen(found, selection) is None


@interpreted
def test_a_wrong_peer_ends_with_status_1(timed, tmp_path, monkeypatch, capsys):
    stand_ins(monkeypatch, right=False)
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    words = ["suite", "--file", str(file), "--id", "A", "--rounds", "3", "--out", str(path)]
    assert __main__.main([*words, "--peers", "lt,quack"]) == 1
    assert by_name(rows.read(path))[LT].outcome == "wrong"
    assert "cublaslt: A wrong: " in capsys.readouterr().out


@interpreted
def test_peers_are_raced_on_several_cards(timed, tmp_path, monkeypatch):
    four_gpus(monkeypatch)
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    words = ["suite", "--file", str(file), "--rounds", "3", "--out", str(path)]
    assert __main__.main([*words, "--peers", "lt", "--gpus", "2"]) == 0
    found = rows.read(path)
    assert [(r.problem["id"], r.competitor, r.experiment) for r in found] == [
        (key, name, "peers") for key in "ABC" for name in ("auto", REFERENCE, LT)
    ]


# What rows say


def race(key, group, cublas, lt=None, quack=None, dtype="bf16", size=64, **fields):
    """Rows of one problem: the times of others over ours, without spread."""

    def us(ratio):
        return {"us": Quantiles(*[100 * ratio] * 3)}

    fields |= {"experiment": "peers", "dtype": dtype}
    others = {name: ratio for name, ratio in ((LT, lt), (QUACK, quack)) if ratio}
    same = {name: Quantiles(*[ratio] * 3) for name, ratio in others.items()}
    found = [
        row(key, group, cublas, **fields | us(1), versus=same),
        row(key, group, 1.0, REFERENCE, **fields | us(cublas)),
        *(row(key, group, 1.0, name, **fields | us(ratio)) for name, ratio in others.items()),
    ]
    case = dataclasses.replace(found[0].case, N=size)
    return [dataclasses.replace(each, case=case) for each in found]


FOUND = [
    *race("P1", "prefill", 1.1, 1.05, 1.2),
    *race("T8", "train", 3.0, 2.9, size=63),  # its rows are not aligned
    *race("S1", "square", 1.0, 1.01, 0.9),
    *race("S8", "square", 0.8, 0.7, dtype="fp32"),
    *race("R1", "ragged", 2.0, 2.5),
]


def test_the_best_peer_is_the_fastest_of_each_problem():
    found = {result.id: result for result in peers_report.beside(FOUND, "auto")}
    assert {key: (result.best, result.ratio.p50) for key, result in found.items()} == {
        "P1": (LT, 1.05), "T8": (LT, 2.9), "S1": (QUACK, 0.9), "S8": (LT, 0.7),
        "R1": (REFERENCE, 2.0),
    }  # fmt: skip


def test_totals_are_of_classes_and_of_the_large_aligned():
    lines = {line[0]: line for line in peers_report.totals(peers_report.beside(FOUND, "auto"))}
    assert list(lines) == [
        "prefill", "train", "square", "ragged", "large aligned", "all 16-bit", "all",
    ]  # fmt: skip
    large = lines["large aligned"]  # P1 and S1
    assert large[1:6] == ("2", "1.049", "1.000 (S1)", "0.972", "0.900 (S1)")
    assert large[6:] == ("1", "0", "1", "cublaslt 1, quack 1")
    assert lines["all 16-bit"][1] == "4" and lines["all"][5] == "0.700 (S8)"
    assert lines["all"][6:] == ("3", "0", "2", "cublaslt 3, quack 1, cuBLAS 1")


def test_the_text_has_every_time_and_names_who_is_best():
    text = peers_report.text(FOUND)
    line = next(line for line in text.splitlines() if line.startswith("P1 "))
    assert line.split()[-9:] == [
        "100", "110", "105", "120", "1.100", "(1.100-1.100)", "cublaslt", "1.050", "(1.050-1.050)"
    ]  # fmt: skip
    assert "losses against the best peer (2): S8 0.700, S1 0.900" in text
    assert peers_report.text([]) == "nothing was measured"


def test_a_problem_without_times_is_told_and_counts_in_no_mean():
    none = {"experiment": "peers"}
    refused = [row("F1", "fp8", competitor=n, **none) for n in ("auto", LT)]
    extra = [row("F1", "fp8", 1.0, REFERENCE, **none), *refused]
    text = peers_report.text([*FOUND, *extra])
    assert "F1 refused: not implemented." in text and "cublaslt: F1 refused: not" in text
    table = peers_report.markdown([*FOUND, *extra], "auto")
    for part in table.split("\n\n"):
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1
    assert "| all | 5 of 6 |" in table and "nan" not in table


def test_whose_results_missed_the_bound_is_named():
    def missed(name, key):
        return lambda r: r.competitor == name and r.problem["id"] == key

    chosen = [missed(LT, "S1"), missed(LT, "P1"), missed(REFERENCE, "S1")]
    found = [
        dataclasses.replace(r, reason="2 are wrong") if any(f(r) for f in chosen) else r
        for r in FOUND
    ]  # fmt: skip
    for told in (peers_report.text(found), peers_report.markdown(found, "auto")):
        assert "Beyond the error bound: cuBLAS: S1; cublaslt: P1, S1." in told
    assert "Beyond" not in peers_report.text(FOUND)


def test_one_of_tritemms_kernels_is_no_peer_of_another():
    tma = [dataclasses.replace(r, competitor="tma") for r in FOUND if r.competitor == "auto"]
    tma = [dataclasses.replace(r, us=Quantiles(1, 1, 1)) for r in tma]
    both = [*FOUND, *tma]
    assert peers_report.ours(both) == ["auto", "tma"]
    assert {r.best for r in peers_report.beside(both, "auto")} == {LT, QUACK, REFERENCE}
    assert len(peers_report.beside(both, "tma")) == 5


def test_the_headline_names_both_where_all_of_the_suite_was_raced(monkeypatch):
    from docs import generate

    mine = [dataclasses.replace(r, experiment="suite") for r in FOUND if r.competitor in (
        "auto", REFERENCE
    )]  # fmt: skip
    monkeypatch.setattr(generate, "full_suite", lambda: 5)
    said = generate.headline([*mine, *FOUND])
    assert "at 1.39x cuBLAS's speed" in said
    assert (
        "Against the fastest of cuBLAS, cublaslt and quack on each of 5 shapes it runs at 1.31x, "
        "at 0.97x on the large aligned ones, the worst at 0.70x (S8). NVIDIA H200, " in said
    )
    assert "Against" not in generate.headline(mine)
    monkeypatch.setattr(generate, "full_suite", lambda: 6)
    assert "Against" not in generate.headline([*mine, *FOUND])
