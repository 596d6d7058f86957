"""The peers: cuBLASLt's list through an nvmath that does just what it is told; quack."""

import sys
import types

import pytest
import torch

from perf import operands, peers
from perf.case import Case
from perf.engine import Loop, Plan, Sample, admit
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


class FakeQuick:
    """A `Quick` on the CPU: algorithms take `seconds`, in the order in which they are prepared."""

    made = 0

    def __init__(self, case):
        FakeQuick.made += 1
        self.exact, self.want = operands.integers(case, "cpu")
        self.seconds = iter((3e-6, 1e-6, 2e-6))

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
    known = lambda *tensors: tuple(each[:2] for each in geometry(*tensors))  # noqa: E731
    monkeypatch.setitem(sys.modules, "nvmath.linalg.advanced", found)
    monkeypatch.setattr(peers, "geometry", known)
    monkeypatch.setattr(peers, "Quick", FakeQuick)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(FakeQuick, "made", 0)
    monkeypatch.setitem(sys.modules, "quack", None)
    return found


def quack_is(monkeypatch, gemm):
    package, interface = types.ModuleType("quack"), types.ModuleType("quack.gemm_interface")
    package.__version__, interface.gemm = "0.6.5", gemm
    monkeypatch.setitem(sys.modules, "quack", package)
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", interface)


def field(case, *words):
    return peers.peers(case, operands.operands(case, "cpu"), words)


def admitted(competitor, case=CASE):
    return admit(competitor, FakeBench(case, {}), Plan())


@pytest.mark.parametrize("case", [
    CASE, Case(24, 16, 40, "TN", "fp16", batch=3), Case(8, 16, 24, "NN", out_dtype="fp32"),
    Case(8, 16, 24, "TT", "fp32"), Case(1, 16, 24, "NT", "fp32", precision="tf32"),
], ids=str)  # fmt: skip
def test_the_fastest_of_the_list_is_kept_and_races(library, case):
    (lt,) = field(case, "lt")
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
    entrant = admitted(*peers.peers(CASE, given, ["lt"]))
    assert (entrant.outcome, entrant.loop) == (outcome, None) and reason in entrant.reason


def test_an_algorithm_that_cant_run_is_left_out_and_another_geometry_has_its_own_plan(library):
    """A bench estimates by a strip of A's rows: nothing may be written below it."""
    library.broken = (1,)
    a, b, c = operands.operands(CASE, "cpu")
    (lt,) = peers.peers(CASE, (a, b, c), ["lt"])
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


@pytest.mark.parametrize(
    ("word", "case", "reason"),
    [
        ("lt", Case(8, 8, 8, "NT", "int8", "int32"), "not for int8"),
        ("lt", Case(8, 8, 8, "NT", "fp16", "fp16"), "not in fp16"),
        ("lt", Case(8, 8, 8, "NT", "fp32", precision="tf32x3"), "cuBLASLt has no tf32x3"),
        ("lt", Case(8, 8, 8, "NT", "bf16", ending="bias"), "products alone"),
        ("lt", Case(8, 8, 8, "NT", "bf16", out_dtype="fp16"), "operands' type or fp32"),
        ("quack", Case(8, 8, 8, "NT", "fp32", precision="tf32"), "not for fp32"),
        ("quack", Case(8, 20, 8, "NT"), "rows of whole 16 bytes"),  # of C
        ("quack", Case(8, 8, 12, "NT"), "rows of whole 16 bytes"),  # of A and B
        ("quack", Case(12, 8, 8, "TN"), "rows of whole 16 bytes"),  # of A
        ("quack", CASE, "pip install quack-kernels"),
    ],
)
def test_what_a_peer_is_not_asked_for_is_refused(library, word, case, reason):
    (peer,) = field(case, word)
    assert reason in peer.refusal and FakeQuick.made == 0
    assert admit(peer, None, Plan()).outcome == "refused"


def test_tensors_on_the_cpu_are_refused():
    assert field(CASE, "lt")[0].refusal.startswith("the tensors are on the CPU; cublaslt needs")


def test_quack_races_in_its_default_config(library, monkeypatch):
    asked = []

    def gemm(A, B, out=None, tuned=True, **more):
        asked.append((tuned, *more))
        return out.copy_(A @ B)

    quack_is(monkeypatch, gemm)
    _, found = field(CASE, "lt", "quack", "lt")
    assert FakeQuick.made == 1  # for both
    assert (found.name, found.config) == (QUACK, {"version": "0.6.5", "tuned": False})
    assert admitted(found).outcome == "measured" and set(asked) == {(False,)}
    assert field(Case(9, 8, 16, "NT"), "quack")[0].refusal is None  # any number of rows


@pytest.mark.parametrize(
    ("gemm", "outcome", "reason"),
    [
        (lambda A, B, out, tuned: out.copy_(A @ B)[3:].fill_(0), "wrong", "it is off by"),
        (lambda A, B, out, tuned: 1 // 0, "failed", "ZeroDivisionError"),
        # Integers may lie in C already; poison may not.
        (lambda A, B, out, tuned: None, "wrong", "on small integers it is off by nan"),
    ],
)
def test_a_quack_that_is_wrong_fails_or_writes_nothing_is_told(
    library, monkeypatch, gemm, outcome, reason
):
    quack_is(monkeypatch, gemm)
    entrant = admitted(*field(CASE, "quack"))
    assert entrant.outcome == outcome and reason in entrant.reason
