"""What only a GPU shows: offsets past 2**31, many batches, real sizes, long sums."""

import pytest
import torch

import tritemm
from tests.harness import assert_right, operand, operands, run, rungs, typed
from tritemm import dispatch, plan
from tritemm.problem import Problem

pytestmark = pytest.mark.gpu


def multiply(kernel, a, b, c):
    problem = Problem.of(a, b, c)
    reason = kernel.why_not(problem)
    assert reason is None, reason
    config = dispatch.best_config(kernel, problem)
    room = kernel.workspace(config.view(problem), config) if kernel.workspace else None
    if room and room.bytes > torch.cuda.get_device_properties(0).total_memory / 2:
        pytest.skip(f"its partial sums take {room.bytes / 1e9:.0f} GB of device memory")
    plan.run(kernel, problem, config, a, b, c)


def multiply_and_check_ends(kernel, a, b):
    """Every element is written; the first and the last rows are compared."""
    M, N = a.shape[0], b.shape[1]
    c = torch.full((M, N), torch.nan, dtype=a.dtype, device="cuda")
    multiply(kernel, a, b, c)
    for rows in (slice(0, 256), slice(M - 256, M)):
        assert_right(c[rows], a[rows], b)
    assert all(rows.isfinite().all() for rows in c.split(2**12))  # whole, it takes 9 GB


@pytest.mark.large(5)
@rungs
def test_operand_past_two_to_the_31(kernel):
    M, N, K = 2**17 + 200, 64, 2**14
    assert M * K > 2**31
    dtype = typed(kernel, torch.float16)
    a = torch.empty(M, K, dtype=dtype, device="cuda").normal_()
    b = operand(K, N, dtype)
    multiply_and_check_ends(kernel, a, b)


@pytest.mark.large(6)
@rungs
def test_result_past_two_to_the_31(kernel):
    M, N, K = 2**16 + 8, 2**15 + 256, 80
    assert M * N > 2**31
    multiply_and_check_ends(kernel, *operands(M, N, K, typed(kernel, torch.float16)))


@pytest.mark.large(6)
@rungs
def test_columns_and_batches_far_apart(kernel):
    """A row stride of 2**25 and a batch stride past 2**31: both products overflow int32."""
    dtype = typed(kernel, torch.float16)
    storage = torch.empty(2**31 + 2**28, dtype=dtype, device="cuda")
    a = storage.as_strided((2, 80, 72), (2**31 + 64, 2**21, 1))
    wide = storage.as_strided((72, 80), (2**25, 1), 256)
    for view in (a, wide):
        view.normal_()
    c = torch.full((2, 80, 80), torch.nan, dtype=dtype, device="cuda")
    multiply(kernel, a, wide.expand(2, -1, -1), c)
    assert_right(c, a, wide)


def test_many_batches():
    """More than the 65535 that a CUDA grid takes in its second dimension."""
    a = torch.randn(70_000, 16, 16, dtype=torch.float16, device="cuda")
    assert_right(tritemm.matmul(a, a.mT), a, a.mT)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("size", [(1024, 1536, 2048), (1000, 1544, 2056)], ids=str)
@rungs
def test_real_sizes(kernel, layout, size):
    """Many tiles, many k-steps, in the config that dispatch takes."""
    M, N, K = size
    a, b = operands(M, N, K, typed(kernel, torch.bfloat16), layout)
    assert_right(tritemm.matmul(a, b, kernel=kernel.name), a, b)


@rungs
@pytest.mark.parametrize("accumulate", [None, torch.float16], ids=["fp32", "fp16"])
def test_every_term_of_a_long_sum(kernel, accumulate):
    """Exact sums show one that is lost; the error bound is wider than a term here."""
    dtype = typed(kernel, torch.float16)
    if accumulate and dtype != accumulate:
        pytest.skip(f"{kernel.name} takes {dtype} alone")
    reason = run(kernel, *operands(133, 72, 2**16, dtype, "NT"), accumulate=accumulate)
    assert reason is None or (accumulate and "32 bits" in reason)


@rungs
def test_same_bits_every_time(kernel):
    a, b = operands(700, 648, 520, typed(kernel, torch.bfloat16))
    first = tritemm.matmul(a, b, kernel=kernel.name)
    for _ in range(50):
        assert torch.equal(first, tritemm.matmul(a, b, kernel=kernel.name))
