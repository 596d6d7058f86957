"""The peers: the binding of cuBLASLt, to a library that does just what it is told; quack."""

import ctypes
import gc
import itertools
import sys
import types

import pytest
import torch

from perf import cublaslt, operands
from perf.case import Case
from perf.cublaslt import Layout, Library, Product
from perf.engine import Loop, Plan, Sample, admit
from perf.experiments import peers

from .fake_cublaslt import FakeLibrary
from .perf_fakes import FakeBench

pytestmark = [pytest.mark.host, pytest.mark.once]

M, N, K = 7, 5, 6
GUARD = 99.0


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(cublaslt, "_stream", lambda device: 1234567890123)
    torch.manual_seed(3)


def matrix(rows, cols, layout, dtype, batch=(), pad=0, fill=None):
    """A matrix of a layout; rows in memory are `pad` elements longer than they must be."""
    shape = (rows, cols) if layout == "N" else (cols, rows)
    whole = torch.randn((*batch, shape[0], shape[1] + pad)).to(dtype)
    if fill is not None:
        whole.fill_(fill)
    stored = whole[..., : shape[1]]
    return stored if layout == "N" else stored.mT


def product(a, b, c, precision="ieee", **fake):
    library = FakeLibrary(**fake)
    return Product(Library(library), a, b, c, precision), library


def close(c, a, b):
    want = a.double() @ b.double()
    torch.testing.assert_close(c.double(), want, rtol=0.01, atol=1e-3)


SIZES = ((M, N, K), (1, 5, 6), (7, 1, 6), (7, 5, 1), (1, 1, 6), (1, 5, 1), (1, 1, 1))
CASES = list(
    itertools.product(("NN", "NT", "TN", "TT"), ((), (1,), (3,)), (0, 3), (None, torch.float32))
)


@pytest.mark.parametrize(("layout", "batch", "pad", "out"), CASES)
def test_each_layout_is_said_so_that_the_product_comes_out(layout, batch, pad, out):
    """Where a dimension is 1, torch gives it any stride, and cuBLASLt wants one of a column."""
    types = itertools.product((torch.bfloat16, torch.float16, torch.float32), SIZES)
    for dtype, (m, n, k) in types:
        a = matrix(m, k, layout[0], dtype, batch, pad)
        b = matrix(k, n, layout[1], dtype, batch, pad)
        c = matrix(m, n, "N", out or dtype, batch, pad, fill=GUARD)
        made, library = product(a, b, c)
        made.run(1, a, b, c)
        close(c, a, b)
        assert (library.launched, library.streams) == ([1], [1234567890123])
        whole = torch.as_strided(c, (*batch, m, n + pad), c.stride())
        assert (whole[..., n:] == GUARD).all()  # a wrong leading dimension writes there


def test_a_vector_is_one_long_column():
    """Of columns of one element each, none but the first would be aligned."""
    row = torch.randn(1, 4096).mT.contiguous().mT  # strides (1, 1)
    assert (Layout.of(row), Layout.of(row.mT)) == (
        Layout(4096, 1, 4096, False),
        Layout(4096, 1, 4096, True),
    )


def test_the_heuristic_is_told_the_alignment_of_each_pointer():
    """Its A is torch's b: with the same number for both, an algorithm could be too greedy."""
    memory = [torch.zeros(4096, dtype=torch.uint8) for _ in range(3)]
    starts = [-t.data_ptr() % 1024 for t in memory]
    wanted = (16, 64, 2)
    a, b, c = (
        t[start + offset :][:32].view(torch.bfloat16).view(4, 4)
        for t, start, offset in zip(memory, starts, wanted, strict=True)
    )
    assert [cublaslt.alignment(t) for t in (a, b, c)] == [16, 64, 2]
    _, library = product(a, b, c)
    (asked,) = library.asked
    told = {key: int.from_bytes(value, "little") for key, value in asked.items()}
    assert told == {1: 64 << 20, 5: 64, 6: 16, 7: 2, 8: 2}
    assert {len(asked[key]) for key in (5, 6, 7, 8)} == {4} and len(asked[1]) == 8
    # Of other alignments, or strides, another algorithm may be the only one.
    key = cublaslt.geometry(a, b, c)
    assert key == cublaslt.geometry(a, b, c) and key != cublaslt.geometry(b, a, c)
    assert key != cublaslt.geometry(a.mT, b, c)


@pytest.mark.parametrize(("precision", "compute"), [("ieee", 68), ("tf32", 77)])
def test_fp32_is_multiplied_as_asked(precision, compute):
    a, b, c = (torch.randn(4, 4) for _ in range(3))
    kept, library = product(a, b, c, precision)
    made = [each["made"] for each in library.alive.values()]
    assert kept.algorithms and (compute, 0) in made  # compute type and scale type


def test_a_status_is_an_error_that_names_it():
    a, b, c = (torch.randn(4, 4) for _ in range(3))
    made, library = product(a, b, c, broken=(1,))
    made.run(0, a, b, c)
    with pytest.raises(RuntimeError, match=r"^cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED \(15\)$"):
        made.run(1, a, b, c)
    assert library.launched == [0]


def test_a_list_without_algorithms_is_an_error_and_eight_are_the_most():
    a, b, c = (torch.randn(4, 4) for _ in range(3))
    with pytest.raises(RuntimeError, match="it lists no algorithm"):
        product(a, b, c, count=0)
    assert len(product(a, b, c, count=20)[0].algorithms) == 8


def test_descriptors_end_with_their_product():
    a, b, c = (torch.randn(4, 4) for _ in range(3))
    made, library = product(a, b, c)
    assert len(library.alive) == 6  # and the handle
    del made
    gc.collect()
    assert len(library.alive) == 1
    lt = Library(FakeLibrary(count=0))
    with pytest.raises(RuntimeError):
        Product(lt, a, b, c, "ieee")
    gc.collect()
    assert len(lt._library.alive) == 1


@pytest.mark.parametrize(
    ("a", "b", "c", "message"),
    [
        (torch.zeros(4, 6), torch.zeros(5, 4), torch.zeros(4, 4), "don't fit together"),
        (torch.zeros(2, 4, 6), torch.zeros(6, 4), torch.zeros(2, 4, 4), "don't fit together"),
        (torch.zeros(4, 6), torch.zeros(6, 4), torch.zeros(5, 4), "no product of matrices"),
        (torch.zeros(6), torch.zeros(6, 4), torch.zeros(4), "no product of matrices"),
        (torch.zeros(4, 4), torch.zeros(4, 4).half(), torch.zeros(4, 4), "no types"),
        (torch.zeros(4, 4).double(),) * 3 + ("no types",),
        (torch.zeros(4, 4),) * 2 + (torch.zeros(4, 4).half(), "no types"),
        (torch.zeros(8, 8)[::2, ::2], torch.zeros(4, 4), torch.zeros(4, 4), "must be whole"),
        (torch.zeros(4, 4), torch.zeros(4, 4), torch.zeros(4, 4).mT, "must be whole"),
    ],
)
def test_what_it_cant_be_asked_for_is_refused_before_memory_is_read(a, b, c, message):
    with pytest.raises(ValueError, match=message):
        product(a, b, c)
    with pytest.raises(ValueError, match="not bf16x3"):
        product(*(torch.zeros(4, 4) for _ in range(3)), precision="bf16x3")


# The library


def test_the_loaded_library_comes_first(tmp_path):
    maps = [
        "7f10-7f20 r-xp 00000000 08:02 135522 /usr/lib/x86_64/libc.so.6",
        "7f30-7f40 r-xp 00000000 08:02 1 /opt/a b/nvidia/cu13/lib/libcublasLt.so.13",
        "7f30-7f40 rw-p 00000000 00:00 0",
        "7f30-7f40 r-xp 00000000 08:02 1 /opt/nvidia/cu13/lib/libcublas.so.13",
    ]
    assert list(cublaslt.loaded(maps)) == ["/opt/a b/nvidia/cu13/lib/libcublasLt.so.13"]
    assert "libcublasLt.so.13" in list(cublaslt.candidates())


def test_structures_have_the_sizes_of_the_header():
    """Of a C program with cublasLt.h 13.1: sizeof and offsetof."""
    assert ctypes.sizeof(cublaslt.Algorithm) == 64 and ctypes.sizeof(cublaslt.Listed) == 96
    offsets = [getattr(cublaslt.Listed, name).offset for name, _ in cublaslt.Listed._fields_]
    assert offsets == [0, 64, 72, 76, 80]


def installed():
    for path in cublaslt.candidates():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def test_the_real_library_takes_the_attributes_and_gives_them_back():
    """Descriptors need no GPU. It checks the size of each value against its own."""
    if (real := installed()) is None:
        pytest.skip("cuBLASLt is not installed")
    library = FakeLibrary()
    described = [name for name in cublaslt.SIGNATURES if name.count("Desc") or "Layout" in name]
    for name in [*described, *(n for n in cublaslt.SIGNATURES if "Preference" in n)]:
        setattr(library, name, getattr(real, name))
    seen = {}

    def listed(handle, operation, a, b, c, d, preference, most, listed, found):
        for name, kind, descriptor, attributes in (
            ("operation", "MatmulDesc", operation, {0: 4, 1: 4, 3: 4, 4: 4}),
            ("A", "MatrixLayout", a, {0: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 8}),
            ("B", "MatrixLayout", b, {0: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 8}),
            ("C", "MatrixLayout", c, {0: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 8}),
            ("preference", "MatmulPreference", preference, {1: 8, 5: 4, 6: 4, 7: 4, 8: 4}),
        ):
            for attribute, size in attributes.items():
                value, written = ctypes.c_int64(0), ctypes.c_size_t()
                given = ctypes.byref(value), ctypes.c_size_t(size), ctypes.byref(written)
                get = getattr(real, f"cublasLt{kind}GetAttribute")
                assert get(ctypes.c_void_p(descriptor), attribute, *given) == 0
                seen[name, attribute] = value.value
        found[0] = 1
        return 0

    arguments = cublaslt.SIGNATURES["cublasLtMatmulAlgoGetHeuristic"]
    library.cublasLtMatmulAlgoGetHeuristic = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(listed)
    a = matrix(M, K, "T", torch.bfloat16, (3,))
    b = matrix(K, N, "N", torch.bfloat16, (3,), pad=3)
    c = matrix(M, N, "N", torch.float32, (3,))
    Product(Library(library), a, b, c, "ieee")
    told = {}
    for (name, _), value in seen.items():
        told.setdefault(name, []).append(value)
    assert told["operation"] == [68, 0, 0, 1]
    assert told["A"] == [14, N, K, N + 3, 3, K * (N + 3)]
    assert told["B"] == [14, M, K, M, 3, M * K]
    assert told["C"] == [0, N, M, N, 3, M * N]
    assert told["preference"][0] == 64 << 20
    assert told["preference"][1:] == [cublaslt.alignment(t) for t in (b, a, c, c)]


# The peers

LT, QUACK = "cublaslt", "quack"
CASE = Case(24, 16, 40, "NT")


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
def card(monkeypatch):
    """CPU tensors pass for a GPU's; `card.library` is the cuBLASLt."""
    torch.manual_seed(7)
    fakes = types.SimpleNamespace(library=FakeLibrary(), alignments={})
    monkeypatch.setattr(cublaslt, "library", lambda: cublaslt.Library(fakes.library))
    # On a GPU torch's tensors begin at multiples of 512 bytes, here of 64 or more.
    monkeypatch.setattr(cublaslt, "alignment", lambda t: fakes.alignments.get(t.data_ptr(), 64))
    monkeypatch.setattr(peers, "Quick", FakeQuick)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(FakeQuick, "made", 0)
    monkeypatch.setitem(sys.modules, "quack", None)
    return fakes


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
def test_the_fastest_of_the_list_is_kept_and_races(card, case):
    (lt,) = field(case, "lt")
    assert (lt.name, lt.refusal, lt.fault, lt.rung, lt.ladder) == (LT, None, None, None, None)
    assert lt.config == {"algorithm": 1, "us": [3.0, 1.0, 2.0]}
    card.library.launched.clear()
    entrant = admitted(lt, case)
    assert entrant.outcome == "measured" and set(card.library.launched) == {1}
    assert entrant.worst <= 1


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ({"broken": (0, 1, 2)}, "failed", "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED"),
        ({"wrong": 2}, "wrong", "algorithm 2 of 3: on small integers it is off by "),
        ({"align": 2}, "failed", "other strides or alignments"),
    ],
)
def test_algorithms_that_fail_are_wrong_or_were_timed_on_others_operands_are_told(
    card, fault, outcome, reason
):
    card.library.broken, card.library.wrong = fault.get("broken", ()), fault.get("wrong")
    given = operands.operands(CASE, "cpu")
    if "align" in fault:
        card.alignments[given[1].data_ptr()] = 2
    entrant = admitted(*peers.peers(CASE, given, ["lt"]))
    assert (entrant.outcome, entrant.loop) == (outcome, None) and reason in entrant.reason


def test_an_algorithm_that_cant_run_is_left_out_and_another_geometry_has_its_own_product(card):
    """A bench estimates by a strip of A's rows: nothing may be written below it."""
    card.library.broken = (1,)
    a, b, c = operands.operands(CASE, "cpu")
    (lt,) = peers.peers(CASE, (a, b, c), ["lt"])
    assert lt.config == {"algorithm": 2, "us": [3.0, None, 1.0]}
    c.fill_(99)
    card.library.launched.clear()
    lt.run(a[:8], b, c[:8])
    assert card.library.launched == [0] and (c[8:] == 99).all() and (c[:8] != 99).all()
    alive = len(card.library.alive)
    for _ in range(3):
        lt.run(a, b, c)
    assert len(card.library.alive) == alive and card.library.launched[1:] == [2] * 3
    close(c, a, b)


@pytest.mark.parametrize(
    ("word", "case", "reason"),
    [
        ("lt", Case(8, 8, 8, "NT", "int8", "int32"), "not for int8"),
        ("lt", Case(8, 8, 8, "NT", "fp64", "fp64"), "not for fp64"),
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
def test_what_a_peer_is_not_asked_for_is_refused(card, word, case, reason):
    (peer,) = field(case, word)
    assert reason in peer.refusal and FakeQuick.made == 0
    assert admit(peer, None, Plan()).outcome == "refused"


def test_tensors_on_the_cpu_and_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setattr(cublaslt, "candidates", lambda: iter(["/nowhere/libcublasLt.so.13"]))
    cublaslt.library.cache_clear()
    (lt,) = field(CASE, "lt")
    assert lt.refusal == "the tensors are on the CPU; cublaslt needs them on a GPU"
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    (lt,) = field(CASE, "lt")
    with pytest.raises(OSError, match="libcublasLt was not found"):
        lt.run(None, None, None)


def test_quack_races_in_its_default_config(card, monkeypatch):
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
    card, monkeypatch, gemm, outcome, reason
):
    quack_is(monkeypatch, gemm)
    entrant = admitted(*field(CASE, "quack"))
    assert entrant.outcome == outcome and reason in entrant.reason
