"""Partial sums that the programs of a cluster send to each other's shared memory.

Each program adds some pieces of a tile, of EPI_N columns each. For each of these it has a slot per
program, which holds the registers of the accumulator: 16 bytes of one thread after 16 of another,
one slab after another.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import aggregate
from .memory import acc_columns, acc_type, mma_layout
from .ptx import barrier_expect, barrier_wait
from .scheduler import Unit
from .triton_contract import shared_memory
from .wgmma import acc_types, in_place, written


@gluon.constexpr_function
def slot_bytes(shape):
    """Bytes of a slot."""
    return 4 * shape.BLOCK_M * shape.EPI_N


@gluon.jit
def unit_of_rank(work):
    """The unit of this program, whose cluster computes one tile: a range of K for each rank."""
    rank = gl.program_id(0) % work.SHAPE.SPLIT_K
    tile = gl.program_id(0) // work.SHAPE.SPLIT_K
    first, steps = work.share(rank, work.SHAPE.SPLIT_K)
    b0, b1, row, col = work.place(tile)
    return Unit(tile, rank, first, steps, b0, b1, row, col)


@aggregate
class Exchange:
    """The exchange of one tile's partial sums."""

    SHAPE: gl.constexpr

    @gluon.jit
    def slot(self, piece, program, slab):
        """The address of a program's slot for a slab of this program's piece number `piece`."""
        nth = piece * self.SHAPE.SPLIT_K + program
        own = nth * slot_bytes(self.SHAPE) + slab * (4 * 64 * self.SHAPE.EPI_N)
        return shared_memory() + self.SHAPE.SLOTS + own

    @gluon.jit
    def expect(self, full, rank):
        """Make the barrier `full` wait for all bytes that are sent to the program `rank`."""
        PROGRAMS: gl.constexpr = self.SHAPE.SPLIT_K
        own = (self.SHAPE.BLOCK_N // self.SHAPE.EPI_N - 1 - rank + PROGRAMS) // PROGRAMS
        barrier_expect(full, own * (PROGRAMS * slot_bytes(self.SHAPE)))

    @gluon.jit
    def reduce(self, acc, out, unit, full, WHICH: gl.constexpr, SLAB: gl.constexpr):
        """Send a consumer's accumulator, from slab `SLAB` on; finish the pieces that it adds."""
        PROGRAMS: gl.constexpr = self.SHAPE.SPLIT_K
        PIECES: gl.constexpr = self.SHAPE.BLOCK_N // self.SHAPE.EPI_N
        SLABS: gl.constexpr = acc_columns(acc) // self.SHAPE.BLOCK_N
        self.send(acc, full, unit.split, SLAB)
        barrier_wait(full, 0, True)
        for i in gl.static_range((PIECES + PROGRAMS - 1) // PROGRAMS):
            piece = i * PROGRAMS + unit.split
            if PIECES % PROGRAMS == 0 or piece < PIECES:
                for slab in gl.static_range(SLABS):
                    own = self.receive(i, SLAB + slab)
                    row, col = (SLAB + slab) * 64, piece * self.SHAPE.EPI_N
                    out.store_pieces(((own,),), unit, row, col, WHICH, i * SLABS + slab)

    @gluon.jit
    def send(self, acc, full, rank, SLAB: gl.constexpr):
        """Send piece i of slab `SLAB`, and of those below it, to program i % PROGRAMS."""
        SHAPE: gl.constexpr = self.SHAPE
        TILE: gl.constexpr = acc[0].shape
        LAYOUT: gl.constexpr = acc[0].type.layout
        UNITS: gl.constexpr = SHAPE.BLOCK_N // TILE[1]
        COUNT: gl.constexpr = TILE[1] // 2
        full = gl.full(TILE, full, gl.int32, LAYOUT)
        for i in gl.static_range(acc_columns(acc) // TILE[1]):
            slot = gl.full(TILE, self.slot(0, rank, SLAB + i // UNITS), gl.int32, LAYOUT)
            gl.inline_asm_elementwise(
                _send_text(COUNT, i % UNITS, SHAPE),
                in_place(COUNT, acc[0].dtype) + ",r" * (2 * COUNT) + ",~{memory}",
                [acc[i], slot, full], acc[0].dtype, is_pure=False, pack=COUNT,
            )  # fmt: skip

    @gluon.jit
    def receive(self, piece, slab):
        """A slab of this program's piece, summed over the programs in their order."""
        EPI_N: gl.constexpr = self.SHAPE.EPI_N
        slots = gl.full([64, EPI_N], self.slot(piece, 0, slab), gl.int32, mma_layout(EPI_N, 4))
        (total,) = gl.inline_asm_elementwise(
            # A register is written before all of `slots` has been read.
            _receive_text(self.SHAPE),
            written(EPI_N // 2, acc_type(self.SHAPE.TYPE), "=&") + ",r" * (EPI_N // 2)
            + ",~{memory}",
            [slots], acc_types(self.SHAPE.TYPE, 1), is_pure=False, pack=EPI_N // 2,
        )  # fmt: skip
        return total


@gluon.constexpr_function
def _send_text(registers, unit, shape):
    """Stores of `registers` of each thread, which hold the `unit`-th columns of a slab."""
    piece, programs = shape.EPI_N.value // 2, shape.SPLIT_K.value
    first, distance = unit * registers // piece, programs * 4 * shape.BLOCK_M.value * 2 * piece
    lines = [
        "{", ".reg .b32 base, to, full;", "mov.u32 base, %tid.x;", "and.b32 base, base, 127;",
        f"mad.lo.u32 base, base, 16, ${2 * registers};",
    ]  # fmt: skip
    for i in range(registers // piece):
        nth, receiver = divmod(first + i, programs)
        lines += [
            f"mapa.shared::cluster.u32 to, base, {receiver};",
            f"mapa.shared::cluster.u32 full, ${3 * registers}, {receiver};",
        ]
        for j in range(0, piece, 4):
            values = ", ".join(f"${i * piece + j + k}" for k in range(4))
            lines.append(
                "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                f"[to + {nth * distance + j * 512}], {{{values}}}, [full];"
            )
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _receive_text(shape):
    """Loads of all slots of a slab of a piece, and their sum."""
    registers, programs = shape.EPI_N.value // 2, shape.SPLIT_K.value
    distance = 4 * shape.BLOCK_M.value * 2 * registers
    kind = "s32" if shape.TYPE.value[0] == "s" else "f32"
    lines = [
        "{", ".reg .b32 at;", f".reg .b32 more<{programs * registers}>;",
        "mov.u32 at, %tid.x;", "and.b32 at, at, 127;", f"mad.lo.u32 at, at, 16, ${registers};",
    ]  # fmt: skip
    for program in range(programs):
        for i in range(0, registers, 4):
            sums = [f"${i + k}" for k in range(4)]
            more = [f"more{program * registers + i + k}" for k in range(4)]
            place = program * distance + i * 512
            values = ", ".join(more if program else sums)
            lines.append(f"ld.shared::cta.v4.b32 {{{values}}}, [at + {place}];")
            if program:
                lines += [f"add.{kind} {sums[k]}, {sums[k]}, {more[k]};" for k in range(4)]
    return "\n".join([*lines, "}"])
