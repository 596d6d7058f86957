"""Device helpers that several rungs share: addressing, the dot, the epilogue.

Nothing here is a rung's idea. Sizes are in elements; tiles are `[BLOCK_M, BLOCK_N]`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...machine import interpreter
from .epilogue_ops import EpilogueArgs as EpilogueArgs
from .epilogue_ops import Strides as Strides
from .epilogue_ops import combine, load_operands
from .offsets import batch_offset as batch_offset
from .offsets import widen as widen

#: True when kernels run in Triton's interpreter, which needs two corrections below.
INTERPRETED = tl.constexpr(interpreter.INTERPRETED)


@triton.jit
def follow(PDL: tl.constexpr):
    """Let the next launch begin, and wait for the previous one: programmatic dependent launch.

    Comes before the first access to memory.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b in acc's type; `PRECISION` says how fp32 operands are multiplied.

    The interpreter multiplies bf16 bit patterns and supports no split precisions, so there such
    operands are widened to fp32, which is exact, and fp32 is multiplied as fp32.
    """
    if INTERPRETED:
        if a.dtype == tl.bfloat16 or a.dtype.is_fp8():
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc


@triton.jit
def apply_epilogue(acc, args, b0, b1, offs_m, offs_n, M, N,
                   BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
                   A_LINES: tl.constexpr = 1, B_LINES: tl.constexpr = 1):  # fmt: skip
    """The elements of C at `offs_m` and `offs_n` of batch (b0, b1), before they are rounded.

    `args` are `EpilogueArgs`; the bias runs along the rows of C if `BIAS` is "m", else the columns.
    """
    loaded = load_operands(
        args, b0, b1, offs_m, offs_n, M, N, BIAS, A_LINES=A_LINES, B_LINES=B_LINES
    )
    return combine(acc, args, loaded, ACTIVATION)


@triton.jit
def convert(acc, dtype: tl.constexpr):
    """`acc` rounded to nearest even in `dtype` (the interpreter truncates to bf16)."""
    if INTERPRETED and dtype == tl.bfloat16:
        acc = acc.to(tl.float32)
        bits = acc.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        rounded = bits.to(tl.float32, bitcast=True)
        acc = tl.where(acc == acc, rounded, acc)
    return acc.to(dtype)


@triton.jit
def store(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn):
    """Write the part of the tile that is inside M x N; c_ptr points at the batch's first row."""
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, convert(acc, c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_mirrored(c_ptr, acc, offs_m, offs_n, N, stride_cm, stride_cn):
    """Write the part of the tile on or below the diagonal of N x N, and its mirror above it."""
    acc = convert(acc, c_ptr.dtype.element_ty)
    rows, cols = offs_m[:, None], offs_n[None, :]
    mask = (rows < N) & (cols < N)
    tl.store(c_ptr + rows * stride_cm + cols * stride_cn, acc, mask=mask & (rows >= cols))
    tl.store(c_ptr + cols * stride_cm + rows * stride_cn, acc, mask=mask & (rows > cols))


@triton.jit
def load_tile(desc, b0, b1, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
              MAJOR: tl.constexpr, BATCHED: tl.constexpr):  # fmt: skip
    """The [ROWS, COLS] tile at (row, col) of a matrix stored by rows ("N") or columns ("T")."""
    if MAJOR == "T":
        tile = load_box(desc, b0, b1, col, row, COLS, ROWS, BATCHED).T
    else:
        tile = load_box(desc, b0, b1, row, col, ROWS, COLS, BATCHED)
    return tile


@triton.jit
def load_box(desc, b0, b1, i, j, I: tl.constexpr, J: tl.constexpr, BATCHED: tl.constexpr):
    """The [I, J] box at (i, j) of batch (b0, b1); a broadcast batch has extent 1."""
    if BATCHED:
        b0 = tl.minimum(b0, desc.shape[0] - 1)
        b1 = tl.minimum(b1, desc.shape[1] - 1)
        box = desc.load([b0, b1, i, j]).reshape(I, J)
    else:
        box = desc.load([i, j])
    return box


@triton.jit
def store_tile(c_desc, c_ptr, acc, b0, b1, row, col, M, N,
               strides, epilogue, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
               TMA_STORE: tl.constexpr, BATCHED: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """Apply the epilogue and store the tile at (row, col) of batch (b0, b1), by TMA if `TMA_STORE`.

    `strides` are `Strides`, `epilogue` are `EpilogueArgs`.
    """
    offs_m = widen(row + tl.arange(0, acc.shape[0]), WIDE)
    offs_n = widen(col + tl.arange(0, acc.shape[1]), WIDE)
    acc = apply_epilogue(acc, epilogue, b0, b1, offs_m, offs_n, M, N, BIAS, ACTIVATION)
    if TMA_STORE:
        tile = convert(acc, c_desc.dtype)
        if BATCHED:
            c_desc.store([b0, b1, row, col], tile.reshape(1, 1, tile.shape[0], tile.shape[1]))
        else:
            c_desc.store([row, col], tile)
    else:
        c_ptr += batch_offset(b0, b1, strides.b0, strides.b1)
        store(c_ptr, acc, offs_m, offs_n, M, N, strides.m, strides.n)
