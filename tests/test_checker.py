"""The checker must fail: each mutant is a mistake that a GEMM kernel has made somewhere."""

import pytest
import torch

from tritemm import budget

from .harness import Guarded, operand

M, N, K, BLOCK_K = 96, 80, 512, 32


def product(a, b, dtype=torch.float32):
    return (a.to(dtype) @ b.to(dtype)).to(a.dtype)


def tf32(x):
    """The 10 mantissa bits that tf32 keeps, by truncation."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def accumulate_fp16(a, b):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16, device=a.device)
    for k in range(0, a.shape[1], 16):
        acc = (acc.float() + a[:, k : k + 16].float() @ b[k : k + 16].float()).half()
    return acc


def last_block_skipped(a, b):
    return product(a[:, :-BLOCK_K], b[:-BLOCK_K])


def last_term_skipped(a, b):
    return product(a[:, :-1], b[:-1])


def last_row_dropped(a, b):
    out = product(a, b)
    out[-1] = torch.nan
    return out


def one_element_zero(a, b):
    out = product(a, b)
    out[17, 23] = 0
    return out


def rows_one_off(a, b):
    return product(a, b).roll(1, 0)


def wrong_stride(a, b):
    flat = torch.cat([a.flatten(), a.flatten()])
    return product(flat.as_strided(a.shape, (a.shape[1] + 1, 1)), b)


def transposed_b(a, b):
    return product(a, b.mT.contiguous().view(b.shape))


def swapped_tiles(a, b):
    out = product(a, b)
    out[:32, :32], out[32:64, 32:64] = out[32:64, 32:64].clone(), out[:32, :32].clone()
    return out


def rounded_to_bf16_first(a, b):
    return product(a.bfloat16().to(a.dtype), b)


MUTANTS_OF_EVERY_TYPE = [
    last_block_skipped,
    last_term_skipped,
    last_row_dropped,
    one_element_zero,
    rows_one_off,
    wrong_stride,
    transposed_b,
    swapped_tiles,
]


def operands(dtype):
    return operand(M, K, dtype).contiguous(), operand(K, N, dtype).contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_right_product_passes(dtype):
    a, b = operands(dtype)
    verdict = budget.check(product(a, b), a, b)
    assert verdict.ok and 0 < verdict.worst < 1, verdict


@pytest.mark.parametrize("mutant", MUTANTS_OF_EVERY_TYPE, ids=lambda mutant: mutant.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_mutants_fail(mutant, dtype):
    a, b = operands(dtype)
    verdict = budget.check(mutant(a, b), a, b)
    assert not verdict.ok, verdict


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_operands_rounded_to_bf16_fail(dtype):
    a, b = operands(dtype)
    assert not budget.check(rounded_to_bf16_first(a, b), a, b).ok


def test_tf32_fails_where_ieee_was_asked():
    a, b = operands(torch.float32)
    out = product(tf32(a), tf32(b))
    assert not budget.check(out, a, b).ok
    assert budget.check(out, a, b, precision="tf32").ok


@pytest.mark.parametrize("precision", ["tf32x3", "bf16x3", "bf16x6"])
def test_tf32_fails_where_a_split_was_asked(precision):
    a, b = operands(torch.float32)
    assert not budget.check(product(tf32(a), tf32(b)), a, b, precision=precision).ok


def test_bf16_operands_fail_where_tf32_was_asked():
    a, b = operands(torch.float32)
    out = product(a.bfloat16().float(), b.bfloat16().float())
    assert not budget.check(out, a, b, precision="tf32").ok


@pytest.mark.parametrize("terms", [256, 1024, 4096])
def test_fp16_accumulation_fails_where_fp32_was_asked(terms):
    a, b = operand(M, terms, torch.float16), operand(terms, N, torch.float16)
    out = accumulate_fp16(a, b)
    assert not budget.check(out, a, b).ok
    assert budget.check(out, a, b, accumulate=torch.float16).ok


def test_fp32_accumulation_fails_where_fp64_was_asked():
    a, b = operands(torch.float64)
    assert not budget.check((a.float() @ b.float()).double(), a, b).ok
    assert budget.check(a @ b, a, b).ok


def test_fp16_result_fails_where_fp32_was_asked():
    a, b = operands(torch.float16)
    assert not budget.check(product(a, b).float(), a, b).ok


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_poison_fails(dtype):
    a, b = operands(dtype)
    verdict = budget.check(Guarded.like((M, N), dtype).tensor, a, b)
    assert not verdict.ok and verdict.worst == torch.inf


def test_int8_is_exact_modulo_two_to_the_32():
    a = torch.full((3, 2**17), -128, dtype=torch.int8)
    want = torch.full((3, 3), -(2**31), dtype=torch.int32)
    assert budget.check(want, a, a.mT).ok
    assert not budget.check(want + 1, a, a.mT).ok


def test_shape_is_checked():
    a, b = operands(torch.float16)
    assert not budget.check(product(a, b).mT, a, b).ok


@pytest.mark.parametrize("where", ["before", "after", "pitch"])
def test_guard_bands_notice_a_write(where):
    guarded = Guarded.like((8, 10), torch.float16, pitch_gap=6)
    guarded.tensor.fill_(1)
    guarded.assert_untouched_outside()
    first = guarded.tensor.storage_offset()
    index = {"before": first - 1, "after": first + 8 * 16, "pitch": first + 10}[where]
    guarded.storage[index] = 1
    with pytest.raises(AssertionError):
        guarded.assert_untouched_outside()
