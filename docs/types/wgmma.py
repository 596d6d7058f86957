"""One tile by `wgmma` in inline PTX, for what `warpgroup_mma` has no word for.

A and B stand in shared memory as Gluon lays them out, each row 32 bytes, which is as much of K as
one instruction takes, with the swizzle of 32 bytes. C and D are in the accumulator's layout, whose
registers are in the order of the instruction's.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from cuda_reference.types.table import BITS, Entry

from .gluon import barrier, places

#: Bytes of a row, and of the eight rows that the swizzle repeats after.
ROW, EIGHT_ROWS = 32, 256
#: The upper half of a descriptor: units of 16 bytes from eight rows to the next, and the swizzle.
UPPER = EIGHT_ROWS // 16 | 3 << 30


@gluon.jit
def wgmma_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_dm, stride_dn,
    N: gl.constexpr, ROWS: gl.constexpr, MMA: gl.constexpr,
    TEXT: gl.constexpr, CONSTRAINTS: gl.constexpr,
):  # fmt: skip
    """D = A B + C. TEXT knows that shared memory begins with `ROWS` of A, and then has B's."""
    TYPE: gl.constexpr = a_ptr.dtype.element_ty
    K: gl.constexpr = 256 // TYPE.primitive_bitwidth
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    memory = gl.allocate_shared_memory(
        TYPE, [2, ROWS, K], gl.NVMMASharedLayout(32, TYPE.primitive_bitwidth)
    )
    a = gl.load(places(a_ptr, stride_am, stride_ak, 64, K, FLAT))
    b = gl.load(places(b_ptr, stride_bn, stride_bk, N, K, FLAT))
    memory.index(0).slice(0, 64).store(a)
    memory.index(1).slice(0, N).store(b.to(TYPE, bitcast=True))
    fence_async_shared()  # WGMMA reads what was stored
    barrier()
    c = gl.load(places(c_ptr, stride_cm, stride_cn, 64, N, MMA))
    d = gl.inline_asm_elementwise(TEXT, CONSTRAINTS, [c], c.dtype, is_pure=False, pack=N // 2)
    memory._keep_alive()
    gl.store(places(d_ptr, stride_dm, stride_dn, 64, N, MMA), d)


def rows(entry: Entry) -> int:
    """Of shared memory, for A and for B."""
    return max(64, entry.shape[1])


def registers(entry: Entry) -> int:
    """Of C and D, per thread."""
    return entry.shape[1] * BITS[entry.d] // 64


def text(entry: Entry) -> str:
    """The instruction with its descriptors, from fence to wait: nothing may touch D in between."""
    sums = ", ".join(f"${i}" for i in range(registers(entry)))
    operands = entry.text.partition(" d, a-desc, b-desc")[2]
    return f"""{{
        .reg .b32 lower;
        .reg .b64 a, b;
        mov.u32 lower, global_smem;
        bfe.u32 lower, lower, 4, 14;
        or.b32 lower, lower, {1 << 16};
        mov.b64 a, {{lower, {UPPER}}};
        add.u32 lower, lower, {rows(entry) * ROW // 16};
        mov.b64 b, {{lower, {UPPER}}};
        wgmma.fence.sync.aligned;
        {entry.opcode} {{{sums}}}, a, b{operands};
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        }}"""


def constraints(entry: Entry) -> str:
    """D's registers, which are C's before, and memory."""
    count, letter = registers(entry), "f" if entry.d == "f32" else "r"
    return ",".join([f"={letter}"] * count + [str(i) for i in range(count)] + ["~{memory}"])


def layout(entry: Entry) -> gl.NVMMADistributedLayout:
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, entry.shape[1], 32])
