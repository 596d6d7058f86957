"""The binding of cuBLASLt: what it says of tensors, to a library that does just what it is told."""

import ctypes
import gc
import itertools

import pytest
import torch

from perf import cublaslt
from perf.cublaslt import Layout, Library, Product

from .fake_cublaslt import FakeLibrary

pytestmark = pytest.mark.host

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


CASES = list(
    itertools.product(("NN", "NT", "TN", "TT"), ((), (1,), (3,)), (0, 3), (None, torch.float32))
)


@pytest.mark.parametrize(("layout", "batch", "pad", "out"), CASES)
def test_each_layout_is_said_so_that_the_product_comes_out(layout, batch, pad, out):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a = matrix(M, K, layout[0], dtype, batch, pad)
        b = matrix(K, N, layout[1], dtype, batch, pad)
        c = matrix(M, N, "N", out or dtype, batch, pad, fill=GUARD)
        made, library = product(a, b, c)
        made.run(1, a, b, c)
        close(c, a, b)
        assert (library.launched, library.streams) == ([1], [1234567890123])
        whole = torch.as_strided(c, (*batch, M, N + pad), c.stride())
        assert (whole[..., N:] == GUARD).all()  # a wrong leading dimension writes there


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "sizes", [(1, 5, 6), (7, 1, 6), (7, 5, 1), (1, 1, 6), (1, 5, 1), (1, 1, 1)]
)
def test_dimensions_of_one_have_a_leading_dimension_too(layout, sizes):
    """Torch gives them any stride, and cuBLASLt refuses one that is shorter than a column."""
    m, n, k = sizes
    a, b = matrix(m, k, layout[0], torch.bfloat16), matrix(k, n, layout[1], torch.bfloat16)
    c = torch.full((m, n), GUARD, dtype=torch.bfloat16)
    product(a, b, c)[0].run(0, a, b, c)
    close(c, a, b)


def test_a_vector_is_one_long_column():
    """Of columns of one element each, none but the first would be aligned."""
    row = torch.randn(1, 4096).mT.contiguous().mT  # strides (1, 1)
    assert (Layout.of(row), Layout.of(row.mT)) == (
        Layout(4096, 1, 4096, False),
        Layout(4096, 1, 4096, True),
    )


def test_a_product_is_reused_for_other_tensors_of_its_geometry():
    a, b, c = (torch.randn(4, 4).half() for _ in range(3))
    made, library = product(a, b, c)
    other = [torch.randn(4, 4).half() for _ in range(3)]
    before = c.clone()
    made.run(2, *other)
    close(other[2], *other[:2])
    assert torch.equal(c, before) and library.launched == [2]


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


def test_an_unknown_precision_is_refused():
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
