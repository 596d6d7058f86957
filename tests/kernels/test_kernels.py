"""Every rung on every shape, layout and type; each run is poisoned, guarded and checked.

Parameters meet in pairs, see `sweep`.
"""

import dataclasses

import pytest
import torch

from tests.harness import (
    DEVICE,
    Guarded,
    ids,
    operand,
    operands,
    run,
    rung_param,
    rung_sweep,
    rungs,
    typed,
)
from tritemm import dispatch, plan
from tritemm.problem import INTERPRETED, Problem
from tritemm.rungs import RUNGS

#: (dtype, precision, accumulate, out_dtype)
TYPES = [
    (torch.float16, "ieee", None, None),
    (torch.float16, "ieee", torch.float16, None),
    (torch.float16, "ieee", None, torch.float32),
    (torch.bfloat16, "ieee", None, None),
    (torch.bfloat16, "ieee", None, torch.float32),
    (torch.bfloat16, "ieee", None, torch.float16),
    (torch.float32, "ieee", None, None),
    (torch.float32, "tf32", None, None),
    (torch.float32, "tf32x3", None, None),
    (torch.float32, "bf16x3", None, None),
    (torch.float32, "bf16x6", None, torch.bfloat16),
    (torch.float64, "ieee", None, None),
    (torch.int8, "ieee", None, None),
]


#: Terms that every rung takes; where there are fewer, it may say that they are too few.
ENOUGH = 128
#: Terms of the small problems of both kinds; on a GPU a cluster shares them.
TERMS = 48 if INTERPRETED else 80


def short(value):
    return str(value).removeprefix("torch.") if value is not None else "default"


def tile_of(kernel):
    """The tile that the rung uses for a problem of middling size, of 16 bits if it takes them."""
    a = torch.empty(1024, 1024, dtype=typed(kernel, torch.bfloat16), device=DEVICE)
    problem = Problem.of(a, a, a)
    return dispatch.best_config(kernel, problem) if INTERPRETED else kernel.configs(problem)[0]


def rows_of(kernel, most):
    """`most` rows of A, or as many as make two tiles and a row more."""
    return min(most, 2 * tile_of(kernel).BLOCK_M + 1)


def shapes(tile):
    """(M, N, K) that have gone wrong somewhere: empty, single, prime, tile +- 1, short K."""
    m, n, k = tile.BLOCK_M, tile.BLOCK_N, tile.BLOCK_K
    return {
        "one": (1, 1, 1),
        "row": (1, n + 5, 2 * k + 1),
        "column": (m + 5, 1, 2 * k + 1),
        "inner": (m - 3, n - 3, 1),
        "prime": (37, 53, 41),
        "exact": (2 * m, n, 3 * k),
        "below": (m - 1, n - 1, 2 * k - 1),
        "above": (m + 1, n + 1, 2 * k + 1),
        "short_k": (m, n, k),
        "shorter_k": (m + 2, n - 2, k // 2 + 1),
        "tall": (5 * m + 3, 3, 17),
        "flat": (3, 5 * n + 3, 17),
        "no_rows": (0, 5, 7),
        "no_columns": (5, 0, 7),
        "no_terms": (5, 7, 0),
        "nothing": (0, 0, 0),
    }


@rung_sweep(shape=ids(shapes(tile_of(RUNGS[0]))), aligned={"natural": False, "padded": True})
def test_shapes(kernel, shape, aligned):
    M, N, K = shapes(tile_of(kernel))[shape]
    a, b = operands(M, N, K, typed(kernel, torch.bfloat16), aligned=aligned)
    if 0 in (M, N, K):
        guarded = Guarded.like((M, N), a.dtype)
        problem = Problem.of(a, b, guarded.tensor)
        plan.run(kernel, problem, tile_of(kernel), a, b, guarded.tensor)
        assert torch.equal(guarded.tensor, torch.zeros_like(guarded.tensor))
        guarded.assert_untouched_outside()
        return
    reason = run(kernel, a, b)
    if reason and K < ENOUGH and f"K is {K};" in reason:
        pytest.skip(reason)
    if aligned:
        assert reason is None
    elif reason:
        assert "multiple of 16" in reason


@rung_sweep(
    layout=ids(["NN", "NT", "TN", "TT"]),
    types=ids(TYPES, lambda types: "-".join(map(short, types))),
)
def test_types(kernel, layout, types):
    dtype, precision, accumulate, out_dtype = types
    a, b = operands(rows_of(kernel, 70), 90, 100, dtype, layout, aligned=True)
    options = {"precision": precision, "accumulate": accumulate, "out_dtype": out_dtype}
    reason = run(kernel, a, b, **options)
    every = "every type" in kernel.header["Needs"]
    alone = kernel.limits.dtype
    if (
        every
        or (accumulate is None and (dtype, precision) == (alone, "ieee"))
        or (dtype.itemsize == 2 and accumulate is None and not alone)
    ):
        assert reason is None


@rungs
@pytest.mark.parametrize("layout", ["SN", "NS", "ST", "TS", "SS"])
def test_strided(kernel, layout):
    reason = run(
        kernel, *operands(rows_of(kernel, 45), 61, 50, typed(kernel, torch.float16), layout)
    )
    assert reason is None or "TMA" in reason or "copy of 16 bytes" in reason


@rungs
@pytest.mark.parametrize("offset", [1, 8])
def test_storage_offset(kernel, offset):
    a, b = operands(
        rows_of(kernel, 45), 64, TERMS, typed(kernel, torch.float16), "NT", offset=offset
    )
    reason = run(kernel, a, b)
    assert reason is None or (offset == 1 and "16-byte boundary" in reason)


@rung_sweep(axis=ids([0, 1]), which=ids("ab"))
def test_expanded(kernel, axis, which):
    """A broadcast row or column has stride 0 inside the matrix."""
    a, b = operands(40, 56, TERMS, typed(kernel, torch.float16))
    if which == "a":
        a = a.select(axis, 3).unsqueeze(axis).expand_as(a)
    else:
        b = b.select(axis, 3).unsqueeze(axis).expand_as(b)
    reason = run(kernel, a, b)
    assert reason is None or "TMA" in reason or "copy of 16 bytes" in reason


@rungs
@pytest.mark.parametrize("out", ["pitch", "transposed", "odd"])
def test_output_strides(kernel, out):
    """Results land in padded, transposed and odd-pitched outputs without touching the rest."""
    a, b = operands(rows_of(kernel, 70), 72, TERMS, typed(kernel, torch.float16))
    guard = {"pitch": {"pitch_gap": 8}, "transposed": {"transposed": True}, "odd": {"pitch_gap": 3}}
    assert run(kernel, a, b, **guard[out]) is None


@rungs
@pytest.mark.parametrize("columns", range(65, 73))
def test_stores_stay_inside_a_row(kernel, columns):
    """Rows end inside a 16-byte piece, and what follows in the pitch belongs to someone else."""
    a = operand(rows_of(kernel, 40), TERMS, typed(kernel, torch.bfloat16))
    b = operand(TERMS, columns, typed(kernel, torch.bfloat16), aligned=True)
    assert run(kernel, a, b, pitch_gap=80 - columns) is None


BATCHES = {
    "stack": ((5,), (5,)),
    "two_level": ((2, 3), (2, 3)),
    "broadcast_a": ((1,), (4,)),
    "broadcast_b": ((4,), (1,)),
    "crossed": ((3, 1), (1, 2)),
}


@pytest.mark.wide
@rung_sweep(batch=ids(BATCHES), layout=ids(["NN", "TT"]))
def test_batches(kernel, batch, layout):
    """Every batch in one launch, broadcast ones through a stride of 0."""
    batch_a, batch_b = BATCHES[batch]
    a = operand(
        rows_of(kernel, 33), TERMS, typed(kernel, torch.float16), layout[0], batch_a, aligned=True
    )
    b = operand(TERMS, 48, typed(kernel, torch.float16), layout[1], batch_b, aligned=True)
    shape = torch.broadcast_shapes(batch_a, batch_b)
    assert run(kernel, a.expand(*shape, -1, -1), b.expand(*shape, -1, -1)) is None


@pytest.mark.latest
@rungs
def test_attention_heads_in_place(kernel):
    """[B, S, H, D] seen as [B, H, S, D] has two batch strides that don't merge."""
    rows = rows_of(kernel, 35)
    q = (
        operand(rows * 3, TERMS, typed(kernel, torch.float16), batch=(2,))
        .view(2, rows, 3, TERMS)
        .transpose(1, 2)
    )
    k = (
        operand(50 * 3, TERMS, typed(kernel, torch.float16), batch=(2,))
        .view(2, 50, 3, TERMS)
        .transpose(1, 2)
    )
    assert run(kernel, q, k.mT) is None


def every_config():
    """(kernel, config index) for each config that a problem of its type may be given."""

    def problem(kernel):
        empty = torch.empty(256, 256, dtype=typed(kernel, torch.bfloat16), device=DEVICE)
        return Problem.of(empty, empty, empty)

    return [
        rung_param(kernel, i, name=f"{kernel.name}-{i}")
        for kernel in RUNGS
        if not kernel.why_not(problem(kernel))
        for i in range(len(kernel.configs(problem(kernel))))
    ]


@pytest.mark.wide
@pytest.mark.parametrize(("kernel", "index"), every_config())
def test_configs(kernel, index):
    """Each config that dispatch may choose, on several tiles and k-steps with ragged edges."""
    M, N, K = (rows_of(kernel, 80), 96, 112) if INTERPRETED else (608, 816, 464)
    a, b = operands(M, N, K, typed(kernel, torch.bfloat16), aligned=True)
    c = torch.empty(M, N, dtype=a.dtype, device="meta")
    config = kernel.configs(Problem.of(a, b, c))[index]
    assert run(kernel, a, b, config=config) is None


@pytest.mark.wide
@pytest.mark.parametrize(
    "kernel", [rung_param(k) for k in RUNGS if {"ORDER", "SHAPE"} & set(k.fn.arg_names)]
)
@pytest.mark.parametrize("order", ["linear", "serpentine", "grouped"])
def test_raster_orders(kernel, order):
    """Each order visits every tile once: 5 x 19 tiles are two stripes, the second one ragged."""
    config = dataclasses.replace(kernel.interpreted or tile_of(kernel), ORDER=order, GROUP_M=3)
    if not INTERPRETED and kernel.interpreted:
        config = dataclasses.replace(config, BLOCK_M=64, BLOCK_N=32, BLOCK_K=32)
    # A step for each part of K at least, which a rung that shares K waits for.
    terms = 16 if INTERPRETED else max(TERMS, config.BLOCK_K * config.SPLIT_K)
    a, b = operands(
        4 * config.BLOCK_M + 7, 18 * config.BLOCK_N + 8, terms, typed(kernel, torch.float16)
    )
    assert run(kernel, a, b, config=config) is None


@pytest.mark.latest
@rungs
def test_infinities_and_nan_pass_through(kernel):
    a, b = operands(40, 40, TERMS, typed(kernel, torch.float16))
    a[3, 5], b[7, 9] = torch.inf, torch.nan
    assert run(kernel, a, b) is None


@rungs
def test_large_int8_products_wrap(kernel):
    """-128 * -128 * 2**17 is 2**31, one more than int32 holds."""
    a = torch.full((16, 2**17), -128, dtype=torch.int8, device=DEVICE)
    if INTERPRETED:
        a = a[:, : 2**9].contiguous()  # the same code in a time that the interpreter can meet
    reason = run(kernel, a, a.mT)
    assert reason is None or "saturates" in reason or "16 bits" in reason or kernel.limits.dtype
