"""One tile by Gluon's functions for the tensor core: `mma_v2` (a warp) and `warpgroup_mma`.

A and B are stored along K.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

#: Its name changes after Triton 3.6.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def places(pointer, row_stride, col_stride, ROWS: gl.constexpr, COLS: gl.constexpr,
           LAYOUT: gl.constexpr):  # fmt: skip
    """Pointers to a matrix with these strides, in this layout."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))
    return pointer + rows[:, None] * row_stride + cols[None, :] * col_stride


@gluon.jit
def mma_v2_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
    PRECISION: gl.constexpr, ACC: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """D = A B + C by one warp; the operands come in the fragments' layouts."""
    WIDTH: gl.constexpr = max(1, 32 // a_ptr.dtype.element_ty.primitive_bitwidth)
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, WIDTH)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, WIDTH)
    a = gl.load(places(a_ptr, K, 1, M, K, A))
    b = gl.load(places(b_ptr, 1, K, K, N, B))
    c = gl.load(places(c_ptr, N, 1, M, N, MMA))
    d = mma_v2(a, b, c.to(ACC), input_precision=PRECISION)
    gl.store(places(d_ptr, N, 1, M, N, MMA), d.to(d_ptr.dtype.element_ty))


@gluon.jit
def negative(x):
    """-x of a float of any type: fp8 has no negation."""
    WIDTH: gl.constexpr = x.dtype.primitive_bitwidth
    BITS: gl.constexpr = gl.uint8 if WIDTH == 8 else gl.uint16 if WIDTH == 16 else gl.uint32
    return (x.to(BITS, bitcast=True) ^ (1 << WIDTH - 1)).to(x.dtype, bitcast=True)


@gluon.jit
def warpgroup_mma_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
    PRECISION: gl.constexpr, ACC: gl.constexpr, MMA: gl.constexpr,
    A: gl.constexpr, B: gl.constexpr,
    A_IN_REGISTERS: gl.constexpr, NEGATE: gl.constexpr, ADD: gl.constexpr,
):  # fmt: skip
    """D = A B + C by one warpgroup, without C unless ADD. A in registers may be negated."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
    b = gl.load(places(b_ptr, 1, K, K, N, FLAT))
    b = gl.allocate_shared_memory(b.dtype, [K, N], B, b)
    if A_IN_REGISTERS:
        WIDTH: gl.constexpr = 32 // a_ptr.dtype.element_ty.primitive_bitwidth
        a = gl.load(places(a_ptr, K, 1, M, K, gl.DotOperandLayout(0, MMA, WIDTH)))
        if NEGATE:
            a = negative(a)
    else:
        a = gl.load(places(a_ptr, K, 1, M, K, FLAT))
        a = gl.allocate_shared_memory(a.dtype, [M, K], A, a)
    fence_async_shared()  # WGMMA reads what was stored
    barrier()
    c = gl.load(places(c_ptr, N, 1, M, N, MMA))
    d = warpgroup_mma(a, b, c.to(ACC), use_acc=ADD, precision=PRECISION.value)
    gl.store(places(d_ptr, N, 1, M, N, MMA), d.to(d_ptr.dtype.element_ty))
