"""WGMMA of any width that is a multiple of 8, in PTX: Gluon's tensors have powers of two.

A tile of A or B lies in lines of 128 bytes, swizzled: 64 elements of K for each row (or column),
or, where it is stored the other way, 64 rows (or columns) for each element of K. So 64 rows, 64
elements deep, are 64 lines or 8192 bytes. The accumulator of one or two slabs of 64 rows is a tuple
of tensors [64, unit], one slab after another.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .memory import acc_columns, mma_layout


@gluon.constexpr_function
def unit(columns):
    """Columns of a tensor of the accumulator: the largest power of two that divides all, to 64."""
    return min(64, columns & -columns)


@gluon.jit
def zeros(COLUMNS: gl.constexpr, SLABS: gl.constexpr):
    """An accumulator of zeros."""
    UNIT: gl.constexpr = unit(COLUMNS)
    acc = ()
    for _ in gl.static_range(SLABS * COLUMNS // UNIT):
        acc = acc + (gl.zeros((64, UNIT), gl.float32, mma_layout(UNIT, 4)),)
    return acc


@gluon.jit
def matrix_descriptor(address, LEADING: gl.constexpr):
    """The lower half of WGMMA's descriptor of a tile at `address`; 64 lines are `LEADING` bytes.

    In a cluster, an address has the program's rank above its 18 bits.
    """
    return (address & 0x3FFFF) >> 4 | LEADING // 16 << 16


@gluon.jit
def wgmma(acc, a, b, keep, COLUMNS: gl.constexpr, SLABS: gl.constexpr,
          TYPE: gl.constexpr, A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr):  # fmt: skip
    """Begin to multiply 64 elements of K, and add to `acc` if `keep`, else overwrite it.

    `a` and `b` are from `matrix_descriptor`. The result may be read only after `wgmma_wait`.
    """
    REGISTERS: gl.constexpr = unit(COLUMNS) // 2
    SHAPE: gl.constexpr = acc[0].shape
    LAYOUT: gl.constexpr = acc[0].type.layout
    a = gl.full(SHAPE, a, gl.int32, LAYOUT)
    b = gl.full(SHAPE, b, gl.int32, LAYOUT)
    keep = gl.full(SHAPE, keep.to(gl.int32), gl.int32, LAYOUT)
    return gl.inline_asm_elementwise(
        _wgmma_text(COLUMNS, SLABS, REGISTERS, TYPE, A_MAJOR, B_MAJOR),
        in_place(acc_columns(acc) // 2) + ",r" * (3 * REGISTERS),
        acc + (a, b, keep), (gl.float32,) * len(acc), is_pure=False, pack=REGISTERS,
    )  # fmt: skip


@gluon.jit
def wgmma_wait(acc, PENDING: gl.constexpr):
    """`acc`, once at most `PENDING` of the last `wgmma` are in flight."""
    return gl.inline_asm_elementwise(
        f"wgmma.wait_group.sync.aligned {PENDING};", in_place(acc_columns(acc) // 2), acc,
        (gl.float32,) * len(acc), is_pure=False, pack=acc[0].shape[1] // 2,
    )  # fmt: skip


@gluon.constexpr_function
def _wgmma_text(columns, slabs, registers, type_, a_major, b_major):
    """Four WGMMA per slab, 16 elements of K each.

    The scalars come once for each register of a tensor. Distances are in units of 16 bytes: a
    step of K is 32 bytes along the lines, or 16 lines; a slab is 64 lines.
    """
    count = columns // 2
    a, b, keep = (2 * slabs * count + i * registers for i in range(3))
    step_a, step_b = 2 if a_major == "N" else 128, 2 if b_major == "T" else 128
    upper = 1 << 30 | 1024 // 16  # swizzled lines of 128 bytes, 8 of them 1024 bytes
    turned = f"{int(a_major != 'N')}, {int(b_major != 'T')}"
    lines = [
        "{", ".reg .pred first, more;", ".reg .b32 lower;", ".reg .b64 a, b;",
        f"setp.ne.b32 first, ${keep}, 0;", "setp.eq.b32 more, 0, 0;",
        "wgmma.fence.sync.aligned;",
    ]  # fmt: skip
    for step in range(4):
        lines += [f"add.s32 lower, ${b}, {step * step_b};", f"mov.b64 b, {{lower, {upper}}};"]
        for slab in range(slabs):
            acc = ", ".join(f"${slab * count + i}" for i in range(count))
            lines += [
                f"add.s32 lower, ${a}, {step * step_a + slab * 512};",
                f"mov.b64 a, {{lower, {upper}}};",
                f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{type_}.{type_} {{{acc}}}, "
                f"a, b, {'more' if step else 'first'}, 1, 1, {turned};",
            ]
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])


@gluon.constexpr_function
def in_place(count):
    """Constraints of `count` registers that are read and written."""
    return ",".join(["=f"] * count + [str(i) for i in range(count)])
