"""Counters of a launch: of one stream, of a capture, and outside of every pool of a caller's."""

import contextlib
import itertools
import threading
import types

import pytest
import torch

from tritemm.machine import driver
from tritemm.runtime import launches, workspace

pytestmark = pytest.mark.latest


@pytest.fixture
def counting(monkeypatch):
    """`workspace` with a CUDA device that is CPU memory; yields its state."""
    state = types.SimpleNamespace(stream=1, capturing=False, waits=0, numbers={})

    def wait():
        state.waits += 1

    monkeypatch.setattr(workspace, "_streams", {})
    monkeypatch.setattr(workspace, "_slabs", {})
    monkeypatch.setattr(workspace, "_used_up", [])
    monkeypatch.setattr(workspace, "SLAB", 256)
    monkeypatch.setattr(workspace, "current_stream", lambda index: state.stream)
    monkeypatch.setattr(
        workspace, "_zeros", lambda index, count: torch.zeros(count, dtype=torch.int32)
    )
    monkeypatch.setattr(workspace, "capturing", lambda: state.capturing)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: types.SimpleNamespace(synchronize=wait)
    )
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(driver, "number_of", lambda stream: state.numbers.get(stream, stream))
    return state


GPU = torch.device("cuda", 0)


def test_counters_of_one_stream_are_one_memory(counting):
    first, again = workspace.counters(GPU, 10), workspace.counters(GPU, 20)
    assert first.data_ptr() == again.data_ptr() and first.numel() >= 20
    assert first.dtype == torch.int32 and not first.any()
    counting.stream = 2
    assert workspace.counters(GPU, 10).data_ptr() != first.data_ptr()
    more = workspace.counters(GPU, 10 * workspace.FIRST)
    assert more.numel() >= 10 * workspace.FIRST and not more.any()
    assert counting.waits == 4, "the slab and each set are cleared once, and waited for"


def test_a_handle_that_comes_back_is_another_stream(counting):
    """The first one's work may still run when the driver gives its handle to a new stream."""
    counting.numbers[1] = 100
    first = workspace.counters(GPU, 10)
    counting.numbers[1] = 101
    assert workspace.counters(GPU, 10).data_ptr() != first.data_ptr()


def test_counters_are_made_outside_of_the_callers_pool(counting, monkeypatch):
    """Pools of memory are a thread's; what is kept between calls must not lie in one."""
    threads = []

    def zeros(index, count):
        threads.append(threading.get_ident())
        return torch.zeros(count, dtype=torch.int32)

    monkeypatch.setattr(workspace, "_zeros", zeros)
    workspace.counters(GPU, 10)
    assert len(threads) == 2 and threading.get_ident() not in threads
    counting.stream = 2
    monkeypatch.setattr(workspace, "_zeros", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        workspace.counters(GPU, 10)


def test_captured_calls_have_counters_of_their_own(counting):
    eager = workspace.counters(GPU, 10)
    counting.capturing = True
    taken = [workspace.counters(GPU, 50) for _ in range(6)]
    spans = sorted((t.data_ptr(), t.data_ptr() + 4 * t.numel()) for t in (*taken, eager))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    slab = workspace._slabs[0]._zeros
    inside = [slab.data_ptr() <= t.data_ptr() < slab.data_ptr() + 4 * 256 for t in taken]
    assert inside == [True] * 4 + [False] * 2, "an exhausted slab leaves clearing to the graph"
    assert all(t.numel() >= 50 for t in taken)


def test_a_stream_of_a_capture_has_one_set(counting, monkeypatch):
    monkeypatch.setattr(workspace, "_captures", {})
    monkeypatch.setattr(workspace, "CAPTURED", 32)
    capture = 7
    monkeypatch.setattr(driver, "capture_of", lambda stream: capture)
    workspace.counters(GPU, 10)
    counting.capturing = True
    first, again = workspace.counters(GPU, 10), workspace.counters(GPU, 32)
    assert first.data_ptr() == again.data_ptr()
    larger = workspace.counters(GPU, 33)
    assert larger.data_ptr() != first.data_ptr(), "it was too small"
    counting.stream = 2
    other = workspace.counters(GPU, 10)
    counting.stream, capture = 1, 8
    later = workspace.counters(GPU, 10)
    assert len({t.data_ptr() for t in (first, larger, other, later)}) == 4


def test_an_eager_call_replaces_a_slab_that_is_nearly_used(counting):
    workspace.counters(GPU, 10)
    counting.capturing = True
    for _ in range(3):
        workspace.counters(GPU, 50)
    old = workspace._slabs[0]
    counting.capturing = False
    workspace.counters(GPU, 10)
    assert workspace._slabs[0] is not old and not workspace._slabs[0].low
    assert old in workspace._used_up, "graphs still write to it"


def test_first_use_in_a_capture_makes_no_slab(counting):
    counting.capturing = True
    assert not workspace.counters(GPU, 10).any()
    assert not workspace._slabs and not workspace._streams and not counting.waits


def test_stream_0_is_never_captured(counting, monkeypatch):
    """Nobody asks whether it is: the driver's answer takes as long as the rest."""
    monkeypatch.setattr(workspace, "capturing", lambda: pytest.fail("asked"))
    counting.stream = 0
    assert workspace.counters(GPU, 10).numel() >= 10


def test_counters_without_a_gpu():
    assert torch.equal(
        workspace.counters(torch.device("cpu"), 3), torch.zeros(3, dtype=torch.int32)
    )
    assert workspace.counters(torch.device("meta"), 3).device.type == "meta"


def test_launches_place_copies_sums_and_counters(monkeypatch):
    """One piece of memory for each call, in which no two of them meet; counters apart."""
    memory, seen = [], []

    def empty(size, stride, dtype):
        memory.append(torch.empty(size, dtype=dtype))
        return memory[-1]

    zeros = torch.zeros(8, dtype=torch.int32)
    monkeypatch.setattr(launches, "empty_strided", empty)
    monkeypatch.setattr(launches, "current_stream", lambda index: 7)
    monkeypatch.setattr(workspace, "counters_of", lambda *asked: seen.append(asked) or zeros)
    calls = [lambda stream, addresses: seen.append((stream, addresses)) for _ in range(2)]
    room = workspace.Room(300, torch.float64, 5)
    launch = launches.Launches(0, calls, copies=(1000, 24), room=room)
    launch((16, 32, 48))
    launch((16, 32, 48))
    asked, (stream, addresses), again = seen[:3]
    assert asked == (0, 7, 5) and stream == 7 and again == (stream, addresses)
    a, b, c, first, second, sums, counters = addresses
    assert (a, b, c, counters) == (16, 32, 48, zeros.data_ptr())
    begin, end = memory[0].data_ptr(), memory[0].data_ptr() + memory[0].numel()
    assert begin == first and first + 1000 <= second and second + 24 <= sums
    assert sums + 8 * 300 <= end
    assert not any((address - begin) % 128 for address in (first, second, sums))
    assert memory[0].data_ptr() != memory[1].data_ptr(), "each call has its own"
