"""torch.matmul and tritemm.matmul on the same inputs: value, shape, stride, dtype, exception."""

import itertools
import warnings

import pytest
import torch

import tritemm
from tests.harness import DEVICE, assert_right, operand, typed
from tests.torch.twins import outcome
from tritemm import plan
from tritemm.rungs import RUNGS, find

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [
    ((5,), (5,)),
    ((4, 5), (5,)),
    ((5,), (5, 6)),
    ((4, 5), (5, 6)),
    ((3, 4, 5), (5,)),
    ((5,), (3, 5, 6)),
    ((3, 4, 5), (5, 6)),
    ((4, 5), (3, 5, 6)),
    ((3, 4, 5), (3, 5, 6)),
    ((3, 1, 4, 5), (2, 5, 6)),
    ((2, 1, 4, 5), (1, 3, 5, 6)),
    ((2, 3, 4, 5), (2, 1, 5, 6)),
    ((2, 3, 4, 5), (5,)),
    ((5,), (2, 3, 5, 6)),
    ((0, 0), (3, 0, 0)),
    ((2, 1, 3, 1, 4, 5), (1, 2, 1, 2, 5, 6)),
    ((1, 1, 1), (1, 1)),
    ((0,), (0,)),
    ((0, 5), (5, 6)),
    ((4, 0), (0, 6)),
    ((4, 5), (5, 0)),
    ((0, 4, 5), (5, 6)),
    ((3, 0, 5), (5, 6)),
    ((0, 4, 5), (0, 5, 6)),
    ((3, 4, 0), (3, 0, 6)),
    ((0,), (0, 6)),
    ((4, 0), (0,)),
]
WRONG_SHAPES = [
    ((), (5,)),
    ((5,), ()),
    ((5,), (4,)),
    ((4, 5), (4, 6)),
    ((4, 5), (4,)),
    ((5,), (4, 6)),
    ((2, 4, 5), (3, 5, 6)),
    ((2, 4, 5), (2, 4, 6)),
    ((2, 3, 4, 5), (2, 4, 5, 6)),
]


def assert_twins(a, b, **options):
    want = outcome(lambda: torch.matmul(a, b))
    got = outcome(lambda: tritemm.matmul(a, b, **options))
    if isinstance(want, type):
        assert isinstance(got, type) and issubclass(got, want), f"{got}, torch: {want}"
        return
    assert isinstance(got, torch.Tensor), got
    assert (got.shape, got.stride(), got.dtype, got.device) == (
        want.shape, want.stride(), want.dtype, want.device,
    )  # fmt: skip
    assert_right(got, a, b)


@pytest.mark.parametrize("shapes", WRONG_SHAPES, ids=str)
def test_wrong_shapes(shapes):
    a, b = (torch.randn(shape, device=DEVICE) for shape in shapes)
    assert_twins(a, b)
    with pytest.raises(RuntimeError) as error:
        tritemm.matmul(a, b)
    told = str(error.value)
    assert str(tuple(a.shape)) in told or "broadcast" in told or "0D" in told


def views(shape):
    """The same shape through every kind of stride."""
    rows, cols = shape
    yield "contiguous", torch.randn(rows, cols, device=DEVICE)
    yield "transposed", torch.randn(cols, rows, device=DEVICE).mT
    yield "sliced", torch.randn(rows + 2, 2 * cols + 1, device=DEVICE)[1:-1, 1::2]
    yield "expanded", torch.randn(cols, device=DEVICE).expand(rows, cols)
    yield "reversed", torch.randn(rows, cols, device=DEVICE).flip(0).mT.flip(0).mT
    yield "fortran slice", torch.randn(cols + 3, rows + 1, device=DEVICE)[3:, 1:].mT


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(a, b, id=f"{name_a} @ {name_b}")
        for (name_a, a), (name_b, b) in itertools.product(views((9, 16)), views((16, 12)))
    ],
)
def test_strides(a, b):
    assert_twins(a, b)


# How operands are read


def test_batched_views_are_read_in_place():
    """No copy of an operand whose batches a kernel can stride over."""
    q = torch.randn(2, 20, 3, 16, device=DEVICE).transpose(1, 2)
    k = torch.randn(2, 24, 3, 16, device=DEVICE).transpose(1, 2)
    out = torch.empty(2, 3, 20, 24, device=DEVICE)
    _, a, b, c = plan.matrices(q, k.mT, out, "ieee", None)
    assert (a.data_ptr(), b.data_ptr(), c.data_ptr()) == (
        q.data_ptr(), k.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    assert_twins(q, k.mT)


def test_a_stack_times_one_matrix_is_one_large_product():
    a, b = torch.empty(2, 3, 4, 5, device=DEVICE), torch.empty(5, 6, device=DEVICE)
    problem, *_ = plan.matrices(a, b, torch.empty(2, 3, 4, 6, device=DEVICE), "ieee", None)
    assert (problem.M, problem.batch) == (24, 1)


@pytest.mark.parametrize("stride", [5, 1, 7, 40])
def test_a_row_of_each_of_a_stack_is_one_product(stride):
    """One token of each sequence: the only row's stride may be anything."""
    a = torch.randn(8, 5, device=DEVICE).as_strided((8, 1, 5), (5, stride, 1))
    b, out = torch.randn(5, 6, device=DEVICE), torch.empty(8, 1, 6, device=DEVICE)
    for c in (out, out.as_strided((8, 1, 6), (6, stride, 1))):
        problem, x, *_ = plan.matrices(a, b, c, "ieee", None)
        assert (problem.M, problem.batch) == (8, 1) and x.data_ptr() == a.data_ptr()
    assert_twins(a, b)


# Types and layouts


def test_int8_gives_int32():
    a = operand(7, 100, torch.int8)
    out = tritemm.matmul(a, a.mT)
    assert out.dtype == torch.int32
    assert_right(out, a, a.mT)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_other_types_are_refused_by_name(dtype):
    a = torch.ones(3, 3, device=DEVICE).to(dtype)
    with pytest.raises(NotImplementedError, match=str(dtype)):
        tritemm.matmul(a, a)


DENSE = {
    "": lambda a, bad: tritemm.matmul(bad, a),
    "other": lambda a, bad: tritemm.matmul(a, bad),
    "; out is": lambda a, bad: tritemm.matmul(a, a, out=bad),
    "; bias is": lambda a, bad: tritemm.matmul(a, a, bias=bad),
    "; residual is": lambda a, bad: tritemm.matmul(a, a, residual=bad),
    "; input is": lambda a, bad: tritemm.addmm(bad, a, a),
}


@pytest.mark.filterwarnings("ignore:.*(nested|CSR)")
@pytest.mark.parametrize("told", DENSE)
def test_what_is_not_dense_is_refused(told):
    a = torch.eye(3, device=DEVICE)
    tritemm.matmul(a, a)  # its kind of call is known from here on
    for bad, fix in (
        (a.to_sparse(), "to_dense"),
        (a.to_sparse_csr(), "to_dense"),
        (torch.nested.nested_tensor([a[0], a[1], a[2]]), "to_padded_tensor"),
        (torch.nested.nested_tensor([a, a[:2]]), "to_padded_tensor"),
    ):
        with pytest.raises(NotImplementedError, match=f"{told}.*{fix}"):
            DENSE[told](a, bad)


@pytest.mark.skipif(DEVICE != "cpu", reason="the interpreter")
def test_bf16_numbers_survive_the_interpreter():
    """All subnormal ones, and some of every exponent, infinities and NaN among them."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    some = torch.cat([every[every.abs() < 2.0**-126], every[::67], every[every.isinf()]])
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    for out_dtype in (torch.bfloat16, torch.float32):
        got = tritemm.matmul(some[:, None], one, out_dtype=out_dtype)
        torch.testing.assert_close(got[:, 0], some.to(out_dtype), rtol=0, atol=0, equal_nan=True)


REFUSED = [
    (torch.float32, {"kernel": "fastest"}, ", ".join(kernel.name for kernel in RUNGS)),
    *((torch.float32, {"precision": word}, "bf16x3") for word in ("tf16", "high", "")),
    (torch.float16, {"precision": "tf32"}, r"float32.*float16"),
    *((dtype, {"accumulate": torch.float16}, "accumulate") for dtype in FLOATS[1:]),
    (torch.float64, {"out_dtype": torch.float32}, "out_dtype"),
    (torch.int8, {"out_dtype": torch.float32}, "int32"),
]


@pytest.mark.parametrize(("dtype", "options", "told"), REFUSED)
def test_options_that_are_refused(dtype, options, told):
    a = torch.ones(4, 4, device=DEVICE, dtype=dtype)
    with pytest.raises(ValueError, match=told):
        tritemm.matmul(a, a, **options)


def refusals(choice):
    """By name of the rung; those apart that multiply another type or don't run here at all."""
    dtype = choice.problem.a.dtype
    return {
        name: reason for name, reason in choice.refused
        if "Gluon" not in reason and typed(find(name), dtype) == dtype
    }  # fmt: skip


def test_refusal_names_the_reason_and_a_kernel_that_can():
    a = torch.ones(8, 10, device=DEVICE, dtype=torch.float16)
    refused = refusals(tritemm.explain(a, a.mT))
    assert refused
    for name, reason in refused.items():
        how = "a copy of 16 bytes" if find(name).number < 8 else "TMA"
        assert reason == f"row stride of a is 20 bytes; {how} needs a multiple of 16"
        with pytest.raises(ValueError, match=f'"{name}".*{reason}; kernel="'):
            tritemm.matmul(a, a.mT, kernel=name)


def test_types_of_sums_and_results():
    a = operand(32, 512, torch.float16)
    assert tritemm.matmul(a, a.mT, precision="ieee").dtype == torch.float16
    for dtype in (torch.float16, torch.float32):
        assert tritemm.matmul(a, a.mT, accumulate=dtype).dtype == torch.float16
    for dtype in FLOATS[:3]:
        out = tritemm.matmul(a, a.mT, out_dtype=dtype)
        assert out.dtype == dtype
        assert_right(out, a, a.mT)


def test_precision_is_torchs_flag_unless_it_is_named():
    def precision(dtype=torch.float32, **options):
        a = torch.ones(4, 4, device=DEVICE, dtype=dtype)
        return tritemm.explain(a, a, **options).problem.precision

    flags = torch.backends.cuda.matmul  # which `conftest` puts back
    for word in ("ieee", "tf32"):
        flags.fp32_precision = word
        assert precision() == word
    assert precision(precision="ieee") == precision(torch.float16) == "ieee"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for allowed, word in ((True, "tf32"), (False, "ieee")):
            flags.allow_tf32 = allowed
            assert precision() == word


def test_explain_says_kernel_reason_and_refusals():
    a = torch.ones(33, 37, device=DEVICE, dtype=torch.bfloat16)
    choice = tritemm.explain(a, a.mT)
    text = str(choice)
    assert choice.kernel.name in text and str(choice.config) in text
    for name, reason in choice.refused:
        assert name in text and reason in text
    [reason, *_] = refusals(choice).values()
    assert reason == "row stride of a is 74 bytes; TMA needs a multiple of 16"
    assert "roofline" in text or "interpreter" in text
    assert choice.roofline > 0


def test_explain_of_nothing():
    a = torch.ones(3, 0, device=DEVICE)
    with pytest.raises(ValueError, match="K = 0"):
        tritemm.explain(a, a.mT)


@pytest.mark.gpu
def test_cpu_tensors_are_refused_where_there_is_a_gpu():
    with pytest.raises(RuntimeError, match=r"\.cuda\(\)"):
        tritemm.matmul(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="same device"):
        tritemm.matmul(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))
