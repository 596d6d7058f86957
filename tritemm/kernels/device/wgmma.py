"""WGMMA of any width that is a multiple of 8, in PTX: Gluon's tensors have powers of two.

A tile of A or B consists of lines of 128 bytes, swizzled: 64 elements of K per row (or column),
128 with 8 bits, or, if it is stored the other way, 64 rows (or columns) for each element of K. So
64 rows, a line deep, are 64 lines or 8192 bytes. The accumulator of one or two slabs of 64 rows is
a tuple of tensors [64, unit], one slab after another.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .memory import acc_columns, acc_type, in_bytes, mma_layout


@gluon.constexpr_function
def unit(columns):
    """Columns of a tensor of the accumulator: the largest power of two that divides all, to 64."""
    return min(64, columns & -columns)


@gluon.jit
def matrix_descriptor(address, LEADING: gl.constexpr):
    """The lower half of WGMMA's descriptor of a tile at `address`; 64 lines are `LEADING` bytes.

    In a cluster, an address has the program's rank above its 18 bits.
    """
    return (address & 0x3FFFF) >> 4 | LEADING // 16 << 16


@gluon.jit
def wgmma(acc, a, b, COLUMNS: gl.constexpr, SLABS: gl.constexpr,
          TYPE: gl.constexpr, A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr):  # fmt: skip
    """Issue WGMMA for a line of K, and add to `acc`; or overwrite it, if it is empty.

    `a` and `b` are from `matrix_descriptor`. The result may be read only after `wgmma_wait`. A new
    one isn't set to zero: the consumer has its turn by then, and the tensor cores would wait.
    """
    UNIT: gl.constexpr = unit(COLUMNS)
    REGISTERS: gl.constexpr = UNIT // 2
    FIRST: gl.constexpr = len(acc) == 0
    COUNT: gl.constexpr = SLABS * COLUMNS // 2
    SUMS: gl.constexpr = (written if FIRST else in_place)(COUNT, acc_type(TYPE))
    LAYOUT: gl.constexpr = mma_layout(UNIT, 4)
    a = gl.full((64, UNIT), a, gl.int32, LAYOUT)
    b = gl.full((64, UNIT), b, gl.int32, LAYOUT)
    return gl.inline_asm_elementwise(
        _wgmma_text(COLUMNS, SLABS, REGISTERS, TYPE, A_MAJOR, B_MAJOR, FIRST),
        SUMS + ",r" * (2 * REGISTERS), acc + (a, b), acc_types(TYPE, SLABS * COLUMNS // UNIT),
        is_pure=False, pack=REGISTERS,
    )  # fmt: skip


@gluon.jit
def wgmma_wait(acc, PENDING: gl.constexpr):
    """`acc`, once at most `PENDING` of the last `wgmma` are in flight."""
    return gl.inline_asm_elementwise(
        f"wgmma.wait_group.sync.aligned {PENDING};", in_place(acc_columns(acc) // 2, acc[0].dtype),
        acc, (acc[0].dtype,) * len(acc), is_pure=False, pack=acc[0].shape[1] // 2,
    )  # fmt: skip


@gluon.jit
def pinned(acc):
    """`acc`, a tensor [64, columns], computed here: LLVM would move it after later `wgmma`."""
    COUNT: gl.constexpr = acc.shape[1] // 2
    return gl.inline_asm_elementwise(
        "// pinned", in_place(COUNT, acc.dtype), [acc], acc.dtype, is_pure=False, pack=COUNT
    )


@gluon.constexpr_function
def acc_types(type_, count):
    """Types of an accumulator's `count` tensors."""
    return (acc_type(type_),) * count


@gluon.constexpr_function
def _wgmma_text(columns, slabs, registers, type_, a_major, b_major, first):
    """Four WGMMA per slab, 32 bytes of K each; the `first` overwrites the accumulator.

    The scalars come once for each register of a tensor, after the accumulator that is written
    and, but for the `first`, that is read. Distances are in units of 16 bytes: a step of K is 32
    bytes along the lines, or 16 lines; a slab is 64 lines.
    """
    count = columns // 2
    scalars = (1 if first else 2) * slabs * count
    a, b = scalars, scalars + registers
    step_a, step_b = 2 if a_major == "N" else 128, 2 if b_major == "T" else 128
    upper = 1 << 30 | 1024 // 16  # swizzled lines of 128 bytes, 8 of them 1024 bytes
    # Only 16-bit operands may be stored the other way, and only floating-point ones be negated.
    shape, how = f"m64n{columns}k{32 if in_bytes(type_) else 16}", ""
    if type_[0] != "s":
        how = ", 1, 1"
    if not in_bytes(type_):
        how += f", {int(a_major != 'N')}, {int(b_major != 'T')}"
    types = f"{'s32' if type_[0] == 's' else 'f32'}.{type_}"
    lines = [
        "{", ".reg .pred adds;", ".reg .b32 lower;", ".reg .b64 a, b;", "wgmma.fence.sync.aligned;",
    ]  # fmt: skip
    for step in range(4):
        adds = "ne" if first and step == 0 else "eq"
        lines += [
            f"setp.{adds}.b32 adds, 0, 0;",
            f"add.s32 lower, ${b}, {step * step_b};", f"mov.b64 b, {{lower, {upper}}};",
        ]  # fmt: skip
        for slab in range(slabs):
            acc = ", ".join(f"${slab * count + i}" for i in range(count))
            lines += [
                f"add.s32 lower, ${a}, {step * step_a + slab * 512};",
                f"mov.b64 a, {{lower, {upper}}};",
                f"wgmma.mma_async.sync.aligned.{shape}.{types} {{{acc}}}, a, b, adds{how};",
            ]
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])


@gluon.constexpr_function
def written(count, dtype, how="="):
    """Constraints of `count` registers of `dtype` that are written."""
    return ",".join([how + ("f" if dtype.is_floating() else "r")] * count)


@gluon.constexpr_function
def in_place(count, dtype):
    """Constraints of `count` registers of `dtype` that are read and written."""
    return ",".join([written(count, dtype), *(str(i) for i in range(count))])
