"""What the CUDA driver is asked, by a stand-in for it; and on a GPU, what it says."""

import ctypes

import pytest
import torch

from tritemm.machine import driver
from tritemm.problem import Device

COUNTS = (132, 66, 39, 32, 22, 18, 16, 16)
#: What is called, in pairs that undo each other and by itself.
PAIRED = {"cuCtxPushCurrent_v2": "cuCtxPopCurrent_v2", "cuModuleLoadData": "cuModuleUnload"}
SINGLE = (
    "cuThreadExchangeStreamCaptureMode", "cuDeviceGet", "cuDevicePrimaryCtxRetain",
    "cuModuleGetFunction", "cuFuncSetAttribute", "cuOccupancyMaxActiveClusters",
)  # fmt: skip


class Library:
    """Functions of a driver that notes what is asked, and fails where it is told to."""

    def __init__(self, fails=None):
        self.fails, self.called, self.asked, self.mode = fails, [], [], 0

    def function(self, name, arguments):
        def call(*given):
            assert len(given) == arguments
            if name == self.fails:
                return 700
            self.called.append(name)
            getattr(self, name, lambda *given: None)(*given)
            return 0

        return call

    def cuThreadExchangeStreamCaptureMode(self, mode):
        mode._obj.value, self.mode = self.mode, mode._obj.value

    def cuModuleLoadData(self, module, image):
        assert self.mode == 2, "a capture would end"
        module._obj.value = 1

    def cuFuncSetAttribute(self, function, attribute, value):
        self.asked.append((attribute, value))

    def cuOccupancyMaxActiveClusters(self, count, function, launch):
        launch = launch._obj
        kind, _, *size = (ctypes.c_uint * 5).from_address(launch.attributes)
        assert launch.count == 1 and kind == 4
        self.asked.append((launch.gridx, launch.shared, *size))
        count._obj.value = COUNTS[size[0] - 1]

    def assert_as_before(self):
        assert self.mode == 0
        for done, undone in PAIRED.items():
            assert self.called.count(done) == self.called.count(undone)


@pytest.fixture
def library(monkeypatch):
    def put(fails=None):
        made = Library(fails)
        monkeypatch.setattr(driver, "_function", made.function)
        return made

    return put


def test_clusters_are_asked_of_a_kernel_that_fills_an_sm(library):
    made = library()
    assert driver.clusters_at_once(1, 232448) == COUNTS
    first, *others = made.asked
    assert first == (8, 232448)
    assert others == [(n, 232448, n, 1, 1) for n in range(1, 9)]
    assert set(made.called) == {*PAIRED, *PAIRED.values(), *SINGLE}
    made.assert_as_before()


@pytest.mark.parametrize("fails", [*SINGLE, *PAIRED])
def test_a_driver_that_refuses_says_nothing(library, fails):
    made = library(fails)
    assert driver.clusters_at_once(0, 232448) == ()
    made.assert_as_before()


@pytest.mark.parametrize("fails", PAIRED.values())
def test_what_cannot_be_undone_is_known_all_the_same(library, fails):
    library(fails)
    assert driver.clusters_at_once(0, 232448) == COUNTS


def test_without_a_driver_nothing_is_known(monkeypatch):
    monkeypatch.setattr(driver, "_function", lambda name, arguments: None)
    assert driver.clusters_at_once(0, 232448) == ()


@pytest.mark.gpu
def test_this_card_says_how_many_clusters_it_has_room_for():
    """As many as SMs of one program, and never more SMs than there are; in a capture too."""
    device = Device.of(torch.device("cuda"))
    if device.capability[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    counts = device.clusters
    assert len(counts) == driver.MOST_PROGRAMS and counts[0] == device.sms
    assert all(0 < n * count <= device.sms for n, count in enumerate(counts, 1))
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert driver.clusters_at_once(0, device.shared) == counts
        x.add_(1)
    graph.replay()
    assert x.tolist() == [1.0] * 4
