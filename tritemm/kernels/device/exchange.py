"""Sums that the programs of a cluster exchange, from shared memory to shared memory.

Each adds up some pieces of a tile, each piece some columns; it has a slot for what each program
found of each of them. A slot holds what a thread has in its registers, 16 bytes of each thread
after 16 of the next, one slab after another.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .cluster_mainloop import stages_bytes
from .language import aggregate
from .memory import acc_columns, mma_layout
from .ptx import barrier_expect, barrier_wait, in_place, shared_memory

#: Bytes of a tile's sums that have room of their own; those of others lie where its stages did.
APART = gl.constexpr(24 * 1024)


@gluon.constexpr_function
def most_pieces(columns, programs, piece):
    """Pieces of the program that has most."""
    return -(-columns // (piece * programs))


@gluon.constexpr_function
def sums_bytes(rows, columns, programs, piece):
    """Of all slots of a program."""
    return 4 * rows * piece * programs * most_pieces(columns, programs, piece)


@gluon.constexpr_function
def apart_bytes(sums):
    """Of the slots, if they have room of their own behind the stages."""
    return sums if sums <= APART else 0


@gluon.constexpr_function
def slot_bytes(shape):
    """Of one program's sums of a piece."""
    return 4 * shape.BLOCK_M * shape.EPI_N


@gluon.constexpr_function
def gap_of(shape):
    """Bytes of the slots between stages and barriers."""
    sums = sums_bytes(shape.BLOCK_M, shape.BLOCK_N, shape.SPLIT_K, shape.EPI_N)
    return apart_bytes(sums)


@gluon.constexpr_function
def slots_at(shape):
    """Where they begin: in the gap, or where the stages do."""
    return stages_bytes(shape) if gap_of(shape) else 0


@aggregate
class Exchange:
    """Of a tile, in pieces of EPI_N columns."""

    SHAPE: gl.constexpr

    @gluon.jit
    def slot(self, piece, program, slab):
        """The address of what a program found of a slab of this program's piece."""
        nth = piece * self.SHAPE.SPLIT_K + program
        own = nth * slot_bytes(self.SHAPE) + slab * (4 * 64 * self.SHAPE.EPI_N)
        return shared_memory() + slots_at(self.SHAPE) + own

    @gluon.jit
    def expect(self, full, rank):
        """The barrier `full` waits for all that the program `rank` adds up."""
        PROGRAMS: gl.constexpr = self.SHAPE.SPLIT_K
        own = (self.SHAPE.BLOCK_N // self.SHAPE.EPI_N - 1 - rank + PROGRAMS) // PROGRAMS
        barrier_expect(full, own * (PROGRAMS * slot_bytes(self.SHAPE)))

    @gluon.jit
    def reduce(self, acc, out, unit, full, WHICH: gl.constexpr, SLAB: gl.constexpr):
        """Hand out a consumer's sums, from slab `SLAB` on; store those that it adds up."""
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
                    out.store_pieces((own,), unit, row, col, WHICH, i * SLABS + slab)

    @gluon.jit
    def send(self, acc, full, rank, SLAB: gl.constexpr):
        """Hand the sums of slab `SLAB` and those below it to the programs that add them up.

        Piece i goes to program i % PROGRAMS, and counts towards its barrier `full`.
        """
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
                in_place(COUNT) + ",r" * (2 * COUNT) + ",~{memory}",
                [acc[i], slot, full], gl.float32, is_pure=False, pack=COUNT,
            )  # fmt: skip

    @gluon.jit
    def receive(self, piece, slab):
        """The sum of a slab of this program's piece, over all programs in their order."""
        EPI_N: gl.constexpr = self.SHAPE.EPI_N
        slots = gl.full([64, EPI_N], self.slot(piece, 0, slab), gl.int32, mma_layout(64, EPI_N, 4))
        return gl.inline_asm_elementwise(
            _receive_text(self.SHAPE), _written(EPI_N // 2) + ",r" * (EPI_N // 2) + ",~{memory}",
            [slots], gl.float32, is_pure=False, pack=EPI_N // 2,
        )  # fmt: skip


@gluon.constexpr_function
def _send_text(registers, unit, shape):
    """Of the `unit`-th columns of a tile, so many registers."""
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
                "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                f"[to + {nth * distance + j * 512}], {{{values}}}, [full];"
            )
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _receive_text(shape):
    registers, programs = shape.EPI_N.value // 2, shape.SPLIT_K.value
    distance = 4 * shape.BLOCK_M.value * 2 * registers
    lines = [
        "{", ".reg .b32 at;", f".reg .f32 more<{programs * registers}>;",
        "mov.u32 at, %tid.x;", "and.b32 at, at, 127;", f"mad.lo.u32 at, at, 16, ${registers};",
    ]  # fmt: skip
    for i in range(0, registers, 4):
        sums = [f"${i + k}" for k in range(4)]
        lines.append(f"ld.shared::cta.v4.f32 {{{', '.join(sums)}}}, [at + {i * 512}];")
    for program in range(1, programs):
        for i in range(0, registers, 4):
            more = [f"more{program * registers + i + k}" for k in range(4)]
            place = program * distance + i * 512
            lines.append(f"ld.shared::cta.v4.f32 {{{', '.join(more)}}}, [at + {place}];")
            lines += [f"add.f32 ${i + k}, ${i + k}, {more[k]};" for k in range(4)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _written(count):
    """Constraints of `count` registers that are written before all has been read."""
    return ",".join(["=&f"] * count)
