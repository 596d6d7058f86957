"""One tile by inline PTX in Gluon, for what Gluon can't express: `mma.sync` and `wgmma`."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from .gluon import barrier, places


@gluon.jit
def mma_sync_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr,
    A: gl.constexpr, B: gl.constexpr, C: gl.constexpr, D: gl.constexpr,
    DOWN: gl.constexpr, ACROSS: gl.constexpr, TEXT: gl.constexpr, CONSTRAINTS: gl.constexpr,
):  # fmt: skip
    """D = A B + C by DOWN x ACROSS instructions, which have A, B, C and D registers in each lane.

    Memory holds registers, 32 lanes side by side: those of the instructions' operands in turn.
    """
    for row in gl.static_range(DOWN):
        for col in gl.static_range(ACROSS):
            nth = row * ACROSS + col
            a, b = registers(a_ptr, row * A, A), registers(b_ptr, col * B, B)
            operands = a + b + registers(c_ptr, nth * C, C)
            d = gl.inline_asm_elementwise(
                TEXT, CONSTRAINTS, operands, each(d_ptr.dtype.element_ty, D), is_pure=True, pack=1
            )
            for i in gl.static_range(D):
                gl.store(lanes(d_ptr, nth * D + i), d[i])


@gluon.constexpr_function
def each(dtype, count):
    return (dtype,) * count


@gluon.jit
def registers(pointer, first, COUNT: gl.constexpr):
    """The values of COUNT registers, a tensor [32] each."""
    found = ()
    for i in gl.static_range(COUNT):
        found = found + (gl.load(lanes(pointer, first + i)),)  # noqa: RUF005
    return found


@gluon.jit
def lanes(pointer, register):
    """Pointers to a register's values, one in each lane."""
    return pointer + register * 32 + gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))


@gluon.jit
def wgmma_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr,
    N: gl.constexpr, ROWS: gl.constexpr, TEXT: gl.constexpr, CONSTRAINTS: gl.constexpr,
):  # fmt: skip
    """D = A B + C by one warpgroup.

    A and B are in shared memory with the swizzle of 32 bytes. Each row has 32 bytes, as much of K
    as one instruction takes. TEXT knows that `ROWS` of A come first, then those of B.
    """
    TYPE: gl.constexpr = a_ptr.dtype.element_ty
    K: gl.constexpr = 256 // TYPE.primitive_bitwidth
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 32])
    memory = gl.allocate_shared_memory(
        TYPE, [2, ROWS, K], gl.NVMMASharedLayout(32, TYPE.primitive_bitwidth)
    )
    a = gl.load(places(a_ptr, K, 1, 64, K, FLAT))
    b = gl.load(places(b_ptr, K, 1, N, K, FLAT))
    memory.index(0).slice(0, 64).store(a)
    memory.index(1).slice(0, N).store(b.to(TYPE, bitcast=True))
    fence_async_shared()  # WGMMA reads what was stored
    barrier()
    c = gl.load(places(c_ptr, N, 1, 64, N, MMA))
    d = gl.inline_asm_elementwise(TEXT, CONSTRAINTS, [c], c.dtype, is_pure=False, pack=N // 2)
    memory._keep_alive()
    gl.store(places(d_ptr, N, 1, 64, N, MMA), d)
