"""A ring of stages that TMA fills and all warps of a program read into registers, for one tile.

TMA and barriers are PTX, invisible to Triton, which would make all threads wait around each. A
warp that has used a stage arrives at its `empty` barrier. For each stage, one warp waits until all
have arrived, and has it filled again; one warp for all stages would fall behind the others.

The operand with the larger tile comes first, so that the other's stages begin at a multiple of
their own size, too, as views of the memory need. The barriers follow, and the whole is rounded up
to tiles of the larger operand.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from .language import Value, aggregate, barrier
from .ptx import asm, barrier_init, barrier_wait
from .raster import raster, split_batch
from .scheduler import Unit
from .split_k import arrive_last, arrive_owner
from .tile import EpilogueArgs, Strides, apply_epilogue, batch_offset, store, widen
from .triton_contract import allocate, shared_memory, tensor_map


@aggregate
class RegisterRing:
    """A ring of `STAGES` stages for the tiles of a unit.

    `whole` has `BYTES` bytes, at the address `memory`; the barriers are `BARRIERS` bytes after
    that. In an array of A's tiles, stage 0 is at index `A_FIRST`, and likewise for B.
    `LOAD` is the PTX that fills a stage.
    """

    whole: Value
    memory: Value
    unit: Value
    batch: Value
    warp: Value
    STAGES: gl.constexpr
    BLOCK_K: gl.constexpr
    BYTES: gl.constexpr
    A_FIRST: gl.constexpr
    B_FIRST: gl.constexpr
    BARRIERS: gl.constexpr
    LOAD: gl.constexpr

    @gluon.jit
    def fill(self, stage, odd, step):
        """If this warp is the stage's, wait until the stage is empty, and have it filled with that
        step of the unit, if there is one. `odd` is the parity of its `full` barrier then."""
        unit = self.unit
        mine = (stage & (gl.num_warps() - 1)) == self.warp
        more = (mine & (step < unit.steps)).to(gl.int32)
        k = (unit.first + step) * self.BLOCK_K
        place = (stage, odd ^ 1, unit.row, unit.col, k, more)
        asm(self.LOAD, place + (self.memory + self.BARRIERS, self.memory) + self.batch)

    @gluon.jit
    def start(self):
        """Have all stages but two filled; each warp issues the loads of its own stages."""
        AHEAD: gl.constexpr = self.STAGES - 2
        for i in gl.static_range(0, AHEAD, gl.num_warps()):
            stage = i + self.warp
            self.fill(stage, gl.to_tensor(0), gl.where(stage < AHEAD, stage, self.unit.steps))

    @gluon.jit
    def wait(self, stage, odd):
        """Wait until `stage` is full."""
        barrier_wait(self.memory + self.BARRIERS + 8 * stage, odd)

    @gluon.jit
    def release(self, stage, step):
        """Each warp arrives once for `stage`, which it read in the previous step, except in step 0.

        It can't arrive in the step that reads: an arrival overtakes loads in flight, and TMA would
        overwrite what is still to be read.
        """
        asm(
            """.reg .pred one; .reg .b32 lane;
            mov.u32 lane, %laneid;
            setp.eq.u32 one, lane, 0;
            setp.ne.and.u32 one, $2, 0, one;
            bar.warp.sync -1;
            @one mbarrier.arrive.release.cta.shared::cta.b64 _, [$1];""",
            (self.memory + (self.BARRIERS + 8 * self.STAGES) + 8 * stage, step),
        )


@gluon.jit
def make_ring(KERNEL: gl.constexpr, a_desc, b_desc, M, N, K, B1, parts, STAGES: gl.constexpr,
              BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
              ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT: gl.constexpr,
              BATCHED: gl.constexpr, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr):  # fmt: skip
    """The ring of the kernel of that name, whose first arguments are the descriptors.

    The first programs take the first part of K of each tile, the next ones the second.
    """
    tile, split, first, steps = gl.program_id(0), 0, 0, gl.cdiv(K, BLOCK_K)
    if SPLIT:  # without it no divisions, for which a program would wait
        tiles = gl.num_programs(0) // parts
        tile, split = tile % tiles, tile // tiles
        first = steps * split // parts
        steps = steps * (split + 1) // parts - first
    pid, b0, b1 = split_batch(tile, M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
    pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
    row, col = pid_m * BLOCK_M, pid_n * BLOCK_N

    SIZE: gl.constexpr = a_desc.dtype.primitive_bitwidth // 8
    A_BYTES: gl.constexpr = BLOCK_M * BLOCK_K * SIZE
    B_BYTES: gl.constexpr = BLOCK_N * BLOCK_K * SIZE
    BARRIERS: gl.constexpr = STAGES * (A_BYTES + B_BYTES)
    A_AT: gl.constexpr = STAGES * B_BYTES if BLOCK_M < BLOCK_N else 0
    B_AT: gl.constexpr = 0 if BLOCK_M < BLOCK_N else STAGES * A_BYTES
    LARGER: gl.constexpr = max(A_BYTES, B_BYTES)
    BYTES: gl.constexpr = (BARRIERS // LARGER + 1) * LARGER
    LOAD: gl.constexpr = load_text(
        KERNEL, BATCHED, STAGES, BLOCK_M, BLOCK_N, A_BYTES, B_BYTES, A_AT, B_AT,
        A_ALONG_K, B_ALONG_K, a_desc.block_type, b_desc.block_type,
    )  # fmt: skip
    whole = allocate(BYTES)
    memory = shared_memory()
    barrier_init(memory + BARRIERS, STAGES, gl.num_warps(), 0)
    barrier()
    gdc_wait()  # The next launch isn't let in early: it would crowd onto the SMs that have room.
    batch = ()
    if BATCHED:  # a broadcast batch has extent 1
        for desc in gl.static_range(2):
            sizes = b_desc.shape if desc else a_desc.shape
            batch += (gl.minimum(b0, sizes[0] - 1), gl.minimum(b1, sizes[1] - 1))
    unit = Unit(tile, split, first, steps, b0, b1, row, col)
    warp = gl.inline_asm_elementwise(
        "mov.u32 $0, %tid.x; shr.u32 $0, $0, 5;", "=r", [], gl.int32, is_pure=True, pack=1
    )
    return RegisterRing(
        whole, memory, unit, batch, warp, STAGES, BLOCK_K, BYTES, A_AT // A_BYTES, B_AT // B_BYTES,
        BARRIERS, LOAD,
    )  # fmt: skip


@gluon.constexpr_function
def load_text(kernel, batched, stages, block_m, block_n, a_bytes, b_bytes, a_at, b_at,
              a_along_k, b_along_k, a_box, b_box):  # fmt: skip
    """PTX by which a warp has a stage filled, once that is empty: for `asm` of 8 operands, or 12.

    $1 stage, $2 parity, $3 row, $4 column, $5 k, $6 whether this warp does, $7 barriers, $8 memory;
    of a batch $9 and $10 its indices for A, $11 and $12 those for B. A's stages begin `a_at` bytes
    into the memory, B's `b_at`. A tile comes in boxes: side by side across K, and then as many for
    each further panel.
    """
    text = [
        """.reg .pred skip, done, one; .reg .b32 who, full, at, line, k; .reg .b64 map;
        setp.eq.u32 skip, $6, 0;
        elect.sync who|one, -1;
        not.pred one, one;
        or.pred skip, skip, one;
        @skip bra over;
        shl.b32 full, $1, 3;
        add.u32 full, full, $7;
        again:""",
        f"mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [full + {8 * stages}], $2;",
        "@!done bra again;",
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], {a_bytes + b_bytes};",
    ]
    for operand, line, lines, size, first, along_k, box, b0, b1 in (
        ("a", "$3", block_m, a_bytes, a_at, a_along_k, a_box, "$9", "$10"),
        ("b", "$4", block_n, b_bytes, b_at, b_along_k, b_box, "$11", "$12"),
    ):
        corner = [*(("k", "line") if along_k else ("line", "k")), *((b1, b0) if batched else ())]
        load = (
            f"cp.async.bulk.tensor.{len(corner)}d.shared::cluster.global"
            f".mbarrier::complete_tx::bytes [at], [map, {{{', '.join(corner)}}}], [full];"
        )
        wide, deep = box.shape[-2:] if along_k else box.shape[-2:][::-1]
        next_box = f"add.u32 at, at, {box.nbytes}; add.u32 line, line, {wide};"
        next_panel = f"add.u32 at, at, {box.nbytes}; add.u32 k, k, {deep};"
        across = lines // wide
        panel = f"mov.b32 line, {line};" + next_box.join([load] * across)
        text += [
            f"mov.b64 map, {tensor_map(kernel, operand, batched)};", "cvta.param.u64 map, map;",
            f"mad.lo.u32 at, $1, {size}, $8;", f"add.u32 at, at, {first};", "mov.b32 k, $5;",
            next_panel.join([panel] * (size // (across * box.nbytes))),
        ]  # fmt: skip
    return "\n".join([*text, "over:"])


@gluon.jit
def in_vectors(strides, VECTOR: gl.constexpr):
    """The same strides, so that Triton sees that `VECTOR` divides them: of arguments it knows only
    whether 16 does."""
    b0, b1 = strides.b0 // VECTOR * VECTOR, strides.b1 // VECTOR * VECTOR
    return Strides(b0, b1, strides.m // VECTOR * VECTOR, strides.n)


@gluon.constexpr_function
def bands_of(size, warps, together):
    """How many bands of rows a tile of that many bytes is cut into to add parts of K.

    If programs run `together` and share them: up to 8, of 16 bytes for each thread or more. Else as
    few as leave each thread 256 bytes at most.
    """
    return min(8, size // (512 * warps)) if together else max(1, size // (8192 * warps))


@gluon.jit
def finish(acc, unit, parts, partials_ptr, counters_ptr, epilogue, c_ptr, strides, M, N,
           SPLIT: gl.constexpr, TOGETHER: gl.constexpr, VECTOR: gl.constexpr, BIAS: gl.constexpr,
           ACTIVATION: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Store a unit's tile after its epilogue; with K in parts (`SPLIT`), the sum of them all.

    The last program of a tile to arrive adds them; or, if all run `TOGETHER`, several programs add
    a share of its bands each. `strides` are those of C, `epilogue` `EpilogueArgs`. `VECTOR` divides
    N and all strides of rows and batches, so that as many neighbours are stored at a time.
    """
    N, strides = N // VECTOR * VECTOR, in_vectors(strides, VECTOR)
    if epilogue.residual_ptr is not None:
        bias_ptr, residual_ptr, alpha, beta = epilogue[:4]
        of_residual = in_vectors(epilogue.strides, VECTOR)
        epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, of_residual)
    if SPLIT:
        ROWS: gl.constexpr = acc.shape[0]
        COLUMNS: gl.constexpr = acc.shape[1]
        SIZE: gl.constexpr = acc.dtype.primitive_bitwidth // 8
        BANDS: gl.constexpr = bands_of(ROWS * COLUMNS * SIZE, gl.num_warps(), TOGETHER)
        LAYOUT: gl.constexpr = acc.type.layout
        rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
        partials_ptr += gl.cast(unit.tile, gl.int64) * parts * (ROWS * COLUMNS)
        place = unit.split * (ROWS * COLUMNS) + rows[:, None] * COLUMNS + columns[None, :]
        gl.store(partials_ptr + place, acc)
        word = counters_ptr + unit.tile
        if TOGETHER:
            shares = gl.minimum(parts, BANDS)
            mine = arrive_owner(word, unit.split, parts, shares)
        else:
            shares, mine = 1, arrive_last(word, parts).to(gl.int32)
        for i in range(BANDS):
            if (mine >> (i % shares)) & 1:
                row = i * (ROWS // BANDS)
                band = sum_of_parts(partials_ptr, row, parts, ROWS, COLUMNS, BANDS)
                write(
                    band, unit, row, epilogue, c_ptr, strides, M, N, BIAS, ACTIVATION, WIDE
                )  # fmt: skip
    else:
        write(acc, unit, 0, epilogue, c_ptr, strides, M, N, BIAS, ACTIVATION, WIDE)


@gluon.jit
def sum_of_parts(ptr, row, parts, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
                 BANDS: gl.constexpr):  # fmt: skip
    """The band of a tile from that row on, summed over all parts in their order, several of which
    are loaded at once."""
    SIZE: gl.constexpr = ptr.dtype.element_ty.primitive_bitwidth // 8
    ACROSS: gl.constexpr = min(32, COLUMNS * SIZE // 16)
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, 16 // SIZE], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0]
    )
    rows = row + gl.arange(0, ROWS // BANDS, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    ptr += rows[:, None] * COLUMNS + columns[None, :]
    total = gl.load(ptr, cache_modifier=".cg")
    AT_ONCE: gl.constexpr = max(1, 8192 * gl.num_warps() * BANDS // (ROWS * COLUMNS * SIZE))
    for first in range(1, parts, AT_ONCE):
        for j in gl.static_range(AT_ONCE):  # those behind the last are zeros
            part = ptr + (first + j) * (ROWS * COLUMNS)
            total += gl.load(part, first + j < parts, 0.0, cache_modifier=".cg")
    return total


@gluon.jit
def write(acc, unit, row, epilogue, c_ptr, strides, M, N, BIAS: gl.constexpr,
          ACTIVATION: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Apply the epilogue to the rows of a unit's tile from that one on, and store them."""
    LAYOUT: gl.constexpr = acc.type.layout
    rows = unit.row + row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, LAYOUT))
    columns = unit.col + gl.arange(0, acc.shape[1], gl.SliceLayout(0, LAYOUT))
    b0, b1, rows, columns = unit.b0, unit.b1, widen(rows, WIDE), widen(columns, WIDE)
    acc = apply_epilogue(acc, epilogue, b0, b1, rows, columns, M, N, BIAS, ACTIVATION)
    c_ptr += batch_offset(b0, b1, strides.b0, strides.b1)
    store(c_ptr, acc, rows, columns, M, N, strides.m, strides.n)
