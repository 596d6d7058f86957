"""`python -m perf suite | random | roofline` on the CPU, with stand-ins for the card and peers."""

import dataclasses
import itertools
import json
import math
import re
import statistics

import pytest
import torch

import tritemm
from perf import __main__, bench, engine, peers, problems, rows, session, tables
from perf.case import Case
from perf.engine import Competitor, Plan
from perf.experiments import peers as shown
from perf.experiments import roofline, show, suite
from perf.rows import AUTO_FAST, INVARIANT, PEERS, REFERENCE, TORCH_FAST
from perf.views import Selection
from tests.perf.fakes import FakeBench, by_name, flat, on_cpu, parsed, ran, row
from tritemm.rungs import RUNGS

pytestmark = [pytest.mark.host, pytest.mark.once]

HEAD = "id,class,name,batch,M,N,K,dtype,out_dtype,layout\n"
SCALED = "M,N,K,batch,dtype,out_dtype,scaling\n"
SUITE = (
    HEAD
    + """A,decode,small,1,32,24,40,fp16,fp16,NT
B,one,batched,2,16,24,40,bf16,bf16,NN
C,two,eight bits,1,32,32,64,fp8,bf16,NT
"""
)
LT, QUACK = PEERS["lt"], PEERS["quack"]


@pytest.fixture
def timed(monkeypatch, tmp_path):
    (tmp_path / "mine.csv").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return on_cpu(monkeypatch)


WORDS = ("suite", "--file", "mine.csv", "--rounds", "12")


def stand_in(monkeypatch, right=True):
    """A peer that multiplies with torch, and refuses fp8; it is wrong if asked to be."""

    def made(case, given):
        def run(a, b, c):
            torch.matmul(a, b, out=c)
            if not right:
                c.copy_(c.flip(-1) + 1)

        if case.dtype == "fp8":
            return Competitor(LT, run, refusal="no fp8")
        return Competitor(LT, run, config={"kept": LT}, slack=peers.SLACK)

    monkeypatch.setitem(peers.PEER, "lt", made)


def spoilt(a, b, *, out, **options):
    torch.matmul(a, b, out=out)[..., -1, -1] += 1
    return out


# The problems


def test_the_suite_is_read():
    known = {problem.id: problem.case for problem in problems.read_suite()}
    assert known["S8"] == Case(4096, 4096, 4096, "NN", "fp32", precision="tf32")
    assert known["S10"] == Case(4096, 14336, 4096, "NT", "int8", "int32")
    assert known["M1"].out_dtype == "fp32" and known["P1"].out_dtype is None
    assert known["I1"] == Case(512, 3072, 1024, "NT", "fp32")
    assert known["I8"] == Case(2048, 2048, 2048, "NN", "fp64", "fp64")
    layers = {problem.id: problem.case for problem in problems.read_suite(problems.LINEAR)}
    assert layers["T1"] == Case(8192, 28672, 4096, "NT", "bf16", ending="bias gelu")
    assert (layers["T3"].ending, layers["T3"].columns) == ("swiglu", 14336)
    assert {case.scaling for case in known.values() if case.dtype == "fp8"} == {"row"}
    scaled = {problem.id: problem.case for problem in problems.read_suite(problems.SCALED)}
    assert scaled["S7b"] == dataclasses.replace(known["S7"], scaling="block")
    assert (scaled["N2"], scaled["R2"].output) == (known["S10"], "bf16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "A,one,x,1,,2,3,bf16,bf16,NT\n", "line 2: M is a count of 1 or more, not ''"),
        ("M,N,K,epilogue\n8,8,8,bias\n", "no column is called 'epilogue'; there are M, N, K, id"),
        (HEAD + "A,one,x,1,0,2,3,bf16,bf16,NT\n", "line 2: M is a count of 1 or more, not '0'"),
        (HEAD + "A,one,x,1,2,2,3,bf17,bf16,NT\n", "a type is one of .*, not 'bf17'"),
        (HEAD + "A,one,x,1,2,2,3,int32,int32,NT\n", "int32 is no type of operands"),
        (HEAD + "A,one,x,1,2,2,3,int8x4,fp32,NT\n", "a type is one of .*, not 'int8x4'"),
        (HEAD + "A,one,x,1,2,2,3,int8x7,,NT\n", "int8x7 multiplies fp32 or fp64, which out_dtype"),
        (HEAD + "A,one,x,1,2,2,3,int8x7,bf16,NT\n", "which out_dtype says, not 'bf16'"),
        (HEAD + "A,one,x,1,2,2,3,bf16,bf16,NX\n", "a layout is"),
        (HEAD + "A,one,x,1,2,2,3,bf16,bf16,NT\n" * 2, "line 3: a second A"),
        ("A,one,x,2,8,8,8,bf16,bf16,NT,bias", "one 16-bit product"),
        ("A,one,x,1,8,8,8,bf16,bf16,TN,accumulate", "what accumulates is fp32"),
        ("A,one,x,1,8,8,8,bf16,fp32,NT,bias", "what accumulates is fp32"),
        ("A,one,x,1,8,8,8,bf16,bf16,NN,bias", "layout is NT"),
        ("A,one,x,1,8,7,8,bf16,bf16,NT,swiglu", "halves of N"),
        ("A,one,x,1,8,8,8,bf16,bf16,NT,bias tanh", "line 2: an ending is made of .* not 'tanh'"),
        ("A,one,x,1,8,8,8,bf16,bf16,NT,bias bias", "each word once"),
        ("A,one,x,1,8,8,8,bf16,bf16,NT,relu gelu", "one activation"),
        ("A,one,x,1,8,8,8,bf16,bf16,NT,accumulate bias", "stand alone"),
        ("A,one,x,1,8,8,8,bf16,bf16,NT,swiglu residual", "stand alone"),
        ("A,one,x,1,8,9,8,bf16,bf16,NT,symmetric", "square, NT or TN"),
        ("A,one,x,1,8,8,8,fp8,bf16,NT,symmetric", "neither a batch nor an ending"),
        ("A,one,x,1,8,8,192,bf16,bf16,NT,int4", "multiples of 128 columns, not 192"),
        ("A,one,x,1,8,8,128,bf16,bf16,NT,bias int4", "stand alone"),
        (SCALED + "8,8,8,1,fp8,,rows\n", "a scaling is one of tensor, row, .* not 'rows'"),
        (SCALED + "8,8,8,1,bf16,,row\n", "scales are of fp8 or int8, not of bf16"),
        (SCALED + "8,8,8,1,int8,,block\n", "scales of int8 are of all of K, tensor or row"),
        (SCALED + "8,8,8,2,fp8,,\n", "neither a batch nor an ending"),
        (SCALED + "8,8,8,1,int8,int32,row\n", "a result in bf16, fp16 or fp32"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text if "\n" in text else f"{HEAD.strip()},ending\n{text}\n")
    with pytest.raises(ValueError, match=f"mine.csv.*{message}"):
        problems.read_suite(path)


def test_how_a_type_is_multiplied_is_said_in_place_of_it(tmp_path):
    found = {p.id: p.case for p in problems.read_suite(problems.SUITE.with_name("fp32.csv"))}
    assert found["X2"] == Case(8192, 8192, 8192, "NN", "fp32", precision="bf16x6")
    assert found["R3"] == Case(8192, 14336, 4096, "NT", "fp32", precision="int8x7")
    path = tmp_path / "mine.csv"
    path.write_text(HEAD + "A,one,x,1,8,9,10,int8x15,fp64,NN\nB,one,x,1,8,9,10,int8x15,fp32,NT\n")
    wide, narrow = (problem.case for problem in problems.read_suite(path))
    assert wide == Case(8, 9, 10, "NN", "fp64", "fp64", "int8x15") and wide.output == "fp64"
    assert narrow == Case(8, 9, 10, "NT", "fp32", precision="int8x15")
    assert str(wide) == "8 x 9 x 10 NN, fp64 (int8x15)"
    path.write_text("M,N,K,dtype,out_dtype,scaling\n8,9,10,int8,,\n8,9,10,int8,fp32,row\n")
    assert [problem.case.dtype for problem in problems.read_suite(path)] == ["int8", "int8"]


def test_random_problems_are_the_seeds_of_every_kind_and_log_uniform():
    found = problems.random_problems(2000, 5)
    of_seed = lambda seed: [p.case for p in problems.random_problems(60, seed)]  # noqa: E731
    assert [p.case for p in found[:60]] == of_seed(5) != of_seed(6)
    assert {p.case.layout for p in found} == {"NN", "NT", "TN", "TT"}
    assert {p.case.dtype for p in found} == {"bf16", "fp16"} and len({p.id for p in found}) == 2000
    for multiple in problems.MULTIPLES:
        own = [p.case for p in found if p.group == problems.group_of(multiple)]
        assert 300 < len(own) < 700
        assert all(case.N % multiple == case.K % multiple == 0 for case in own)
    assert all(p.case.flops <= problems.FLOPS[problems.HALVES] for p in found)
    assert sum(p.case.M < 64 for p in found) > 300
    quantiles = statistics.quantiles((math.log2(p.case.N) for p in found), n=4)
    low, high = problems.SIZES
    assert quantiles == pytest.approx([low + i / 4 * (high - low) for i in (1, 2, 3)], abs=0.4)


def test_wide_random_problems_join_those_of_the_seed_and_change_none():
    drawn = suite.drawn(parsed("random", "--n", "160", "--seed", "5"))
    assert drawn[:160] == problems.random_problems(160, 5)
    assert {p.group for p in drawn[160:]} == {p.case.dtype for p in drawn[160:]} == {"fp32", "fp64"}
    assert {p.case.accumulate for p in drawn[160:]} == {"fp32", "fp64"}
    assert len({p.id for p in drawn}) == 180
    first = problems.random_problems(160, 5)[0]  # as rows have it
    assert (first.id, str(first.case)) == ("5-0", "2 x 4728 x 256 TN, bf16")


def test_the_16_bit_problems_of_the_suite_are_those_that_were_given():
    """So that means of them stay comparable, whatever joins."""
    known = problems.read_suite()
    joined = [problem for problem in known if problem.group in problems.WIDE]
    assert {p.case.dtype for p in joined} == {*problems.WIDE} and known[-len(joined) :] == joined
    assert len(known) - len(joined) == 75
    assert sum(p.case.dtype in tables.SIXTEEN_BIT for p in known) == 62


# The command


def test_the_suite_runs_any_file_and_records(timed, tmp_path, capsys):
    """The planted speed is found, fp8 races with scales, and the null test is in every row."""
    path, timed["auto"] = tmp_path / "x.jsonl", 1e-3 / 1.05
    status, found = ran(path, *WORDS)
    told = capsys.readouterr()
    assert status == 0 and "[3/3] C eight bits: 32 x 32 x 64 NT, fp8" in told.err
    assert [(row.id, row.competitor) for row in found] == [
        *((key, name) for key in "AB" for name in ("auto", REFERENCE)),
        *(("C", name) for name in ("auto", AUTO_FAST, REFERENCE, TORCH_FAST)),
    ]
    assert {(row.experiment, row.run) for row in found} == {("suite", found[0].run)}
    assert found[0].command == "python -m perf suite --file mine.csv --rounds 12 --out x.jsonl"
    for ours in found[:5:2]:
        assert ours.rung in {kernel.name for kernel in RUNGS} and ours.config and ours.code
        assert ours.ratio.p50 == pytest.approx(1.05, abs=0.01)
        assert ours.null.p50 == pytest.approx(1, abs=0.01)
        assert ours.of_roof == pytest.approx(ours.roof.floor(ours.case) / ours.us.p50)
    assert "wins (3): " in told.out and "losses (0): none" in told.out
    assert re.search(r"^all +3 +1\.0[45]\d ", told.out, re.MULTILINE)
    assert ran(path, *WORDS, "--class", "two", "--json")[0] == 0
    heading, race = capsys.readouterr().out.splitlines()
    assert '"command":"python -m perf suite' in heading and '"class":"two"' in race


def test_batch_invariance_races_beside_auto_and_is_an_experiment_of_its_own(
    timed, tmp_path, monkeypatch, capsys
):
    timed |= {"auto": 0.8e-3, INVARIANT: 1.6e-3}
    asked, matmul = [], tritemm.matmul

    def seen(*operands, batch_invariant=False, **options):
        asked.append(batch_invariant)
        return matmul(*operands, batch_invariant=batch_invariant, **options)

    monkeypatch.setattr(tritemm, "matmul", seen)
    status, found = ran(tmp_path / "x.jsonl", *WORDS, "--batch-invariant")
    names = [INVARIANT, "auto", REFERENCE]
    assert status == 0 and [r.competitor for r in found] == [*names * 3, TORCH_FAST]
    assert by_name(found[6:])[INVARIANT].reason.startswith("products with scales are scaled_mm's")
    assert {row.experiment for row in found} == {"invariant"} and set(asked) == {True, False}
    assert found[0].ratio.p50 == pytest.approx(1 / 1.6, rel=0.01)
    assert found[0].versus["auto"].p50 == pytest.approx(0.5, rel=0.01)
    told, selection = capsys.readouterr().out, Selection()
    *_, line = (line.split() for line in told.splitlines() if line.startswith("all 16-bit"))
    assert [float(line[i]) for i in (3, 6, 7)] == pytest.approx([1 / 1.6, 1.25, 0.5], abs=0.01)
    view = show.VIEWS["invariant"]
    assert "| decode | 1 |" in view.table(view.chosen(found, selection), selection)
    others = ("suite", "problems", "runs", "roofline", "peers", "random")
    assert not any(show.VIEWS[name].chosen(found, selection) for name in others)


def test_a_wrong_matmul_is_refused_and_ends_with_status_1(timed, tmp_path, monkeypatch):
    monkeypatch.setattr(tritemm, "matmul", spoilt)
    status, found = ran(tmp_path / "x.jsonl", *WORDS, "--class", "one")
    assert status == 1
    outcomes = {(row.competitor, row.outcome, row.us is None) for row in found}
    assert outcomes == {("auto", "wrong", True), (REFERENCE, "measured", False)}


def test_ctrl_c_keeps_the_problems_before(timed, tmp_path, monkeypatch, capsys):
    real = engine.measure

    def interrupted(field, there, *rest, **options):
        if there.case.dtype == "bf16":
            raise KeyboardInterrupt
        return real(field, there, *rest, **options)

    monkeypatch.setattr(engine, "measure", interrupted)
    status, found = ran(tmp_path / "x.jsonl", *WORDS)
    assert status == 130 and [row.id for row in found] == ["A", "A"]
    assert "interrupted; what was measured is kept" in capsys.readouterr().err


def test_what_would_end_too_late_is_not_begun(timed, tmp_path, monkeypatch, capsys):
    clock = itertools.count()
    monkeypatch.setattr(session.time, "monotonic", lambda: 60 * next(clock))
    args = parsed(*WORDS, "--out", str(tmp_path / "x.jsonl"))
    made = session.Session(args, "suite")  # begins at minute 0; each race takes one
    found = problems.read_suite(tmp_path / "mine.csv")[:2] * 3
    field = lambda case, operands: [Competitor(REFERENCE, torch.matmul)]  # noqa: E731
    made.measure([session.Task.of(p, field) for p in found], Plan(rounds=3), minutes=4)
    assert len(made.rows) == 2
    assert capsys.readouterr().err.count("not begun, to end within 4 minutes") == 1


def test_out_of_memory_is_a_row_and_the_suite_goes_on(timed, tmp_path, monkeypatch):
    def make(case, plan, probe):
        if case.batch == 2:
            raise torch.OutOfMemoryError("tried to allocate 1 TiB")
        return FakeBench(case, {})

    monkeypatch.setattr(bench, "BENCHES", {"sustained": make})
    status, found = ran(tmp_path / "x.jsonl", *WORDS)
    assert status == 0 and [row.id for row in found] == list("AABCCCC")
    assert (found[2].outcome, found[2].reason) == ("failed", "tried to allocate 1 TiB")


def test_a_quick_suite_records_nothing(timed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    assert __main__.main([*WORDS, "--quick"]) == 0
    assert "nothing is recorded" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_what_joined_the_suite_after_a_run_is_named():
    def said(some):
        found = [row(p.id, p.group, 1.0, case=p.case) for p in some]
        return show.VIEWS["problems"].table(found, Selection())

    known = problems.read_suite()
    given = [problem for problem in known if problem.group not in problems.WIDE]
    names = ", ".join(problem.id for problem in known if problem not in given)
    assert f"\n\nNot raced yet: {names}.\n\n" in said(given)
    for some in (known, problems.random_problems(3, 5)):
        assert "Not raced" not in said(some)


# Random problems, peers, roofs


@pytest.mark.parametrize("more", [(), ("--peers", "lt")])
def test_random_problems_are_those_of_the_seed(timed, tmp_path, monkeypatch, more):
    small = sorted(problems.random_problems(200, 3), key=lambda p: p.case.flops)[:2]
    monkeypatch.setattr(suite, "random_problems", lambda n, seed, *types: small[:n])
    stand_in(monkeypatch)
    words = ("random", "--n", "2", "--seed", "3", "--rounds", "3", *more)
    _, found = ran(tmp_path / "x.jsonl", *words)
    assert [row.case for row in found if row.competitor == "auto"] == [p.case for p in small]
    view = "random-peers" if more else "random"
    assert {row.experiment for row in found} == {view.replace("-", " ")}
    assert show.VIEWS[view].chosen(found, Selection()) == found


def test_the_suite_races_peers_as_an_experiment_of_its_own(timed, tmp_path, monkeypatch, capsys):
    stand_in(monkeypatch)
    timed |= {"auto": 1e-3, REFERENCE: 1.2e-3, LT: 0.9e-3, TORCH_FAST: 0.9e-3}
    path = tmp_path / "x.jsonl"
    status, found = ran(path, *WORDS, "--peers", "lt")
    names = ["auto", REFERENCE, LT]
    assert status == 0 and [row.competitor for row in found] == [
        *names * 2, *("auto", AUTO_FAST, REFERENCE, TORCH_FAST, LT)
    ]  # fmt: skip
    assert {row.experiment for row in found} == {"peers"}
    assert found[0].versus[LT].p50 == pytest.approx(0.9, rel=0.02)
    assert found[2].config == {"kept": LT} and found[2].versus is None
    told = capsys.readouterr().out
    last = next(line.split() for line in told.splitlines() if line.startswith("all  "))
    assert [float(last[i]) for i in (1, 2, -1)] == pytest.approx([3, 0.9, 1.2], abs=0.01)
    assert "losses (3): " in told and "cublaslt: C refused: no fp8." in told
    view, selection = show.VIEWS["peers"], Selection()
    table = view.table(view.chosen(found, selection), selection)
    assert "| cublaslt µs |" in table and "nan" not in table
    stand_in(monkeypatch, right=False)
    status, found = ran(tmp_path / "y.jsonl", *WORDS, "--id", "A", "--peers", "lt")
    assert status == 1 and by_name(found)[LT].outcome == "wrong"


def raced(key, group, cublas, lt=None, size=64, quack=None, **fields):
    """Rows of one problem: the times of cuBLAS and of the peers over ours, without spread."""
    dtype = fields.pop("dtype", "bf16")
    fields |= {"experiment": "peers", "case": Case(64, size, 64, dtype=dtype)}
    others = {name: ratio for name, ratio in ((LT, lt), (QUACK, quack)) if ratio}
    versus, every = {name: flat(r) for name, r in others.items()}, {REFERENCE: cublas} | others
    theirs = [row(key, group, 1.0, name, us=flat(100 * r), **fields) for name, r in every.items()]
    return [row(key, group, cublas, us=flat(100.0), versus=versus, **fields), *theirs]


FOUND = [
    *raced("P1", "prefill", 1.1, 1.05),
    *raced("T8", "train", 3.0, 2.9, size=63),  # its rows are not aligned
    *raced("S1", "square", 1.0, 0.9),
    *raced("S8", "square", 0.8, 0.7, dtype="fp32"),
    *raced("R1", "ragged", 2.0, 2.5),
]


def test_the_best_peer_is_the_fastest_of_each_problem_and_totals_are_of_classes():
    found = {r.id: (r.best, r.ratio.p50) for r in tables.against_all(FOUND, "auto")}
    assert found == {"P1": (LT, 1.05), "T8": (LT, 2.9), "S1": (LT, 0.9), "S8": (LT, 0.7),
                     "R1": (REFERENCE, 2.0)}  # fmt: skip
    lines = {line[0]: line for line in shown.totals(tables.against_all(FOUND, "auto")).body}
    assert list(lines) == ["prefill", "train", "square", "ragged", "large aligned", "all 16-bit",
                           "all"]  # fmt: skip
    large = lines["large aligned"]  # P1 and S1
    assert large[1:6] == ("2", "1.049", "1.000 (S1)", "0.972", "0.900 (S1)")
    assert large[6:] == ("1", "0", "1", "cublaslt 2")
    assert lines["all"][5:] == ("0.700 (S8)", "3", "0", "2", "cublaslt 4, cuBLAS 1")
    tma = [dataclasses.replace(r, competitor="tma") for r in FOUND if r.competitor == "auto"]
    assert tables.tritemms([*FOUND, *tma]) == ["auto", "tma"]  # neither is the other's peer
    assert {r.best for r in tables.against_all([*FOUND, *tma], "auto")} == {LT, REFERENCE}


def test_of_three_the_best_is_told_and_the_sentence_names_who_was_timed_and_on_how_many():
    both = [
        *raced("P1", "prefill", 1.1, 1.05, quack=0.9),
        *raced("S8", "square", 0.8, 0.7, dtype="fp32"),
        row("S8", "square", competitor=QUACK, experiment="peers", dtype="fp32"),
    ]
    found = {r.id: (r.best, r.ratio.p50) for r in tables.against_all(both, "auto")}
    assert found == {"P1": (QUACK, 0.9), "S8": (LT, 0.7)}
    table = show.VIEWS["peers"].table(both, Selection())
    assert "| cuBLAS µs | cublaslt µs | quack µs |" in table and "| quack | 0.900 " in table
    told = lambda rows: shown.sentence(rows, "auto").partition(" on each of ")[0]  # noqa: E731
    assert told(both) == "Against the fastest of cuBLAS, cublaslt and quack (1 of these shapes)"
    assert told(both[:4]) == "Against the fastest of cuBLAS, cublaslt and quack"
    assert told(FOUND) == "Against the fastest of cuBLAS and cublaslt"
    assert told(raced("P1", "prefill", 1.1)) == ""


def test_peers_that_have_no_time_or_missed_the_bound_are_named():
    refused = [row("F1", "fp8", competitor=n, experiment="peers") for n in ("auto", LT)]
    missed = [
        dataclasses.replace(r, reason="2 are wrong") if (r.competitor, r.id) == (LT, "S1") else r
        for r in FOUND
    ]  # fmt: skip
    every = [*missed, row("F1", "fp8", 1.0, REFERENCE, experiment="peers"), *refused]
    for text in (suite.text(every), show.VIEWS["peers"].table(every, Selection())):
        assert "F1 refused: not implemented." in text and "cublaslt: F1 refused: not" in text
        assert "Beyond the error bound: cublaslt: S1." in text and "nan" not in text
    assert "losses (2): S8 0.700, S1 0.900" in suite.text(FOUND)


def test_the_headline_names_both_where_all_of_the_suite_was_raced(monkeypatch):
    from docs import generate

    mine = [dataclasses.replace(r, experiment="suite") for r in FOUND if r.competitor in (
        "auto", REFERENCE
    )]  # fmt: skip
    for full, found, against in ((5, FOUND, True), (5, [], False), (6, FOUND, False)):
        monkeypatch.setattr(generate, "full_suite", lambda full=full: full)
        said = generate.headline([*mine, *found])
        (worst,) = {r.case.size for r in FOUND if r.id == "S8"}
        assert "at 1.39x cuBLAS's speed" in said and "<sub>NVIDIA H200, " in said
        assert (
            (
                "Against the fastest of cuBLAS and cublaslt on each of 5 shapes it runs at "
                f"1.31x, at 0.97x on the large aligned ones, the worst at 0.70x ({worst})." in said
            )
            is ("against peers: NVIDIA H200" in said)
            is against
        )


def test_the_roofline_has_each_type_at_its_own_clock(timed, tmp_path, monkeypatch, capsys):
    cases = [Case(32, 32, 64, "NT"), Case(32, 32, 64, "NT", "fp32", precision="tf32")]
    monkeypatch.setattr(roofline, "cases", lambda: cases)
    words = ["roofline", "--rounds", "3", "--write", str(tmp_path / "gpu.json")]
    status, found = ran(tmp_path / "x.jsonl", *words)
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["gpu"] == "NVIDIA H200" and written["physics"]["clock"] == 1.45e9
    assert ran(tmp_path / "y.jsonl", *words[:-1], str(tmp_path / "no" / "gpu.json"))[0] == 2
    rate = 132 * 4096 * 1400 / 1e6  # the fake bench's clock, not that of ROOFS
    theirs = [row.roof.tflops for row in found if row.competitor == REFERENCE]
    assert status == 0 and theirs == pytest.approx([rate, rate / 2])
    printed = capsys.readouterr().out
    assert re.search(r"^bf16 +1400 +690 +757 ", printed, re.MULTILINE)


@pytest.mark.parametrize("name", ["mine.csv", "mine.json"])
def test_a_strangers_shapes_race_from_one_file(timed, tmp_path, monkeypatch, capsys, name):
    """Sizes alone are enough; what follows a product is raced against torch's ways."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    timed["auto"] = 0.5e-3
    lines = [
        {"M": 32, "N": 24, "K": 40, "weight": 3},
        {"M": 16, "N": 24, "K": 40, "ending": "bias"},
    ]
    text = "M,N,K,weight,ending\n32,24,40,3,\n16,24,40,,bias\n"
    (tmp_path / name).write_text(json.dumps(lines) if name.endswith("json") else text)
    words = ("race", "--cases", name, "--rounds", "3", "--compiled", "compile")
    status, found = ran(tmp_path / "x.jsonl", *words)
    names = ["auto", REFERENCE, "auto", REFERENCE, "compile"]
    assert status == 0 and [row.competitor for row in found] == names
    assert found[0].case == Case(32, 24, 40, "NT") and found[2].case.ending == "bias"
    assert found[0].problem["weight"] == "3" and {r.experiment for r in found} == {"race"}
    told = capsys.readouterr().out
    assert "Run as often as their weights say: " in told and " 2.0" in told and "torch µs" in told
