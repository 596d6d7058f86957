"""Device helpers in PTX: what Gluon has no word for in every Triton release that is supported.

Loads that arrive in all programs of a cluster, barriers of all, and WGMMA of any width that is a
multiple of 8, where a tensor's shape is a power of two. Shared memory is named by its address: the
largest allocation of a kernel is placed first, where `shared_memory` says. Tensor maps are named by
the kernel and the place of its parameter.

A tile of A or B lies in lines of 128 bytes, swizzled: 64 elements of K for each row (or column),
or, where it is stored the other way, 64 rows (or columns) for each element of K. So 64 rows, 64
elements deep, are 64 lines or 8192 bytes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .memory import acc_columns, mma_layout


@gluon.jit
def _do(TEXT: gl.constexpr, operands):
    """Assembly that yields nothing; its `operands` have 32 bits and are called $1, $2, ..."""
    gl.inline_asm_elementwise(
        _block(TEXT), _read(operands), operands, gl.int32, is_pure=False, pack=1
    )


@gluon.constexpr_function
def _block(text):
    return f"{{ {text} mov.u32 $0, 0; }}"


@gluon.constexpr_function
def _read(operands):
    return "=r" + ",r" * len(operands) + ",~{memory}"


@gluon.jit
def shared_memory():
    """The address of the kernel's shared memory."""
    return gl.inline_asm_elementwise(
        "mov.u32 $0, global_smem;", "=r", [], gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def cluster_sync():
    """Wait for all threads of all its programs; each of them comes here. It orders no memory."""
    _do("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;", ())


@gluon.jit
def barrier_init(first, COUNT: gl.constexpr, ARRIVALS: gl.constexpr, MORE: gl.constexpr):
    """At `first`, `COUNT` barriers of one arrival, as many of `ARRIVALS`, and `MORE` of one."""
    _do(_init_text(COUNT, ARRIVALS, MORE), (first,))


@gluon.constexpr_function
def _init_text(count, arrivals, more):
    lines = [
        f"@one mbarrier.init.shared::cta.b64 [$1 + {8 * i}], {number};"
        for i, number in enumerate([1] * count + [arrivals] * count + [1] * more)
    ]
    return "\n".join([
        ".reg .pred one; .reg .b32 thread;",
        "mov.u32 thread, %tid.x;", "setp.eq.u32 one, thread, 0;", *lines,
        "fence.mbarrier_init.release.cluster;",
    ])  # fmt: skip


@gluon.jit
def barrier_wait(bar, parity, REMOTE: gl.constexpr = False):
    """Until the phase of that parity is complete; `REMOTE`: other programs' writes are seen too."""
    _do(_wait_text(REMOTE), (bar, parity))


@gluon.constexpr_function
def _wait_text(remote):
    scope = "cluster" if remote else "cta"
    return f""".reg .pred done;
        again:
        mbarrier.try_wait.parity.acquire.{scope}.shared::cta.b64 done, [$1], $2;
        @!done bra.uni again;"""


@gluon.jit
def barrier_expect(bar, count):
    """One thread of the warp arrives; the phase waits for `count` bytes too."""
    _do(
        """.reg .pred one; .reg .b32 who;
        bar.warp.sync -1;
        elect.sync who|one, -1;
        @one mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;""",
        (bar, gl.to_tensor(count)),
    )


@gluon.jit
def barrier_arrive(bar, mine, PROGRAMS: gl.constexpr = 1):
    """A warp whose `mine` is set arrives at the barrier in this place of so many programs.

    That is of this one, or all of the cluster. It orders nothing but that WGMMA has finished
    reading.
    """
    _do(_arrive_text(PROGRAMS), (bar, mine.to(gl.int32)))


@gluon.constexpr_function
def _arrive_text(programs):
    """A lane for each of them."""
    there, space, address = "", "cta", "$1"
    if programs > 1:
        there = "mapa.shared::cluster.u32 there, $1, lane;"
        space, address = "cluster", "there"
    return f""".reg .pred mine, asked; .reg .b32 lane, there;
        mov.u32 lane, %laneid;
        setp.ne.b32 asked, $2, 0;
        setp.lt.and.u32 mine, lane, {programs}, asked;
        {there}
        @mine mbarrier.arrive.shared::{space}.b64 _, [{address}];"""


@gluon.jit
def is_first_warp():
    """Whether this warp is the first of its warpgroup."""
    warp = gl.inline_asm_elementwise(
        """{
        .reg .b32 warp;
        mov.u32 warp, %tid.x;
        shr.u32 warp, warp, 5;
        shfl.sync.idx.b32 $0, warp, 0, 31, -1;
        }""",
        "=r", [], gl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    return warp % 4 == 0


@gluon.jit
def tma_load(to, bar, slow, fast, b0, b1, MAP: gl.constexpr, BATCHED: gl.constexpr,
             PROGRAMS: gl.constexpr = 1):  # fmt: skip
    """One thread of the warp asks for the box at (slow, fast) of batch (b0, b1).

    `MAP` is the parameter's name. It arrives in so many `PROGRAMS`, all of the cluster, at the
    same place of their shared memory and their barriers; or in this one alone.
    """
    if BATCHED:
        _do(_load_text(MAP, 4, PROGRAMS), (to, bar, fast, slow, b1, b0))
    else:
        _do(_load_text(MAP, 2, PROGRAMS), (to, bar, fast, slow))


@gluon.constexpr_function
def _load_text(tensor_map, rank, programs):
    coordinates = ", ".join(f"${3 + i}" for i in range(rank))
    how, mask = (".multicast::cluster", f", {2**programs - 1}") if programs > 1 else ("", "")
    return f""".reg .pred one; .reg .b32 who; .reg .b64 map;
        mov.b64 map, {tensor_map};
        cvta.param.u64 map, map;
        bar.warp.sync -1;
        elect.sync who|one, -1;
        @one cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{how}
            [$1], [map, {{{coordinates}}}], [$2]{mask};"""


# Sums of one or two slabs of 64 rows: a tuple of tensors [64, unit], one slab after another.


@gluon.constexpr_function
def unit(columns):
    """Columns of one tensor of the sums: the largest power of two that divides all, up to 64."""
    return min(64, columns & -columns)


@gluon.jit
def zeros(COLUMNS: gl.constexpr, SLABS: gl.constexpr):
    """Sums with nothing added yet."""
    UNIT: gl.constexpr = unit(COLUMNS)
    sums = ()
    for _ in gl.static_range(SLABS * COLUMNS // UNIT):
        sums = sums + (gl.zeros((64, UNIT), gl.float32, mma_layout(64, UNIT, 4)),)
    return sums


@gluon.jit
def matrix_descriptor(address, LEADING: gl.constexpr):
    """What WGMMA is told of a tile at `address`, the lower half: 64 lines are `LEADING` bytes.

    The address of a program of a cluster has the program's rank above its 18 bits.
    """
    return (address & 0x3FFFF) >> 4 | LEADING // 16 << 16


@gluon.jit
def wgmma(sums, a, b, keep, COLUMNS: gl.constexpr, SLABS: gl.constexpr,
          TYPE: gl.constexpr, A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr):  # fmt: skip
    """Begin to add the products of 64 elements of K; `keep`: to what was there.

    `a` and `b` are of `matrix_descriptor`. The sums may be read only after `wgmma_wait`.
    """
    REGISTERS: gl.constexpr = unit(COLUMNS) // 2
    SHAPE: gl.constexpr = sums[0].shape
    LAYOUT: gl.constexpr = sums[0].type.layout
    a = gl.full(SHAPE, a, gl.int32, LAYOUT)
    b = gl.full(SHAPE, b, gl.int32, LAYOUT)
    keep = gl.full(SHAPE, keep.to(gl.int32), gl.int32, LAYOUT)
    return gl.inline_asm_elementwise(
        _wgmma_text(COLUMNS, SLABS, REGISTERS, TYPE, A_MAJOR, B_MAJOR),
        in_place(acc_columns(sums) // 2) + ",r" * (3 * REGISTERS),
        sums + (a, b, keep), floats(sums), is_pure=False, pack=REGISTERS,
    )  # fmt: skip


@gluon.jit
def wgmma_wait(sums, PENDING: gl.constexpr):
    """`sums`, once at most `PENDING` of the `wgmma` that were begun are unfinished."""
    return gl.inline_asm_elementwise(
        _pending_text(PENDING), in_place(acc_columns(sums) // 2), sums, floats(sums),
        is_pure=False, pack=sums[0].shape[1] // 2,
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
            sums = ", ".join(f"${slab * count + i}" for i in range(count))
            lines += [
                f"add.s32 lower, ${a}, {step * step_a + slab * 512};",
                f"mov.b64 a, {{lower, {upper}}};",
                f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{type_}.{type_} {{{sums}}}, "
                f"a, b, {'more' if step else 'first'}, 1, 1, {turned};",
            ]
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])


@gluon.constexpr_function
def _pending_text(count):
    return f"wgmma.wait_group.sync.aligned {count};"


@gluon.constexpr_function
def in_place(count):
    """Constraints of `count` registers that are read and written."""
    return ",".join(["=f"] * count + [str(i) for i in range(count)])


@gluon.constexpr_function
def floats(sums):
    """The type of each."""
    return (gl.float32,) * len(sums)
