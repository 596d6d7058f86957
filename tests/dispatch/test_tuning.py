"""What a user tunes: the cache and its file, tune, export and load, warmup."""

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

import tritemm
from tests.dispatch.choosing import H200, problem
from tests.harness import DEVICE, operand
from tests.torch.test_scaled_mm import called
from tritemm import dispatch, plan
from tritemm.api import tuning
from tritemm.compile import pool
from tritemm.compile.pool import Compiled
from tritemm.dispatch import cache
from tritemm.problem import INTERPRETED, Problem
from tritemm.spec import Config

CONFIG = Config(64, 64, 64, num_stages=4, ORDER="grouped", SWAP=True)
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}


def forget():
    """As another process, which knows the file alone."""
    cache.forget()
    plan.forget()


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A cache of the test's own, in the file and in the process."""
    monkeypatch.setenv("TRITEMM_CACHE", str(tmp_path / "cache"))
    forget()
    yield
    forget()


def put(asked, name="tma", config=CONFIG, seconds=1e-5):
    cache.store(asked.device.name, {cache.key(asked): cache.entry(name, config, seconds)})
    plan.forget()


class TestCache:
    def test_nothing_at_first(self):
        assert cache.lookup(problem(64, 64, 64)) is None
        assert not cache.folder().exists()  # a look-up leaves no trace

    def test_found_again_by_another_process(self):
        asked = problem(64, 96, 128)
        put(asked)
        assert cache.lookup(asked) == ("tma", CONFIG)
        cache.forget()
        assert cache.lookup(asked) == ("tma", CONFIG)
        (path,) = cache.folder().glob("nvidia-h200-tritemm*-triton*.json")
        assert json.loads(path.read_text())["gpu"] == "NVIDIA H200"
        assert not list(cache.folder().glob("*.tmp"))

    def test_a_key_is_all_that_matters(self):
        a, b = torch.empty(64, 64, dtype=torch.float16), torch.empty(64, 64, dtype=torch.float16)
        problems = [
            problem(64, 64, 64),
            problem(64, 64, 64, layout="NN"),
            problem(64, 64, 64, dtype=torch.float16),
            problem(64, 64, 64, dtype=torch.float16, accumulate=torch.float16),
            problem(64, 64, 64, dtype=torch.float32),
            problem(64, 64, 64, dtype=torch.float32, precision="tf32"),
            problem(64, 64, 64, batch=(2,)),
            problem(64, 64, 72),
            of_tensors(a, torch.empty(64 * 64 + 1, dtype=torch.float16)[1:].view(64, 64)),
            of_tensors(a, torch.empty(64, 72, dtype=torch.float16)[:, :64]),
        ]
        assert len({cache.key(p) for p in problems}) == len(problems)
        assert cache.key(of_tensors(a, b)) == cache.key(of_tensors(b, a))

    def test_other_gpus_have_their_own(self):
        put(problem(64, 64, 64))
        assert cache.lookup(problem(64, 64, 64, device=H200)) is not None
        other = dataclasses.replace(H200, name="NVIDIA H100")
        assert cache.lookup(problem(64, 64, 64, device=other)) is None

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"problems": 3}', "\0\1", 100_000 * "["],
        ids=("empty", "cut off", "a list", "a number", "binary", "deep"),
    )  # fmt: skip
    def test_a_broken_file_is_a_warning_and_set_aside(self, text):
        asked = problem(64, 64, 64)
        put(asked)
        path = cache.path_of("NVIDIA H200")
        path.write_text(text)
        forget()
        with pytest.warns(UserWarning, match="can't be read"):
            assert cache.lookup(asked) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dispatch.choose(asked).why == "the least predicted time"  # no second warning
        with pytest.warns(UserWarning, match=r"was broken .* it is now .*\.broken"):
            put(asked)
        assert json.loads(path.read_text())["problems"]
        assert path.with_suffix(".broken").read_text() == text

    @pytest.mark.parametrize(
        "entry",
        [
            {},
            {"kernel": "tma"},
            {"kernel": "tma", "config": {"TILE": 3}},
            {"kernel": "tma", "config": [64, 64, 64]},
            {"kernel": "tma", "config": TILE | {"BLOCK_M": "64"}},
            {"kernel": "tma", "config": TILE | {"BLOCK_M": -64}},
            {"kernel": "tma", "config": TILE | {"ORDER": [], "SWAP": 1}},
            {"kernel": ["tma"], "config": TILE},
            {"kernel": "of the future", "config": TILE},
            None,
            7,
            "tma",
            ["kernel", "config"],
        ],
    )
    def test_an_odd_entry_is_passed_over(self, entry):
        asked = problem(64, 64, 64)
        cache.store("NVIDIA H200", {cache.key(asked): entry})
        assert dispatch.choose(asked).why == "the least predicted time"

    @pytest.mark.parametrize("us", [10**400, float("inf"), float("nan"), -5, 0, "7", None])
    def test_an_odd_time_is_none(self, us):
        asked = problem(64, 64, 64)
        cache.store("NVIDIA H200", {cache.key(asked): {"kernel": "tma", "config": TILE, "us": us}})
        assert cache.seconds(asked) is None

    def test_where_nothing_can_be_written(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TRITEMM_CACHE", str(tmp_path / "file" / "below"))
        asked = problem(64, 64, 64)
        with pytest.warns(UserWarning, match="not kept"):
            put(asked)
        assert cache.lookup(asked) == ("tma", CONFIG)  # in this process
        assert len(cache.table_of("NVIDIA H200")) == 1  # for export

    def test_who_has_no_home(self, monkeypatch):
        for name in ("TRITEMM_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # in no list of users
        with pytest.raises(RuntimeError):
            Path.home()
        asked = problem(64, 64, 64)
        assert dispatch.choose(asked).why == "the least predicted time"
        with pytest.warns(UserWarning, match="not kept.* no home directory; TRITEMM_CACHE"):
            put(asked)
        assert dispatch.choose(asked).config == CONFIG  # in this process

    def test_a_file_is_as_open_as_others(self):
        before = os.umask(0o027)
        try:
            put(problem(64, 64, 64))
            path = cache.path_of("NVIDIA H200")
            assert {file.stat().st_mode & 0o777 for file in cache.folder().iterdir()} == {0o640}
            path.chmod(0o664)
            put(problem(64, 64, 72))
            assert path.stat().st_mode & 0o777 == 0o664
        finally:
            os.umask(before)

    @pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
    def test_users_who_share_a_folder(self, monkeypatch):
        with tempfile.TemporaryDirectory() as shared:  # where others may look, unlike in tmp_path
            monkeypatch.setenv("TRITEMM_CACHE", shared)
            Path(shared).chmod(0o777)
            put(problem(64, 64, 64))
            path = cache.path_of("NVIDIA H200")
            path.chmod(0o600)
            hidden = path.read_bytes()
            assert _as_another(_finds_nothing_and_keeps_nothing) == 0
            assert path.read_bytes() == hidden
            path.chmod(0o644)
            assert _as_another(put, problem(64, 64, 72)) == 0
            cache.forget()
            assert len(cache.table_of("NVIDIA H200")) == 2

    def test_the_place(self, monkeypatch):
        monkeypatch.delenv("TRITEMM_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
        assert cache.folder() == Path("/somewhere/tritemm")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache.folder() == Path.home() / ".cache" / "tritemm"
        monkeypatch.setenv("TRITEMM_CACHE", "")  # as good as unset
        assert cache.folder() == Path.home() / ".cache" / "tritemm"

    def test_two_processes_lose_nothing(self):
        count = 40
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.starmap(_write_many, [(0, count), (count, 2 * count)])
        table = cache.table_of("some GPU")
        assert set(table) == {f"problem {i}" for i in range(2 * count)}


def _as_another(function, *args) -> int:
    """The exit status of a process of another user that calls this."""

    def call():
        os.setgroups([])
        os.setgid(54321)
        os.setuid(54321)
        cache.forget()
        function(*args)

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    process.join()
    return process.exitcode


def _finds_nothing_and_keeps_nothing():
    with pytest.warns(UserWarning, match="can't be read.*Permission denied"):
        assert cache.lookup(problem(64, 64, 64)) is None
    with pytest.warns(UserWarning, match="not kept"):
        put(problem(64, 64, 72))


def of_tensors(a, b):
    return Problem.of(a, b, torch.empty(64, 64, dtype=a.dtype), device=H200)


def _write_many(begin, end):
    for i in range(begin, end):
        cache.store("some GPU", {f"problem {i}": cache.entry("tma", CONFIG, 1e-6)})


class TestChoice:
    def test_what_was_tuned_is_taken_and_said(self):
        asked = problem(512, 512, 512)
        before = dispatch.choose(asked)
        put(asked, "pipelined", Config(64, 64, 32, num_stages=3))
        after = dispatch.choose(asked)
        assert (after.kernel.name, after.config) == ("pipelined", Config(64, 64, 32, num_stages=3))
        assert after.why != before.why and "tritemm.tune" in str(after)

    def test_not_by_who_asks_for_something_else(self):
        asked = problem(512, 512, 512)
        put(asked, "pipelined", Config(64, 64, 32, num_stages=3))
        assert dispatch.choose(asked, "tma").kernel.name == "tma"
        assert "M" in dispatch.choose(asked, "auto/batch_invariant").why

    def test_a_rung_that_refuses_by_now(self):
        asked = problem(511, 511, 511)
        put(asked, "tma", Config(64, 64, 64))
        assert dispatch.choose(asked).why == "the least predicted time"
        put(asked, "tma", Config(64, 64, 64, PACK="ab"))
        assert dispatch.choose(asked).config.PACK == "ab"


@pytest.fixture
def timed(monkeypatch):
    """A timer that takes the lower rung for the faster one; the kernels it was asked for."""
    asked = []

    def timer(problem, tensors):
        def measure(kernel, config):
            asked.append(kernel.name)
            return 1e-6 * kernel.number

        return measure

    monkeypatch.setattr(tuning, "timer", timer)
    return asked


@pytest.mark.skipif(not INTERPRETED, reason="the candidates of the interpreter")
class TestTune:
    a, b = operand(40, 48, torch.float16, aligned=True), operand(48, 56, torch.float16)

    def test_the_fastest_is_taken_from_now_on(self, timed):
        found = tritemm.tune(self.a, self.b, progress=False)
        assert found.choice.kernel.name == found.timed[0].kernel.name == "pipelined"
        assert [one.seconds for one in found.timed] == sorted(one.seconds for one in found.timed)
        assert set(timed) == {one.kernel.name for one in found.timed}
        choice = tritemm.explain(self.a, self.b)
        assert choice.why == "measured as the fastest by tritemm.tune"
        torch.testing.assert_close(tritemm.matmul(self.a, self.b), self.a @ self.b)
        assert "candidates timed" in str(found) and "7.0 us" in str(found)

    @pytest.mark.parametrize("said", ["elements are wrong", "out of resource: shared memory"])
    def test_one_that_is_wrong_or_fails_does_not_win(self, timed, monkeypatch, said):
        run = plan.run

        def broken(kernel, problem, config, a, b, c):
            run(kernel, problem, config, a, b, c)
            if kernel.name == "pipelined" and said.startswith("out"):
                raise ValueError(said)
            if kernel.name == "pipelined":
                c[-1] = 0

        monkeypatch.setattr(tuning.plan, "run", broken)
        found = tritemm.tune(self.a, self.b, progress=False)
        assert found.choice.kernel.name != "pipelined" and "pipelined" not in timed
        (wrong,) = (one for one in found.timed if one.error)
        assert said in wrong.error and wrong.error in str(found)

    def test_none_is_right(self, timed, monkeypatch):
        monkeypatch.setattr(tuning.plan, "run", lambda *args: None)
        with pytest.raises(RuntimeError, match="no candidate"):
            tritemm.tune(self.a, self.b, progress=False)
        assert not cache.table_of("Triton interpreter")

    def test_out_of_time(self, timed):
        found = tritemm.tune(self.a, self.b, seconds=0, progress=False)
        assert len(found.timed) == 1 and found.skipped > 0

    def test_batches_and_other_types(self, timed):
        a, b = operand(9, 20, torch.int8, batch=(3,)), operand(20, 33, torch.int8, batch=(3,))
        found = tritemm.tune(a, b, progress=False)
        assert not any(one.error for one in found.timed)
        assert torch.equal(tritemm.matmul(a, b), torch.matmul(a.int(), b.int()))

    @pytest.mark.parametrize("words", [("row", "tensor"), ("block", "block2d")], ids="-".join)
    def test_with_scales(self, timed, words, monkeypatch):
        """One that leaves a scale out does not win; the choice is for such scales alone."""
        a, b, _, args = called(40, 136, 300, words)
        found = tritemm.tune(a, b, scales=args, progress=False)
        (scaled,) = found.timed
        assert scaled.kernel.name == "scaled" and not scaled.error
        choice = tritemm.explain(a, b, scales=args)
        assert choice.why == "measured as the fastest by tritemm.tune"
        assert choice.problem == found.choice.problem
        other = called(40, 136, 300, ("block", "block"))[3]
        assert tritemm.explain(a, b, scales=other).why == "the least predicted time"
        for option in ("activation", "precision"):
            with pytest.raises(ValueError, match=f"{option}='silu' is not for products with scal"):
                tritemm.tune(a, b, scales=args, **{option: "silu"})
        run = plan.run
        monkeypatch.setattr(tuning.plan, "run", lambda *to: run(*to[:6], 2 * to[6], to[7]))
        with pytest.raises(RuntimeError, match="elements are wrong"):
            tritemm.tune(a, b, scales=args, progress=False)

    def test_a_gated_product(self, timed):
        """Here no kernel does all of it: the product is tuned."""
        found = tritemm.tune(self.a, self.b, activation="swiglu", progress=False)
        assert found.choice.problem.epilogue.activation == ""
        choice = tritemm.explain(self.a, self.b, activation="swiglu")
        assert choice.why.startswith("measured as the fastest") and "swiglu" in choice.why
        with pytest.raises(ValueError, match="without what follows"):
            tritemm.tune(self.a, self.b, activation="relu")

    def test_errors(self):
        with pytest.raises(RuntimeError, match="on a GPU; no GPU was found"):
            tritemm.tune(self.a, self.b)
        with pytest.raises(ValueError, match="nothing to tune"):
            tritemm.tune(torch.empty(3, 0), torch.empty(0, 3))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            tritemm.tune(self.a, self.a)
        with pytest.raises(TypeError, match="seconds must be a number, not str"):
            tritemm.tune(self.a, self.b, seconds="1")

    def test_export_and_load(self, timed, tmp_path, monkeypatch):
        tritemm.tune(self.a, self.b, progress=False)
        assert tritemm.tuning.export(tmp_path / "tuned.json", "cpu") == 1
        monkeypatch.setenv("TRITEMM_CACHE", str(tmp_path / "another machine"))
        forget()
        assert tritemm.explain(self.a, self.b).why == "the least predicted time"
        assert tritemm.tuning.load(tmp_path / "tuned.json") == 1
        assert tritemm.explain(self.a, self.b).kernel.name == "pipelined"

    @pytest.mark.parametrize(
        "text",
        [
            "", "[]", '{"gpu": 7, "problems": {}}', '{"gpu": "x", "problems": {"p": {}}}',
            pytest.param(100_000 * "[", id="deep"), "\0\1", '{"gpu": "x", "problems": 3}',
        ],
    )  # fmt: skip
    def test_loading_something_else(self, tmp_path, text):
        path = tmp_path / "other.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"other\.json is not what"):
            tritemm.tuning.load(path)


class Late:
    """Workers of which the first `count` items are compiled, and no more; items are kept."""

    def __init__(self, count):
        self.count, self.futures = count, []

    def submit(self, item):
        future = Future()
        if len(self.futures) < self.count:
            future.set_result(Compiled())
        self.futures.append(future)
        return future


@pytest.mark.parametrize(("seconds", "count", "tried"), [(0.0, 9, 3), (0.6, 0, 3), (0.6, 2, 5)])
def test_workers_that_are_late_are_not_waited_for(monkeypatch, seconds, count, tried):
    """What comes first is compiled by this process; without time for it, workers aren't started."""
    workers = Late(count)
    monkeypatch.setattr(tuning, "_START", 0.3)
    monkeypatch.setattr(pool, "shared", lambda: workers)
    asked = problem(64, 96, 128)
    rows = dispatch.ranked(asked)
    assert len(rows) > 6
    begin = time.monotonic()
    compiled = tuning._compiled(asked, rows, begin + seconds)
    got = [(one.predicted, one.kernel, one.config) for one in compiled]
    assert time.monotonic() - begin < seconds + 1
    assert got[:3] == rows[:3] and sorted(map(str, got)) == sorted(map(str, rows[:tried]))
    assert len(workers.futures) == (len(rows) - 3 if seconds else 0)
    assert all(future.done() for future in workers.futures)


class TestWarmup:
    def test_choices_of_shapes(self):
        choices = tritemm.warmup([(16, 64, 32), (2, 16, 24, 32)], dtype=torch.float16, layout="NN")
        assert [c.problem.batch for c in choices] == [1, 2]
        assert choices[0].problem.layout == "NN" and choices[1].problem.N == 24
        (linear,) = tritemm.warmup([(16, 64, 32)])
        assert linear.problem.layout == "NT" and linear.problem.a.dtype == torch.bfloat16

    def test_of_examples(self):
        a, b = operand(40, 48, torch.float16), operand(48, 56, torch.float16)
        (choice,) = tritemm.warmup([(a, b)], kernel="pipelined")
        assert choice == tritemm.explain(a, b, kernel="pipelined")
        (choice,) = tritemm.warmup([(a, b)], batch_invariant=True)
        assert choice == tritemm.explain(a, b, batch_invariant=True)

    @pytest.mark.parametrize("wrong", [(3, 4), (1, 2, 3, 4, 5), (0, 1, 2), (2.0, 3, 4), ("a", "b")])
    def test_no_problem(self, wrong):
        with pytest.raises(ValueError, match=r"\(M, N, K\)"):
            tritemm.warmup([wrong])
        with pytest.raises(ValueError, match="NN, NT, TN, TT"):
            tritemm.warmup([(1, 2, 3)], layout="row")

    @pytest.mark.gpu
    def test_the_first_call_may_be_captured(self):
        a = torch.randn(48, 80, device=DEVICE, dtype=torch.bfloat16)
        b = torch.randn(112, 80, device=DEVICE, dtype=torch.bfloat16).mT
        tritemm.warmup([(48, 112, 80)])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = tritemm.matmul(a, b)
        graph.replay()
        torch.testing.assert_close(out, a @ b)


@pytest.mark.gpu
def test_tune_on_a_gpu():
    a = torch.randn(300, 512, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(512, 520, device=DEVICE, dtype=torch.bfloat16)
    found = tritemm.tune(a, b, seconds=60, progress=False)
    best = found.timed[0]
    assert 0 < best.seconds < 1e-3 and len([t for t in found.timed if not t.error]) > 1
    assert not [t for t in found.timed if t.error and "wrong" in t.error]
    assert dispatch.choose(found.choice.problem).config == best.config


def test_deterministic_is_a_fact():
    """Which tests/kernels/test_same_bits.py holds."""
    assert tritemm.deterministic is True


def test_the_command(tmp_path):
    """`python -m tritemm tuning load` adds to the cache of this user."""
    path = tmp_path / "tuned.json"
    entry = cache.entry("tma", CONFIG, 1e-6)
    path.write_text(json.dumps({"gpu": "NVIDIA H200", "problems": {"p": entry}}))
    command = [sys.executable, "-m", "tritemm", "tuning", "load", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0 and done.stdout == "1 problems\n", done.stderr
    assert cache.table_of("NVIDIA H200") == {"p": entry}
