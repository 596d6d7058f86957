"""async_copy: the producers are threads, which copy lines from any address.

Adds to       split_k: four producer warps, with cp.async or shifts, where one asked the copy engine
Mirrors       nothing; the CUDA ladder's copying rungs have no roles
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, LDGSTS, SYNCS, USETMAXREG, UTMASTG, no UTMALDG
Needs         sm_90; 16-bit operands with contiguous rows or columns; Gluon
Note          For lines that begin within a line of L2, of which the copy engine asks for two, or
              that it can't read: those on odd addresses are cut out of aligned vectors.
"""

import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..problem import Matrix, Problem
from ..spec import Arguments, Config, TritonKernel
from . import _gluon_host
from ._gluon import as_tile, buffers, first_part, make_ring, slab_rows, tile_at
from ._gluon_host import (
    ACCUMULATORS_OF_THREE,
    OPTIONS,
    OPTIONS_OF_THREE,
    c_major,
    config_of,
    config_why_not,
    configs_of,
    least_columns,
    output_columns,
    skinny,
    too_long,
    why_not_of_wgmma,
)
from ._gluon_parts import columns_at_once, compute, grid, splits, together, unit_at, workspace
from ._gluon_store import barrier, by_engine
from ._host import Box, _sizes, _strides
from ._ptx import cut_vectors

# The name that moved between Triton 3.6 and 3.9.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
#: Threads that copy.
PRODUCERS = gl.constexpr(128)


@gluon.constexpr_function
def vectors(inner, size, warps):
    """16 bytes of a lane, `size` elements, then of the next, along lines of `inner` 16-bit ones."""
    across = min(32, inner // 8)
    return gl.BlockedLayout([1, size], [32 // across, across], [warps, 1], [1, 0])


@gluon.constexpr_function
def arrivals(a_whole, b_whole):
    """At a stage's barrier: each thread's, once its cp.async have ended; and one for shifts."""
    return (PRODUCERS if a_whole or b_whole else 0) + (not (a_whole and b_whole))


@gluon.constexpr_function
def copiers(a_whole, b_whole):
    """Warpgroups that copy: loads to registers wait for memory, and others load meanwhile."""
    return 1 if a_whole and b_whole else 2


@gluon.jit
def eights(count):
    """`count`, of which the compiler shall know that 8 divides it."""
    return count // 8 * 8


@gluon.jit
def copy(memory, pointer, pitch, lines, inner, LINES: gl.constexpr, INNER: gl.constexpr,
         WHOLE: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """A tile from `pointer` on; of the matrix, `lines` and `inner` elements follow, else zeros.

    `WHOLE`: its lines are of whole 16 bytes on such boundaries.
    """
    if WHOLE:
        layout: gl.constexpr = vectors(INNER, 8, gl.num_warps())
        line = gl.arange(0, LINES, gl.SliceLayout(1, layout))
        element = gl.arange(0, INNER, gl.SliceLayout(0, layout))
        if WIDE:
            line = line.to(gl.int64)
        offsets = line[:, None] * eights(pitch) + element[None, :]
        mask = (line < lines)[:, None] & (element < eights(inner))[None, :]
        _copy(memory, pointer + offsets, mask)
    else:
        layout: gl.constexpr = vectors(INNER, 4, gl.num_warps())
        line = gl.arange(0, LINES, gl.SliceLayout(1, layout))
        word = gl.arange(0, INNER // 2, gl.SliceLayout(0, layout))
        left = gl.where(line < lines, 2 * gl.minimum(inner, INNER), -4 * INNER)
        left = left[:, None] - word[None, :] * 4
        if WIDE:
            line = line.to(gl.int64)
        address = pointer.to(gl.int64) + (line[:, None] * (2 * pitch) + word[None, :] * 4)
        words = cut_vectors(address, left)
        as_tile(memory, gl.int32, LINES, INNER // 2).store(words)


@gluon.jit
def element_at(ptr, line, element, pitch):
    """The address of an element."""
    return ptr + (gl.cast(line, gl.int64) * pitch + element)


@gluon.jit
def of_batch(ptr, b0, b1, stride0, stride1, WHOLE: gl.constexpr, BATCHED: gl.constexpr):
    """The address of a matrix."""
    if BATCHED:
        if WHOLE:
            stride0, stride1 = eights(stride0), eights(stride1)
        ptr += gl.cast(b0, gl.int64) * stride0 + gl.cast(b1, gl.int64) * stride1
    return ptr


@gluon.jit
def load(
    a_ptr, b_ptr, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
    stride_a0, stride_a1, pitch_a, stride_b0, stride_b1, pitch_b,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, A_WHOLE: gl.constexpr, B_WHOLE: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, COPIERS: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Producers: every step of every unit of this program, or every other one of two `COPIERS`."""
    N0: gl.constexpr = first_part(BLOCK_N)
    N1: gl.constexpr = BLOCK_N - N0
    if A_WHOLE:
        pitch_a = eights(pitch_a)
    if B_WHOLE:
        pitch_b = eights(pitch_b)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    gdc_wait()
    n = gl.to_tensor(0)
    for unit in range(gl.program_id(0), tiles * SPLIT_K, gl.num_programs(0)):
        tile, _, first, steps = unit_at(unit, tiles, K, BLOCK_K, SPLIT_K)
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        a_batch = of_batch(a_ptr, b0, b1, stride_a0, stride_a1, A_WHOLE, BATCHED)
        b_batch = of_batch(b_ptr, b0, b1, stride_b0, stride_b1, B_WHOLE, BATCHED)
        for step in range(steps):
            if n % COPIERS == WHICH:
                stage = n % STAGES
                mbarrier.wait(bars.index(STAGES + stage), (n // STAGES & 1) ^ 1)
                k = (first + step) * BLOCK_K
                to = a_ring.index(stage)
                if A_MAJOR == "N":
                    a = element_at(a_batch, row, k, pitch_a)
                    copy(to, a, pitch_a, M - row, K - k, BLOCK_M, BLOCK_K, A_WHOLE, WIDE)
                else:
                    a = element_at(a_batch, k, row, pitch_a)
                    copy(to, a, pitch_a, K - k, M - row, BLOCK_K, BLOCK_M, A_WHOLE, WIDE)
                to = b0_ring.index(stage)
                if B_MAJOR == "T":
                    b = element_at(b_batch, col, k, pitch_b)
                    copy(to, b, pitch_b, N - col, K - k, N0, BLOCK_K, B_WHOLE, WIDE)
                    if N1 > 0:
                        b = element_at(b_batch, col + N0, k, pitch_b)
                        to = b1_ring.index(stage)
                        copy(to, b, pitch_b, N - N0 - col, K - k, N1, BLOCK_K, B_WHOLE, WIDE)
                else:
                    b = element_at(b_batch, k, col, pitch_b)
                    copy(to, b, pitch_b, K - k, N - col, BLOCK_K, N0, B_WHOLE, WIDE)
                    if N1 > 0:
                        to = b1_ring.index(stage)
                        copy(to, b + N0, pitch_b, K - k, N - N0 - col, BLOCK_K, N1, B_WHOLE, WIDE)
                if A_WHOLE or B_WHOLE:
                    async_copy.mbarrier_arrive(bars.index(stage), increment_count=False)
                if not (A_WHOLE and B_WHOLE):
                    fence_async_shared()  # WGMMA sees what was stored
                    barrier()
                    mbarrier.arrive(bars.index(stage), count=1)
            n += 1


@gluon.jit(do_not_specialize=["M", "N", "K", "B0", "B1", "pitch_a", "pitch_b",
                              "stride_a0", "stride_a1", "stride_b0", "stride_b1",
                              "stride_c0", "stride_c1", "stride_cm", "stride_cn"])  # fmt: skip
def async_copy_kernel(
    a_ptr, b_ptr, c_desc, c_ptr, sums_ptr, counters_ptr,
    M, N, K, B0, B1,
    stride_a0, stride_a1, pitch_a, stride_b0, stride_b1, pitch_b,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    A_WHOLE: gl.constexpr, B_WHOLE: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    a_ring, b0_ring, b1_ring, bars = make_ring(
        a_ptr.dtype.element_ty, b_ptr.dtype.element_ty, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        A_MAJOR, B_MAJOR, arrivals(A_WHOLE, B_WHOLE),
    )  # fmt: skip
    c_memory = bars
    if by_engine(C_MAJOR):
        c_memory = buffers(1, slab_rows(BLOCK_M), EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
    COPIERS: gl.constexpr = copiers(A_WHOLE, B_WHOLE)
    COPIER: gl.constexpr = 136 if gl.num_warps() == 4 else 104  # registers
    if COPIERS == 1:
        gl.warp_specialize(
            [
                (compute, (
                    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
                    M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N, SPLIT_K,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TOGETHER, 0, True,
                )),
                (load, (
                    a_ptr, b_ptr, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    stride_a0, stride_a1, pitch_a, stride_b0, stride_b1, pitch_b,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, SPLIT_K,
                    A_MAJOR, B_MAJOR, A_WHOLE, B_WHOLE, BATCHED, WIDE, COPIERS, 0,
                )),
            ],
            [4], [136],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (compute, (
                    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
                    M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N, SPLIT_K,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TOGETHER, 0, True,
                )),
                (load, (
                    a_ptr, b_ptr, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    stride_a0, stride_a1, pitch_a, stride_b0, stride_b1, pitch_b,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, SPLIT_K,
                    A_MAJOR, B_MAJOR, A_WHOLE, B_WHOLE, BATCHED, WIDE, COPIERS, 0,
                )),
                (load, (
                    a_ptr, b_ptr, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    stride_a0, stride_a1, pitch_a, stride_b0, stride_b1, pitch_b,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, SPLIT_K,
                    A_MAJOR, B_MAJOR, A_WHOLE, B_WHOLE, BATCHED, WIDE, COPIERS, 1,
                )),
            ],
            [4, 4], [COPIER, COPIER],
        )  # fmt: skip


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages, with one copier.
TILES = (
    (128, 256, 64, 8, 3),
    (128, 192, 64, 8, 4),
    (128, 160, 64, 8, 4),
    (128, 128, 64, 8, 5),
    (128, 96, 64, 8, 6),
    (64, 128, 64, 4, 7),
    (64, 64, 64, 4, 10),
)


#: With two, for which registers are short: where lines end, ptxas puts some scalars aside.
SHIFTED = (
    (128, 96, 64, 8, 6),
    (128, 128, 64, 8, 5),
    (128, 192, 64, 8, 4),
    (64, 128, 64, 4, 7),
    (64, 64, 64, 4, 10),
)


def why_not(problem: Problem) -> str | None:
    reason = too_long(problem) or why_not_of_wgmma(problem)
    for name in "ab":
        matrix = getattr(problem, name)
        if not reason and matrix.layout == "-":
            strides = tuple(matrix.strides[2:])
            reason = f"{name}'s strides are {strides}; rows or columns must be contiguous"
    return reason


def suits(problem: Problem) -> bool:
    """Whether lines of an operand begin elsewhere than lines of L2, of 128 bytes, do."""
    return any(
        not matrix.aligned or (matrix.pitch(matrix.layout) or 1) * problem.itemsize % 128
        for matrix in (problem.a, problem.b)
        if matrix.layout != "-"
    )


def _whole(matrix: Matrix) -> bool:
    """Whether cp.async can copy its lines 16 bytes at a time."""
    batches = all(stride % 8 == 0 for stride in matrix.strides[:2])
    return matrix.aligned and matrix.pitch_is_multiple_of(8) and batches


@functools.lru_cache(maxsize=4096)
def _tiles(columns, least, copiers):
    return (TILES if copiers == 1 else SHIFTED) + skinny(columns, least)


def configs(problem):
    tiles = _tiles(problem.N, least_columns(problem), _copiers(problem))
    return tuple(
        config_of(c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages, split)
        for c in configs_of(problem, tiles, consumers=1)
        for split in splits(c, problem)
    )


def _copiers(problem: Problem) -> int:
    return 1 if _whole(problem.a) and _whole(problem.b) else 2


def _config_why_not(problem: Problem, config: Config) -> str | None:
    sums = config.BLOCK_M * config.BLOCK_N // (32 * config.num_warps)
    if _copiers(problem) == 2 and sums > ACCUMULATORS_OF_THREE:
        return (
            f"{sums} accumulators per thread; {ACCUMULATORS_OF_THREE} is possible where lines are "
            "shifted"
        )
    return config_why_not(1)(problem, config)


def _options(problem: Problem, config: Config):
    """Of 16 warps, 8 multiply."""
    return OPTIONS_OF_THREE if _copiers(problem) == 2 and config.num_warps == 8 else OPTIONS


def _c_box(problem: Problem, config: Config) -> Box | None:
    return _gluon_host._boxes(problem, config, 1, columns_at_once(problem, config))[3]


def _fixed(problem: Problem, config: Config):
    a_major, b_major = problem.a.layout, problem.b.layout
    values = {
        "A_MAJOR": a_major,
        "B_MAJOR": b_major,
        "C_MAJOR": c_major(problem),
        "A_WHOLE": _whole(problem.a),
        "B_WHOLE": _whole(problem.b),
        "EPI_N": output_columns(problem, config, 1, columns_at_once(problem, config)),
        "TOGETHER": together(problem, config),
        "pitch_a": problem.a.pitch(a_major),
        "pitch_b": problem.b.pitch(b_major),
    }
    strides = _strides("a", "01", problem.a) | _strides("b", "01", problem.b)
    return values | _sizes(problem) | strides | _strides("c", "01mn", problem.c)


def _tensors(problem: Problem, config: Config, a, b, c, *work):
    box = _c_box(problem, config)
    sums, counters = work or (None, None)
    return {
        "a_ptr": a,
        "b_ptr": b,
        "c_desc": box and box.gluon_descriptor(c),
        "c_ptr": c,
        "sums_ptr": sums,
        "counters_ptr": counters,
    }


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=async_copy_kernel,
    arguments=Arguments(_fixed, _tensors, workspace, _options),
    grid=grid, why_not=why_not, suits=suits, configs=configs, interpreted=None,
    config_why_not=_config_why_not,
    in_order=False,
)  # fmt: skip
