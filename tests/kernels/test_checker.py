"""The checker must fail: each mutant is a mistake that a GEMM kernel has made somewhere."""

import pytest
import torch

from tests.harness import Guarded, operand, operands
from tritemm import Config, budget
from tritemm.api import tuning
from tritemm.problem import Problem

M, N, K, BLOCK_K = 96, 80, 512, 32
TYPES = [torch.float16, torch.bfloat16, torch.float32]


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


def rounded_to_bf16_first(a, b):
    return product(a.bfloat16().to(a.dtype), b)


def last_row_dropped(a, b):
    out = product(a, b)
    out[-1] = torch.nan
    return out


def one_element_zero(a, b):
    out = product(a, b)
    out[17, 23] = 0
    return out


def wrong_stride(a, b):
    flat = torch.cat([a.flatten(), a.flatten()])
    return product(flat.as_strided(a.shape, (a.shape[1] + 1, 1)), b)


def swapped_tiles(a, b):
    out = product(a, b)
    out[:32, :32], out[32:64, 32:64] = out[32:64, 32:64].clone(), out[:32, :32].clone()
    return out


MUTANTS = {
    "last block skipped": last_block_skipped,
    "last term skipped": last_term_skipped,
    "last row dropped": last_row_dropped,
    "one element zero": one_element_zero,
    "rows one off": lambda a, b: product(a, b).roll(1, 0),
    "wrong stride": wrong_stride,
    "transposed b": lambda a, b: product(a, b.mT.contiguous().view(b.shape)),
    "swapped tiles": swapped_tiles,
}


@pytest.mark.parametrize("dtype", [*TYPES, torch.float64])
def test_the_right_product_passes(dtype):
    a, b = operands(M, N, K, dtype)
    verdict = budget.check(product(a, b, torch.promote_types(dtype, torch.float32)), a, b)
    assert verdict.ok and (0 < verdict.worst < 1 or dtype == torch.float64), verdict


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_mutants_fail(mutant, dtype):
    a, b = operands(M, N, K, dtype)
    verdict = budget.check(mutant(a, b), a, b)
    assert not verdict.ok, verdict


def in_tf32(a, b):
    return product(tf32(a), tf32(b))


def in_fp32(a, b):
    return product(a, b).to(torch.promote_types(a.dtype, torch.float32))


#: What is less precise than asked: the operands' type, what is made of them, and what was asked.
COARSE = [
    (torch.float16, rounded_to_bf16_first, ["ieee"]),
    (torch.float16, in_fp32, ["ieee"]),
    (torch.float32, rounded_to_bf16_first, ["ieee"]),
    (torch.float32, lambda a, b: rounded_to_bf16_first(a, b.bfloat16().float()), ["tf32"]),
    (torch.float32, in_tf32, ["ieee", "tf32x3", "bf16x3", "bf16x6"]),
    (torch.float64, in_fp32, ["ieee"]),
]


@pytest.mark.parametrize(("dtype", "made", "asked"), COARSE)
def test_less_precision_than_was_asked_fails(dtype, made, asked):
    """In so many elements that one of them shows it, whatever the data."""
    a, b = operands(4 * M, 4 * N, K, dtype)
    for precision in asked:
        assert not budget.check(made(a, b), a, b, precision=precision).ok, precision


def test_tf32_passes_where_it_was_asked():
    a, b = operands(M, N, K, torch.float32)
    assert budget.check(in_tf32(a, b), a, b, precision="tf32").ok


@pytest.mark.parametrize("terms", [256, 1024, 4096])
def test_fp16_accumulation_fails_where_fp32_was_asked(terms):
    a, b = operands(M, N, terms, torch.float16)
    out = accumulate_fp16(a, b)
    assert not budget.check(out, a, b).ok
    assert budget.check(out, a, b, accumulate=torch.float16).ok


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_poison_fails(dtype):
    a, b = operands(M, N, K, dtype)
    verdict = budget.check(Guarded.like((M, N), dtype).tensor, a, b)
    assert not verdict.ok and verdict.worst == torch.inf


def test_a_last_term_is_lost_in_the_bound_of_a_long_sum():
    """Which is why exact operands decide there."""
    a, b = operand(8, 65536, torch.float32).contiguous(), operand(65536, 8, torch.float32)
    assert budget.check(last_term_skipped(a, b), a, b).ok
    a, b = budget.exact_operands(a, b)
    assert not budget.check(last_term_skipped(a, b), a, b).ok


#: M, K, N and the accumulator: few terms and many, more than it counts, in rows and in columns.
EXACT = [
    ((96, 512, 80), torch.float16),
    ((96, 1024, 80), torch.float16),
    ((96, 4099, 80), torch.float16),
    ((2, 4099, 80), torch.float16),
    ((8, 65536, 9), torch.float32),
]


@pytest.mark.parametrize(("size", "accumulate"), EXACT, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_term_of_exact_operands_counts(size, accumulate, dtype):
    M, terms, N = size
    a, b = operands(M, N, terms, dtype, "NT")
    x, y = budget.exact_operands(a, b, accumulate)
    assert (x.stride(), y.stride()) == (a.stride(), b.stride())
    for tensor in (x, y):
        assert set(tensor.unique().tolist()) <= {-1, 0, 1}
    accumulate = {"accumulate": accumulate}
    right = product(x, y)
    assert budget.check(right, x, y, **accumulate).ok
    for mutant in (last_term_skipped, last_block_skipped):
        assert not budget.check(mutant(x, y), x, y, **accumulate).ok
    for k in range(0, terms, terms // 7):
        less = x.clone()
        less[:, k] = 0
        assert not budget.check(product(less, y), x, y, **accumulate).ok, k


@pytest.mark.parametrize("terms", [1024, 2048, 5000])
def test_sums_of_exact_operands_are_exact_in_fp16_in_any_order(terms):
    a, b = budget.exact_operands(*operands(M, N, terms, torch.float16), torch.float16)
    order = torch.randperm(terms)
    for x, y in ((a, b), (a[:, order], b[order])):
        assert torch.equal(accumulate_fp16(x, y).double(), budget.reference(a, b))


def test_tune_finds_a_step_that_the_bound_lets_pass(monkeypatch):
    a, b = operands(M, N, 1024, torch.float16)
    c = torch.empty(M, N, dtype=torch.float16, device=a.device)
    problem = Problem.of(a, b, c, accumulate=torch.float16)
    skipping = {"steps": 64}

    def run(kernel, problem, config, a, b, c):
        last = a.shape[1] - skipping["steps"]
        c.copy_(accumulate_fp16(a[:, :last], b[:last]))

    monkeypatch.setattr(tuning.plan, "run", run)
    run(None, problem, None, a, b, c)
    assert budget.check(c, a, b, accumulate=torch.float16).ok
    assert "elements are wrong" in tuning._wrong(None, problem, Config(64, 64, 64), (a, b, c))
    skipping["steps"] = 0
    assert tuning._wrong(None, problem, Config(64, 64, 64), (a, b, c)) is None


def test_exact_operands_are_stored_like_others():
    """Broadcast, in batches, and as far from a 16-byte boundary."""
    a = operand(20, 30, torch.float16, batch=(3, 1), offset=3).expand(3, 2, -1, -1)
    b = operand(30, 10, torch.float16, "T", batch=(2,)).expand(3, -1, -1, -1)
    for given, made in zip((a, b), budget.exact_operands(a, b), strict=True):
        assert (given.shape, given.stride()) == (made.shape, made.stride())
        assert given.data_ptr() % 16 == made.data_ptr() % 16
        assert made.data_ptr() != given.data_ptr()
    a = operand(5, 5000, torch.float16).expand(3, -1, -1)
    thin, _ = budget.exact_operands(a, operand(5000, 4, torch.float16), torch.float16)
    assert 0 < thin[2].abs().sum(1).max() <= 2048


def test_sums_that_are_too_large_to_be_exact_may_err():
    """And integers that a type does not hold."""
    a = torch.full((4, 4096), 200.0)
    assert budget.check(product(a, a.mT) + 8, a, a.mT).ok
    a = torch.full((4, 16), 2001.0)
    off = product(a, a.mT) * (1 + 2**-11)
    assert budget.check(off, a, a.mT, precision="tf32").ok
    assert not budget.check(off, a, a.mT).ok


def test_int8_is_exact_modulo_two_to_the_32():
    a = torch.full((3, 2**17), -128, dtype=torch.int8)
    want = torch.full((3, 3), -(2**31), dtype=torch.int32)
    assert budget.check(want, a, a.mT).ok
    assert not budget.check(want + 1, a, a.mT).ok


def test_shape_is_checked():
    a, b = operands(M, N, K, torch.float16)
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
