"""`python -m perf host` on the CPU: made-up calls on a made-up clock, and interpreted rungs."""

import argparse
import dataclasses
import functools
import gc
import itertools
import random

import pytest
import torch

import tritemm
from perf import engine, host, host_bench, host_report, machine, rows
from perf.case import Case
from perf.commands import host as command
from perf.host import MODES
from perf.host_bench import CALLS, LAUNCHES, QUEUE, Caller, First, Watch
from perf.machine import State
from perf.rows import NULL, REFERENCE
from tritemm.problem import INTERPRETED

from .perf_fakes import ENVIRONMENT, by_name, heading, parsed_by, ran

pytestmark = pytest.mark.host

CASE = Case(48, 40, 32, "NT", "bf16")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")


class Machine:
    """A clock that calls advance, a launch queue that they fill, and kernels to load.

    The host gets slower by 20 % over time and jitters by 2 %; a known shape costs `known` seconds
    of a call, a new one `new` more. Every shape past 64 columns needs another kernel.
    """

    def __init__(self):
        self.rng = random.Random(2)
        self.now = 0.0
        self.pending = self.most = self.loads = self.synchronised = 0
        self.seen, self.loaded, self.uncollected = [], set(), []
        self.watch = Watch(lambda: self.now, self.synchronise)

    def synchronise(self):
        self.pending, self.synchronised = 0, self.synchronised + 1

    def spend(self, seconds):
        drift = 1 + 0.2 * min(self.now, 0.5) / 0.5
        self.now += seconds * drift * self.rng.gauss(1, 0.02)

    def caller(self, name, known, new=0.0, spoil=lambda c: None, **fields):
        shapes = set()

        def multiply(a, b, out=None):
            shape = (a.shape[0], b.shape[1], a.shape[1])
            self.seen.append((name, shape, self.synchronised))
            self.uncollected.append(gc.isenabled())
            self.pending += LAUNCHES
            self.most = max(self.most, self.pending)
            kernel = name, shape[1] > 64
            if name not in (REFERENCE, NULL) and kernel not in self.loaded:
                self.loaded.add(kernel)
                self.loads += 1
                self.now += 0.5  # the compiler's
            self.spend(known + (0 if shape in shapes else new))
            shapes.add(shape)
            result = torch.matmul(a, b, out=out)
            spoil(result)
            return result

        if name not in (REFERENCE, NULL):
            fields = {"ladder": "triton", "rung": name, "number": 9, "config": {}} | fields
        return Caller(name, lambda a, b, c: None, multiply=multiply, **fields)

    def benches(self):
        return host.benches(CASE, lambda: self.loads, device="cpu", watch=self.watch)


def race(machine_, bench, field, rounds=30):
    found = engine.measure(field, bench, engine.Plan(rounds=rounds), random.Random(0))
    return by_name(engine.rows_of(found, heading(bench.case, mode=bench.mode)))


def three(machine_):
    return [
        machine_.caller("auto", 39e-6, new=60e-6),
        machine_.caller(REFERENCE, 13e-6, new=7e-6),
        machine_.caller(NULL, 13e-6, new=7e-6),
    ]


@pytest.mark.parametrize("index", range(4))
def test_a_planted_factor_is_found_and_an_equal_pair_ties(index):
    there = Machine()
    bench = there.benches()[index]
    assert bench.mode == MODES[index]
    found = race(there, bench, three(there))
    cached = index < 2
    factor, us = (3.0, 13) if cached else (99 / 20, 20)
    assert found["auto"].ratio.inverse.p50 == pytest.approx(factor, rel=0.01)
    assert not found["auto"].tie
    assert us * 0.97 < found[REFERENCE].us.p50 < us * 1.23
    assert found[NULL].tie
    assert found[NULL].ratio.p50 == pytest.approx(1, abs=0.02)
    assert {row.launches for row in found.values()} == {CALLS if cached else 1}
    assert {row.rounds for row in found.values()} == {30}


def test_the_queue_never_fills_and_nothing_waits_inside_a_batch():
    there = Machine()
    bench = there.benches()[0]
    loops = {c.name: bench.loop(c) for c in three(there)}
    there.seen.clear()
    for _ in range(5):
        loops["auto"].time()
    batches = itertools.groupby(there.seen, key=lambda call: call[2])
    # The lead of each sample follows the batch before it without a wait; the first has no such.
    sizes = [len(list(calls)) for _, calls in batches]
    assert sizes == [host_bench.LEAD, *[CALLS + host_bench.LEAD] * 4, CALLS]
    assert there.most <= QUEUE // 2
    with pytest.raises(AssertionError, match="wait for the GPU"):
        host_bench.Cached(CASE, "x", out=False, device="cpu", watch=there.watch, calls=QUEUE)


def test_garbage_waits_until_a_batch_is_over():
    there = Machine()
    loop = there.benches()[0].loop(there.caller("auto", 1e-6))
    there.uncollected.clear()
    loop.time()
    assert there.uncollected == [True] * host_bench.LEAD + [False] * CALLS
    assert gc.isenabled()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        there.watch.seconds(interrupt, 1)
    assert gc.isenabled()


def test_first_calls_never_meet_a_shape_twice_nor_the_compiler():
    there = Machine()
    base = (CASE.M, CASE.N, CASE.K)
    *_, eager, out = there.benches()
    field = three(there)
    for bench in (eager, out):
        found = race(there, bench, field)
        # The compiler's half second is in no sample, though new shapes needed it in these rounds.
        assert found["auto"].us.p80 < 150
    fresh = [shape for _, shape, _ in there.seen if shape != base]
    assert len(fresh) == len(set(fresh)) >= 2 * 3 * 30
    assert there.loads == 2
    assert all((M - 48) % 16 == 0 and (N - 40) % 16 == 0 and K == 32 for M, N, K in fresh)
    # A known shape goes before each new one.
    first = next(i for i, call in enumerate(there.seen) if call[1] != base)
    for before, call in itertools.pairwise(there.seen[first - 1 :]):
        assert call[1] == base or before[:2] == (call[0], base)


def test_a_kernel_that_is_compiled_for_every_shape_fails():
    there = Machine()
    loads = itertools.count()
    options = {"device": "cpu", "watch": there.watch}
    bench = First(
        CASE, MODES[2], out=False, shapes=host.shapes(CASE), loads=loads.__next__, **options
    )
    entrant = engine.admit(there.caller("auto", 1e-6), bench, engine.Plan())
    assert entrant.outcome == "failed"
    assert "each loaded another kernel" in entrant.reason


@pytest.mark.parametrize("index", range(4))
def test_a_red_kernel_is_not_timed(index):
    def spoil(c):
        c[-1, -1] += 1

    there = Machine()
    bench = there.benches()[index]
    field = [there.caller("tma", 1e-6, spoil=spoil), *three(there)[1:]]
    found = race(there, bench, field, rounds=3)
    assert (found["tma"].outcome, found["tma"].us) == ("wrong", None)
    assert "elements are wrong" in found["tma"].reason
    assert found[REFERENCE].outcome == "measured"


def test_new_shapes_are_near_and_new():
    near = list(itertools.islice(host.shapes(Case(128, 128, 128, "NT")), 400))
    assert len(set(near)) == 400
    assert Case(128, 128, 128, "NT") not in near
    assert all(c.M % 16 == c.N % 16 == 0 and c.K == 128 and min(c.M, c.N) >= 16 for c in near)
    assert max(max(c.M, c.N) for c in near) <= 128 + 13 * 16  # 21 x 21 pairs
    row = list(itertools.islice(host.shapes(Case(1, 100, 64, "NT")), 20))
    assert {c.M for c in row} == {1}
    assert len({c.N for c in row}) == 20
    assert all(c.N % 16 == 100 % 16 for c in row)
    with pytest.raises(ValueError, match="M and N are 1"):
        next(host.shapes(Case(1, 1, 64)))


def test_kernel_loads_are_counted_while_it_matters():
    import triton

    hooks = triton.knobs.runtime.kernel_load_end_hook
    with host.counted_loads() as loads:
        hooks(None, None, "tma_kernel", {}, "hash")
        assert loads() == 1
    hooks(None, None, "tma_kernel", {}, "hash")
    assert loads() == 1


def test_callers_call_what_users_write(monkeypatch):
    asked = []
    monkeypatch.setattr(tritemm, "matmul", lambda a, b, **options: asked.append(options) or a)
    monkeypatch.setattr(
        host, "matmul", lambda case, operands_, kernels: [
            *(engine.Competitor(k, None, ladder="triton") for k in kernels),
            *(engine.Competitor(k, None) for k in (REFERENCE, NULL)),
        ],
    )  # fmt: skip
    auto, tma, reference, null = host.callers(CASE, (), ["auto", "tma"])
    assert reference.multiply is null.multiply is torch.matmul
    a = torch.ones(2, 2)
    auto.multiply(a, a)
    tma.multiply(a, a, out=a)
    assert [list(options) for options in asked] == [[], ["kernel", "out"]]
    assert asked[1]["kernel"] == "tma"


@pytest.fixture
def commanded(monkeypatch, tmp_path):
    """Runs the command on the CPU: (status, its rows)."""
    monkeypatch.setattr(command, "unable", lambda name: None)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1980.0))
    make, options = host.benches, {"device": "cpu", "watch": Watch(synchronise=lambda: None)}
    options["calls"] = 3
    monkeypatch.setattr(host, "benches", lambda case, loads, probe: make(case, loads, **options))
    monkeypatch.setattr(host_bench.Cached.settle, "__defaults__", (0.0,))
    path = tmp_path / "rows.jsonl"
    return functools.partial(ran, command, path, "host", "--what", "kernels")


@interpreted
def test_the_command_records_every_mode(commanded, capsys):
    # K = 36 is 72 bytes of bf16: the copy engine refuses.
    words = ("--size", "48x40x36", "--kernel", "auto,tma", "--rounds", "2")
    status, found = commanded(*words)
    assert status == 0
    assert [row.mode for row in found] == [mode for mode in MODES for _ in range(4)]
    assert {row.experiment for row in found} == {"host"}
    assert len({row.run for row in found}) == 1
    for mode in MODES:
        own = by_name(row for row in found if row.mode == mode)
        assert list(own) == ["auto", "tma", REFERENCE, NULL]
        assert own["tma"].outcome == "refused"
        assert "TMA needs a multiple of 16" in own["tma"].reason
        assert own["auto"].rung == "pipelined"
        assert own["auto"].us.p50 > own[REFERENCE].us.p50
        for row in own.values():
            assert row.roof is row.worst is row.ratio_below is None
    printed = capsys.readouterr().out
    assert printed.count("tma: refused: row stride of a is 72 bytes") == 0
    assert printed.count('tma: refused: kernel="tma" cannot run this problem') == 1
    assert "auto (pipelined)" in printed

    status, again = commanded(*words, "--json")
    assert status == 0
    assert capsys.readouterr().out.splitlines() == list(rows.lines(again[16:]))


@interpreted
@pytest.mark.parametrize("when", ["checked", "timed"])
def test_ctrl_c_keeps_what_was_measured(commanded, monkeypatch, capsys, when):
    kept = MODES[1:2] if when == "timed" else ()
    name = "verify" if when == "checked" else "loop"
    there = getattr(host_bench.Cached, name)

    def interrupted(self, *args):
        if self.mode != MODES[1]:
            return there(self, *args)
        if when == "checked":
            raise KeyboardInterrupt
        loop = there(self, *args)
        left = itertools.count()

        def timed():
            if next(left) == 2:
                raise KeyboardInterrupt
            return loop.time()

        return dataclasses.replace(loop, time=timed)

    monkeypatch.setattr(host_bench.Cached, name, interrupted)
    status, found = commanded("--size", "48x40x32", "--kernel", "tiled", "--rounds", "4")
    assert status == 130
    assert list(dict.fromkeys(row.mode for row in found)) == [MODES[0], *kept]
    assert {row.rounds for row in found if row.mode == MODES[0]} == {4}
    assert all(row.rounds in (2, 3) for row in found if row.mode == MODES[1])
    told = capsys.readouterr()
    assert "what was measured is kept" in told.err
    assert "first" not in told.out.splitlines()[1]


def test_what_cannot_begin_says_so(commanded, capsys):
    assert commanded("--size", "1x1x64")[0] == 2
    assert "both are 1 in 1 x 1 x 64" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        commanded("--kernel", "simd")
    assert "one of auto, simt," in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_it_says_so(capsys):
    assert command.run(argparse.Namespace()) == 2
    assert "perf host needs a CUDA device" in capsys.readouterr().err


def test_the_defaults_are_the_documented_case():
    args = parsed_by(command, "host")
    assert command.case_of(args) == host_report.CASE
    assert args.kernels == list(command.DEFAULT)
    assert args.kernels[0] == "auto"
    assert "simt" not in args.kernels


def made_up(run="2026-01-02T03:04:05+00:00", names=("auto", "tma", REFERENCE, NULL), **fields):
    """Rows of a run: 39 us, refused, 13 us, and 13 us again."""
    costs = {"auto": 39.0, REFERENCE: 13.0, NULL: 13.05}
    found = []
    for mode, name in itertools.product(MODES, names):
        us = costs.get(name)
        ours = name not in (REFERENCE, NULL)
        known = {
            "launches": 1 if "first" in mode else 50,
            "rounds": 30,
            "us": rows.Quantiles(us * 0.99, us, us * 1.01) if us else None,
            "ratio": rows.Quantiles(12.9 / us, 13 / us, 13.1 / us) if us else None,
            "null": rows.Quantiles(0.99, 0.996, 1.01),
        }
        head = heading(host_report.CASE, mode=mode, experiment="host", run=run, time=run, **fields)
        row = rows.Row(
            **{f.name: getattr(head, f.name) for f in dataclasses.fields(head)},
            competitor=name, rung={"auto": "persistent"}.get(name, name) if ours else None,
            number=9 if ours else None, config=None, ladder="triton" if ours else None,
            outcome="measured" if us else "refused", reason=None if us else "a | b",
            **known if us else {},
        )  # fmt: skip
        found.append(row)
    return found


def test_the_table_says_how_many_times_torchs_time():
    found = made_up()
    title, head, *lines = host_report.text(found).splitlines()
    assert title == "128 x 128 x 128 NT, bf16 on NVIDIA H200, host time per call"
    assert head.count("x torch") == 4
    assert lines[0].split()[:5] == ["auto", "(persistent)", "39.0", "(38.6-39.4)", "3.00"]
    assert lines[1].split() == ["tma"] + ["refused"] * 4
    assert lines[2].startswith("torch.matmul ")
    assert lines[3].startswith("torch.matmul again (noise)") and "1.00" in lines[3]
    assert "tie" not in "".join(lines)
    assert lines[4] == "tma: refused: a | b"
    assert "30 rounds; a cached call is the mean of 50 in a row" in lines[5]

    marked = host_report.markdown(found).splitlines()
    assert len({line.count(" | ") for line in marked if line.startswith("| ")}) == 1
    assert marked[2].startswith("| auto (persistent) | 39.0 (38.6-39.4) | 3.00 | ")
    assert "NVIDIA H200, Triton 3.6.0" in marked[-1]
    assert host_report.text([]) == "nothing was measured"

    slow = [dataclasses.replace(r, ratio=r.null) if r.competitor == "auto" else r for r in found]
    assert "1.00 (a tie)" in host_report.markdown(slow)


def test_the_newest_full_run_is_shown():
    old, new = made_up(), made_up("2026-02-02T00:00:00+00:00")
    few = made_up("2026-03-02T00:00:00+00:00", names=("auto",))
    torn = [row for row in made_up("2026-04-02T00:00:00+00:00") if row.mode == MODES[0]]
    other = [
        dataclasses.replace(row, case=Case(256, 256, 256, "NT"))
        for row in made_up("2026-05-02T00:00:00+00:00")
    ]
    ladder = [dataclasses.replace(row, experiment="ladder") for row in made_up("2026-06-02")]
    assert host_report.latest([*new, *old, *few, *torn, *other, *ladder]) == new
    assert host_report.latest(old, gpu="NVIDIA B200") == []
    assert host_report.latest([]) == []
