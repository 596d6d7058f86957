"""The peers, through an nvmath and a quack that do just what they are told."""

import dataclasses
import itertools
import sys
import types

import pytest
import torch

from perf import groups, operands, peers
from perf.case import Case
from perf.engine import Loop, Plan, Sample, admit
from perf.experiments import moe
from tests.perf.fakes import FakeBench

pytestmark = [pytest.mark.host, pytest.mark.once]

LT, QUACK = "cublaslt", "quack"
CASE = Case(24, 16, 40, "NT")


class FakeNvmath(types.ModuleType):
    """`nvmath.linalg.advanced` on the CPU: three algorithms; some can't run or are wrong."""

    def __init__(self):
        super().__init__("nvmath.linalg.advanced")
        self.broken, self.wrong, self.launched, self.planned = (), None, [], []
        self.MatmulComputeType = types.SimpleNamespace(
            COMPUTE_32F="fp32", COMPUTE_32F_FAST_TF32="tf32"
        )

    def Matmul(self, a, b, c, beta, options):
        assert beta == 0.0 and options["inplace"] and options["memory_limit"] == 64 << 20
        made = types.SimpleNamespace(given=None)

        def plan(preferences):
            assert preferences == {"limit": 8}
            self.planned.append((peers.geometry(a, b, c), options["compute_type"]))
            return [0, 1, 2]

        def reset(a, b, c):
            assert peers.geometry(a, b, c) == self.planned[made.at][0]
            made.given = a, b, c

        def execute(algorithm):
            if algorithm in self.broken:
                raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
            a, b, c = made.given
            c.copy_(a.double() @ b.double())
            if algorithm == self.wrong:
                c.mul_(2)
            self.launched.append(algorithm)

        made.at, made.plan = len(self.planned), plan
        made.reset_operands_unchecked, made.execute = reset, execute
        return made


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """The fields of quack's that the menu changes, and of which card it is."""

    tile_m: int = 128
    tile_n: int = 192
    pingpong: bool = True
    cluster_m: int = 2
    cluster_n: int = 1
    swap_ab: bool = False
    device_capacity: int = 9


class FakeQuack(types.ModuleType):
    """`quack.gemm_interface` on the CPU; some configs don't compile or are wrong."""

    def __init__(self):
        super().__init__("quack.gemm_interface")
        self.default, self.broken, self.wrong, self.launched = GemmConfig(), (), None, []
        self.gemm_tuned = types.SimpleNamespace(fn=self.gemm)

    def default_config(self, device):
        return self.default

    def gemm(self, a, b, out, config, **lengths):
        if config in self.broken:
            raise AssertionError("no such tile")
        for ends in lengths.values():
            assert ends[0] == 0 and ends.dtype == torch.int32 and not config.swap_ab
            out.copy_(torch._grouped_mm(a, b, offs=ends[1:].contiguous()))
        if not lengths:
            out.copy_(a.double() @ b.double())
        if config == self.wrong:
            out.mul_(2)
        self.launched.append(config)


class FakeQuick:
    """A `Quick` on the CPU: algorithms take `seconds`, in the order in which they are prepared."""

    made = 0

    def __init__(self, case):
        FakeQuick.made += 1
        self.exact, self.want = operands.integers(case, "cpu")
        self.seconds = itertools.chain((3e-6, 1e-6, 2e-6), itertools.repeat(4e-6))

    def loop(self, competitor):
        seconds = next(self.seconds)
        return Loop(1, seconds, lambda: None, lambda: Sample(seconds))

    def recover(self):
        pass


@pytest.fixture
def library(monkeypatch):
    """CPU tensors pass for a GPU's; on a GPU torch's begin at multiples of 512 bytes."""
    torch.manual_seed(7)
    found, geometry = FakeNvmath(), peers.geometry
    found.quack = FakeQuack()
    quack = types.SimpleNamespace(__version__="0.6.5", gemm_interface=found.quack)
    monkeypatch.setitem(sys.modules, "quack", quack)
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", found.quack)
    known = lambda *tensors: tuple(each[:2] for each in geometry(*tensors))  # noqa: E731
    monkeypatch.setitem(sys.modules, "nvmath.linalg.advanced", found)
    monkeypatch.setattr(peers, "geometry", known)
    monkeypatch.setattr(peers, "Quick", FakeQuick)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(FakeQuick, "made", 0)
    monkeypatch.setitem(groups.MODELS, "tiny", groups.Model("tiny", 4, 2, 32, 16))
    return found


def asked(case, word="lt"):
    return peers.PEER[word](case, operands.operands(case, "cpu"))


def admitted(competitor, case=CASE):
    return admit(competitor, FakeBench(case, {}), Plan())


@pytest.mark.parametrize("case", [
    CASE, Case(24, 16, 40, "TN", "fp16", batch=3), Case(8, 16, 24, "NN", out_dtype="fp32"),
    Case(8, 16, 24, "TT", "fp32"), Case(1, 16, 24, "NT", "fp32", precision="tf32"),
], ids=str)  # fmt: skip
def test_the_fastest_of_the_list_is_kept_and_races(library, case):
    lt = asked(case)
    assert (lt.name, lt.refusal, lt.fault, lt.rung, lt.ladder) == (LT, None, None, None, None)
    assert lt.config == {"algorithm": 1, "us": [3.0, 1.0, 2.0]}
    library.launched.clear()
    entrant = admitted(lt, case)
    assert entrant.outcome == "measured" and set(library.launched) == {1}
    assert entrant.worst <= 1
    assert {how for _, how in library.planned} == {"tf32" if case.precision == "tf32" else "fp32"}


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ({"broken": (0, 1, 2)}, "failed", "CUBLAS_STATUS_NOT_SUPPORTED"),
        ({"wrong": 2}, "wrong", "algorithm 2 of 3: on small integers it is off by "),
        ({"turned": True}, "failed", "other strides or alignments"),
    ],
)
def test_algorithms_that_fail_are_wrong_or_were_timed_on_others_operands_are_told(
    library, fault, outcome, reason
):
    library.broken, library.wrong = fault.get("broken", ()), fault.get("wrong")
    a, b, c = operands.operands(CASE, "cpu")
    given = (a.mT.contiguous().mT, b, c) if "turned" in fault else (a, b, c)
    entrant = admitted(peers.PEER["lt"](CASE, given))
    assert (entrant.outcome, entrant.loop) == (outcome, None) and reason in entrant.reason


def test_an_algorithm_that_cant_run_is_left_out_and_another_geometry_has_its_own_plan(library):
    """A bench estimates by a strip of A's rows: nothing may be written below it."""
    library.broken = (1,)
    a, b, c = operands.operands(CASE, "cpu")
    lt = peers.PEER["lt"](CASE, (a, b, c))
    assert lt.config == {"algorithm": 2, "us": [3.0, None, 1.0]}
    c.fill_(99)
    library.launched.clear()
    lt.run(a[:8], b, c[:8])
    assert library.launched == [0] and (c[8:] == 99).all() and (c[:8] != 99).all()
    for _ in range(3):
        lt.run(a, b, c)
    assert len(library.planned) == 2 and library.launched[1:] == [2] * 3
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=0.01, atol=1e-3)


def test_a_plan_is_of_shapes_strides_and_alignments():
    memory = torch.zeros(4096, dtype=torch.uint8)
    start = -memory.data_ptr() % 1024
    a, b = (memory[start + offset :][:32].view(torch.bfloat16).view(4, 4) for offset in (16, 2))
    keys = [peers.geometry(t) for t in (a, b, a.mT, a[:2])]
    assert len(set(keys)) == 4 and [key[0][2] for key in keys] == [16, 2, 16, 16]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_the_fastest_of_quacks_menu_is_kept_and_what_does_not_compile_is_left_out(library, layout):
    case = Case(24, 16, 40, layout, batch=2)
    library.quack.broken = (GemmConfig(),)
    quack = asked(case, "quack")
    us = [None, 3.0, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert quack.config == {
        "version": "0.6.5", "menu": list(peers.MENU), "algorithm": 2, "us": us
    }  # fmt: skip
    library.quack.launched.clear()
    entrant = admitted(quack, case)
    assert entrant.outcome == "measured" and entrant.worst <= 1
    assert set(library.quack.launched) == {GemmConfig(tile_n=160)}


@pytest.mark.parametrize("product", ["forward", "data", "weight"])
def test_quack_multiplies_groups_by_what_needs_no_turning(library, product):
    case = moe.case("tiny", "up", product, 24, "zipf")
    quack = asked(case, "quack")
    assert len(quack.config["menu"]) == len(peers.MENU) - 1 and quack.config["algorithm"] == 1
    assert admitted(quack, case).outcome == "measured"
    assert asked(case).refusal == "cuBLASLt has no products of groups"


def test_quack_that_is_wrong_is_not_timed_and_other_cards_are_refused(library):
    library.quack.wrong = GemmConfig(swap_ab=True)
    quack = asked(CASE, "quack")
    assert (quack.name, quack.fault[:14]) == (QUACK, "algorithm 1 of")
    assert admitted(quack).outcome == "wrong"
    library.quack.default = GemmConfig(device_capacity=10)
    assert asked(CASE, "quack").refusal == "quack's configs here are for sm_90"
    for case in (Case(8, 8, 8, dtype="fp32"), Case(8, 8, 4), Case(8, 12, 8)):
        assert asked(case, "quack").refusal.startswith(("quack is asked for bf16", "quack takes"))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(8, 8, 8, "NT", "int8", "int32"), "not for int8"),
        (Case(8, 8, 8, "NT", "fp16", "fp16"), "not in fp16"),
        (Case(8, 8, 8, "NT", "fp32", precision="tf32x3"), "cuBLASLt has no tf32x3"),
        (Case(8, 8, 8, "NT", "bf16", ending="bias"), "products alone"),
        (Case(8, 8, 8, "NT", "bf16", out_dtype="fp16"), "operands' type or fp32"),
    ],
)
def test_what_a_peer_is_not_asked_for_is_refused(library, case, reason):
    peer = asked(case)
    assert reason in peer.refusal and FakeQuick.made == 0
    assert admit(peer, None, Plan()).outcome == "refused"


@pytest.mark.parametrize(
    ("word", "module"), [("lt", "nvmath.linalg.advanced"), ("quack", "quack.gemm_interface")]
)
def test_without_its_library_the_refusal_says_what_to_install(library, monkeypatch, word, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert asked(CASE, word).refusal.endswith("pip install '.[peers]'")


def test_tensors_on_the_cpu_are_refused():
    assert asked(CASE).refusal.startswith("the tensors are on the CPU; cublaslt needs")
