"""Blocks in which torch's calls are routed: nested, again, of several threads; their account."""

import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._inductor.config

import tritemm
from tests.torch.twins import integers
from tritemm.takeover import integrate, routing

# The account


def test_report():
    a = integers(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for change in (tritemm.enable, tritemm.disable, tritemm.enable):
            change()
    a @ a
    torch.addmm(a, a, a)
    tritemm.enable(batch_invariant=True)
    a @ a, a @ a
    torch.mm(a + 1j, a + 1j)
    report = tritemm.disable()
    assert report.ran == {"mm": 3, "addmm": 1}
    assert report.fell_back == {"mm": {"complex64 operands": 1}}
    assert str(report) == (
        "operator  tritemm  torch  why torch\n"
        "mm              3      1  1 x complex64 operands\n"
        "addmm           1      0"
    )
    assert torch.equal(a @ a, tritemm.matmul(a, a))
    assert report.ran == {"mm": 3, "addmm": 1}, "it was closed"
    assert str(tritemm.disable()) == "no call was routed"


def test_nesting():
    a = integers(4, 4)
    with tritemm.enabled() as outer:
        a @ a
        with tritemm.enabled(batch_invariant=True) as inner:
            a @ a
            assert integrate.is_batch_invariant_mode_enabled()
            with tritemm.set_batch_invariant_mode(False):
                a @ a
        assert not integrate.is_batch_invariant_mode_enabled()
        a @ a
    a @ a
    assert inner.ran == {"mm": 1} and outer.ran == {"mm": 3}


def test_blocks_that_overlap():
    """As those of two threads may: the last that began counts, and nothing is left in the end."""
    a = integers(4, 4)
    first, second = tritemm.enabled(), tritemm.enabled(batch_invariant=True)
    ran = first.__enter__().ran, second.__enter__().ran
    first.__exit__(None, None, None)
    assert integrate.is_batch_invariant_mode_enabled() and ran == ({}, {})
    with tritemm.enabled() as inner:
        a @ a
    a @ a
    second.__exit__(None, None, None)
    assert not integrate.is_batch_invariant_mode_enabled()
    a @ a
    assert inner.ran == {"mm": 1} and str(tritemm.disable()) == "no call was routed"
    assert integrate._State.blocks[-1].settings is None and len(integrate._State.blocks) == 1


def test_a_block_that_two_threads_enter_at_once():
    """Each of them leaves its own, whichever entered last."""
    a, block = integers(4, 4), tritemm.enabled()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with block as report:
            entered.set()
            leave.wait(60)
            a @ a
        return report.ran

    with ThreadPoolExecutor(1) as thread:
        with block as first:
            left = thread.submit(other)
            assert entered.wait(60)
        leave.set()
    assert first.ran == {} and left.result() == {"mm": 1}
    assert len(integrate._State.blocks) == 1 and integrate._State.blocks[-1].settings is None


def test_a_block_that_raises_or_disables_leaves_what_it_found():
    a = integers(4, 4)
    tritemm.enable(batch_invariant=True)
    with pytest.raises(KeyError), tritemm.enabled():
        raise KeyError
    with tritemm.enabled():
        assert str(tritemm.disable()) == "no call was routed"
        a @ a
    assert integrate.is_batch_invariant_mode_enabled()
    a @ a
    assert tritemm.disable().ran == {"mm": 1}


def test_one_block_again_and_inside_itself():
    a = integers(4, 4)
    block = tritemm.enabled()
    with block as outer:
        a @ a
        with block as inner:
            a @ a
    with block as later:
        pass
    assert (outer.ran, inner.ran, later.ran) == ({"mm": 2}, {"mm": 1}, {})
    assert len(integrate._State.blocks) == 1


def test_what_returns_before_it_runs_is_not_decorated():
    def steps():
        yield 1

    async def step():
        return 1

    for function in (steps, step):
        for decorator in (tritemm.enabled(), tritemm.set_batch_invariant_mode()):
            with pytest.raises(TypeError, match="`with`"):
                decorator(function)


def test_as_a_decorator():
    known = integrate.is_batch_invariant_mode_enabled
    assert tritemm.enabled(batch_invariant=True)(known)() and not known()


def test_the_names_of_batch_invariant_ops():
    integrate.enable_batch_invariant_mode()
    assert integrate.is_batch_invariant_mode_enabled()
    integrate.disable_batch_invariant_mode()
    for enabled in (False, True, False):
        assert not integrate.is_batch_invariant_mode_enabled()
        with tritemm.set_batch_invariant_mode(enabled=enabled):
            assert integrate.is_batch_invariant_mode_enabled() is enabled


def test_a_kernel_that_was_there_before_is_what_calls_fall_back_to():
    library, a = torch.library.Library("aten", "IMPL"), integers(4, 4, dtype=torch.complex64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("mm", lambda a, b: torch.full_like(a, 7), integrate._KEY)
    try:
        with tritemm.enabled():
            assert (a @ a == 7).all()
        assert (a @ a == 7).all()
    finally:
        library._destroy()
    assert not (a @ a == 7).all()


# Threads


def test_blocks_come_and_go_under_other_threads_calls():
    """Their calls are on their way into what is registered, or wait there for their turn."""
    a, stop, wrong = integers(4, 4, dtype=torch.complex64), threading.Event(), []
    want = a @ a

    def repeat(work):
        try:
            while not stop.is_set():
                work()
        except Exception as error:
            wrong.append(error)

    def enter():
        with tritemm.enabled():
            pass

    def multiply():
        if not torch.equal(a @ a, want):
            wrong.append("product")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(5) as threads:
            for work in [multiply] * 3 + [enter] * 2:
                threads.submit(repeat, work)
            time.sleep(1.5)
            stop.set()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    enter()
    assert integrate._State.standing is None


def test_what_stays_registered_for_another_thread_hands_calls_on():
    a, go, done = integers(4, 4), threading.Event(), threading.Event()

    def work():
        a @ a
        done.set()
        go.wait()

    thread = threading.Thread(target=work)
    with tritemm.enabled() as report:
        thread.start()
        done.wait()
    assert integrate._State.blocks[-1].settings is None and integrate._State.standing is not None
    with tritemm.set_batch_invariant_mode(False), tritemm.enabled() as later:
        with tritemm.set_batch_invariant_mode(False):
            a @ a  # nobody's, and counted by nobody
        a @ a
    assert report.ran == later.ran == {"mm": 1} and not later.fell_back
    go.set()
    thread.join()
    want = torch.mm(a, a)
    for _ in range(routing.EVERY):
        assert torch.equal(torch.mm(a, a), want)
    assert integrate._State.standing is None


# What else it sets


def test_inductor_is_kept_from_kernels_of_its_own():
    """What is set meanwhile stays."""
    config = torch._inductor.config
    before = config.max_autotune_gemm_backends, config.shape_padding
    assert "TRITON" in before[0]
    with tritemm.enabled():
        assert (config.max_autotune_gemm_backends, config.shape_padding) == before
        with tritemm.enabled(batch_invariant=True), tritemm.enabled(batch_invariant=True):
            assert (config.max_autotune_gemm_backends, config.shape_padding) == ("ATEN", False)
    assert (config.max_autotune_gemm_backends, config.shape_padding) == before
    try:
        with tritemm.enabled(batch_invariant=True):
            config.max_autotune_gemm_backends = "CPP"
        assert (config.max_autotune_gemm_backends, config.shape_padding) == ("CPP", before[1])
    finally:
        config.max_autotune_gemm_backends = before[0]
