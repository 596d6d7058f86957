"""`tritemm.compile.pool`: what workers compile is what a launch looks for."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from tests.harness import surroundings
from tritemm.compile import pool
from tritemm.compile.asm import DEVICES
from tritemm.problem import Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Config, find

pytestmark = pytest.mark.latest

ROOT = Path(__file__).resolve().parents[2]


def problem(M, N, K, layout="NT", offset=0):
    """A problem of bf16 tensors on the CPU, A `offset` elements into its storage."""

    def matrix(rows, cols, major, offset=0):
        stored = torch.empty(rows * cols + offset, dtype=torch.bfloat16)[offset:]
        return stored.view(rows, cols) if major == "N" else stored.view(cols, rows).mT

    operands = matrix(M, K, layout[0], offset), matrix(K, N, layout[1]), matrix(M, N, "N")
    return Problem.of(*operands, device=DEVICES[90]), operands


SMALL = problem(64, 64, 64)[0]


def uninterpreted(code, *arguments):
    """What a process that does not interpret prints."""
    env = surroundings(TRITON_INTERPRET="0")
    words = [sys.executable, "-c", code, *arguments]
    return subprocess.run(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


#: In a process that does not interpret: with real tensors, does Triton find all in the cache?
LOOKS = """
import triton
from tests.compile.test_pool import PROBLEMS, problem, item
from tritemm.compile.driver import standing_for
from tritemm.spec import find
from tritemm.rungs import RUNGS
hits = []
triton.knobs.compilation.listener = lambda **known: hits.append(known["cache_hit"])
for words in PROBLEMS:
    name, asked, config = item(*words)
    operands = problem(*words[1:])[1]
    kernel = find(name, RUNGS)
    call = kernel.prepare(asked, config, *operands)
    with standing_for(90):
        kernel.fn.warmup(**call.args, **call.options, grid=call.grid)
print(len(hits), all(hits))
"""
PROBLEMS = (
    ("tiled", 256, 512, 256),
    ("tiled", 253, 259, 255, "NN", 1),  # not on a 16-byte boundary: another kernel
    ("persistent", 1, 256, 512, "TN"),
)


def item(name, *words):
    asked, _ = problem(*words)
    return name, asked, find(name, RUNGS).configs(asked)[0]


def test_a_launch_finds_what_workers_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    good = [item(*words) for words in PROBLEMS]
    deep = dataclasses.replace(good[2][2], num_stages=9)
    odd = dataclasses.replace(good[0][2], BLOCK_M=24)
    results = pool.compile_all([*good, (*good[2][:2], deep), (*good[0][:2], odd)])
    assert [r.error for r in results[:3]] == [None] * 3
    assert all(0 < r.shared <= DEVICES[90].shared for r in results[:3])
    assert results[3].error.endswith("bytes of shared memory; sm_90 has 232448")
    assert "power of 2" in results[4].error
    assert uninterpreted(LOOKS) == "3 True\n"


#: In a process that does not interpret: what Triton's cache calls kernels that are prepared in some
#: order; and constants of one name that a kernel has two of, which come in the order of addresses.
NAMES = """
import collections, json, sys
from tests.compile.test_pool import problem
from tritemm.rungs import RUNGS
keys, twice = {}, set()
for kernel in RUNGS[:: int(sys.argv[1])]:
    asked, operands = problem(128, 256, 2048)
    if hasattr(kernel, "fn") and kernel.why_not(asked) is None:
        kernel.prepare(asked, kernel.configs(asked)[0], *operands)
        keys[kernel.name] = kernel.fn.cache_key
        values = collections.defaultdict(set)
        for (name, _), (value, _) in kernel.fn.used_global_vals.items():
            values[name].add(str(value))
        twice.update(name for name in values if len(values[name]) > 1)
print(json.dumps([keys, sorted(twice)], sort_keys=True))
"""


def test_names_in_the_cache_do_not_depend_on_what_was_compiled_before():
    said = [uninterpreted(NAMES, step) for step in ("1", "-1")]
    keys, twice = json.loads(said[0])
    assert len(keys) > 15 and said[0] == said[1]
    assert not twice


def test_a_refusal_and_an_unknown_name_are_results():
    asked, _ = problem(64, 64, 63)
    config = Config(64, 64, 64)
    with pool.Compilers(1) as compilers:
        refused = compilers.submit(("tma", asked, config)).result()
        unknown = compilers.submit(("nothing", asked, config)).result()
    assert "row stride of a is 126 bytes" in refused.error
    assert "nothing" in unknown.error


#: A worker that starts soon; it ends over some items, sleeps over some, and answers others.
STAND_IN = """
import os, sys, time
from multiprocessing.connection import Connection
connection = Connection({file})
connection.send(True)
while True:
    item = connection.recv_bytes()
    if b"ends" in item:
        sys.stderr.write("out of registers")
        os._exit(9)
    if b"sleeps" in item:
        time.sleep(60)
    connection.send("compiled")
"""


def test_a_worker_that_ends_or_takes_too_long_is_replaced(monkeypatch):
    monkeypatch.setattr(pool, "_PROGRAM", STAND_IN)
    monkeypatch.setattr(pool, "LIMIT", 3.0)
    with pool.Compilers(1) as compilers:
        ends, sleeps = (
            compilers.submit((name, SMALL, Config(64, 64, 64))).result()
            for name in ("ends", "sleeps")
        )
        answer = compilers.submit(("answers", SMALL, Config(64, 64, 64))).result()
    assert answer == "compiled"
    assert ends.error == "the compiler ended with status 9: out of registers"
    assert sleeps.error == "the compiler took more than 3 s"


def test_modules_of_the_current_directory_are_not_imported(tmp_path, monkeypatch):
    for name in ("torch", "triton", "tritemm", "pickle"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    with pool.Compilers(1) as compilers:
        result = compilers.submit(("naive", SMALL, Config(32, 32, 32))).result()
    assert result.error is None
    assert not (tmp_path / "executed").exists()


def test_a_worker_that_does_not_start_says_so(monkeypatch):
    monkeypatch.setattr(pool, "_PROGRAM", "raise SystemExit('no such thing')")
    with pytest.raises(RuntimeError, match="did not start: status 1: no such thing"):
        pool.Worker().ask(len, "ab")
    with pool.Compilers(1) as compilers:
        result = compilers.submit(("naive", SMALL, Config(32, 32, 32))).result()
    assert "did not start" in result.error


def test_closing_drops_what_was_not_begun():
    begin = time.monotonic()
    with pool.Compilers(1) as compilers:
        futures = [compilers.submit(("tiled", SMALL, Config(64, 64, 64)))]
        futures += [compilers.submit(("tiled", SMALL, Config(64, 32, k))) for k in (16, 32, 64)]
    assert time.monotonic() - begin < 30
    assert futures[-1].cancelled() and isinstance(futures[-1], Future)


#: Workers that take for ever to start, and a process that ends meanwhile.
ENDS = """
import torch
from tests.compile.test_pool import problem
from tritemm.compile import pool
from tritemm.spec import Config
pool._PROGRAM = "import time; time.sleep(600)"
future = pool.shared().submit(("naive", problem(64, 64, 64)[0], Config(32, 32, 32)))
print("ends", flush=True)
"""


def test_workers_that_start_keep_nobody():
    run = subprocess.Popen([sys.executable, "-c", ENDS], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert run.stdout.readline() == b"ends\n"
        assert run.wait(timeout=20) == 0
    finally:
        run.kill()


def test_closing_ends_a_worker_that_starts(monkeypatch):
    monkeypatch.setattr(pool, "_PROGRAM", "import time; time.sleep(600)")
    for pause in (0, 0.3):
        compilers = pool.Compilers(8)
        futures = [compilers.submit(("naive", SMALL, Config(32, 32, 2**k))) for k in range(8)]
        time.sleep(pause)
        begin = time.monotonic()
        compilers.close()
        assert time.monotonic() - begin < 10
        assert all(future.cancelled() or future.result().error for future in futures)


def test_a_worker_with_nothing_to_do_ends_and_starts_again(monkeypatch):
    monkeypatch.setattr(pool, "_PROGRAM", STAND_IN)
    monkeypatch.setattr(pool, "IDLE", 0.2)
    asked, _ = problem(64, 64, 64)
    with pool.Compilers(1) as compilers:
        worker = compilers._lanes[0].worker
        for _ in range(2):
            made = compilers.submit(("naive", asked, Config(32, 32, 32))).result()
            assert made == "compiled"
            deadline = time.monotonic() + 20
            while worker.process is not None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert worker.process is None
    assert pool.shared() is pool.shared()


def test_a_fork_leaves_the_workers_to_its_parent(monkeypatch):
    """It has none of their threads, so it starts its own, and ends none of theirs."""
    monkeypatch.setattr(pool, "_PROGRAM", STAND_IN)
    with pool.Compilers(1) as compilers:
        compilers.submit(("naive", SMALL, Config(32, 32, 32))).result()
        child = os.fork()
        if not child:
            theirs = pool.shared.cache_info().currsize
            compilers.close()
            os._exit(theirs)
        assert os.waitpid(child, 0)[1] == 0
        made = compilers.submit(("naive", SMALL, Config(32, 32, 32))).result()
        assert made == "compiled"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ((512, 1024, 2048, "NT"), True),
        ((512, 1024, 2040, "NT"), False),  # 16 does not divide K
        ((1, 1024, 2048, "NT"), False),
        ((512, 1024, 2048, "NN"), False),
        ((512, 1024, 2048, "NT", 1), False),
    ],
)
def test_what_is_likely_one_kernel_goes_to_one_worker(other, same):
    config = Config(64, 64, 64)
    first = pool.likeness("tiled", problem(256, 256, 256)[0], config)
    second = pool.likeness("tiled", problem(*other)[0], config)
    assert (first == second) is same
    assert first != pool.likeness("tma", problem(256, 256, 256)[0], config)


def test_operands_have_the_problems_strides_types_and_alignment():
    asked, (a, b, c) = problem(33, 65, 17, "TN", 1)
    for made, real in zip(pool.operands(asked), (a, b, c), strict=True):
        assert (made.shape, made.stride(), made.dtype) == (real.shape, real.stride(), real.dtype)
        assert (made.data_ptr() % 16 == 0) is (real.data_ptr() % 16 == 0)
    batched = Problem.of(*(t.expand(3, 2, *t.shape) for t in (a, b, c)), device=DEVICES[90])
    assert pool.operands(batched)[0].shape[-3:] == (6, 33, 17)[-3:]
