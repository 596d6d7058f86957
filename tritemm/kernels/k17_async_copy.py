"""async_copy: the producers are threads, which copy rows of any pitch 16 bytes at a time.

Adds to       split_k: four producer warps with cp.async in place of one that asks the copy engine
Mirrors       nothing; the CUDA ladder's copying rungs have no roles
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, LDGSTS, SYNCS, USETMAXREG, UTMASTG, no UTMALDG
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          For rows that begin anywhere in a line of L2: the copy engine asks for two lines each.
"""

import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..problem import Matrix, Problem
from ..spec import Arguments, Config, TritonKernel
from . import _gluon_host
from ._gluon import buffers, first_part, make_ring, slab_rows, tile_at
from ._gluon_host import (
    OPTIONS,
    c_major,
    config_of,
    config_why_not,
    configs_of,
    least_columns,
    output_columns,
    skinny,
    why_not_in_parts,
)
from ._gluon_parts import columns_at_once, compute, grid, splits, together, unit_at, workspace
from ._gluon_store import by_engine
from ._host import Box, _sizes, _strides, refusal

#: Threads that copy.
PRODUCERS = gl.constexpr(128)


@gluon.constexpr_function
def lanes(inner, warps):
    """16 bytes of a lane, then of the next, along lines of `inner` elements."""
    across = min(32, inner // 8)
    return gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def whole(count):
    """`count`, of which the compiler shall know that 8 divides it."""
    return count // 8 * 8


@gluon.jit
def places(pitch, LINES: gl.constexpr, INNER: gl.constexpr, WIDE: gl.constexpr):
    """Lines and elements of a tile that is stored so, and how far each is from the first."""
    layout: gl.constexpr = lanes(INNER, gl.num_warps())
    line = gl.arange(0, LINES, gl.SliceLayout(1, layout))
    inner = gl.arange(0, INNER, gl.SliceLayout(0, layout))
    if WIDE:
        offsets = line.to(gl.int64)[:, None] * pitch + inner[None, :]
    else:
        offsets = line[:, None] * pitch + inner[None, :]
    return line, inner, offsets


@gluon.jit
def copy(memory, pointer, places_, first_line, first, lines, inner):
    """A tile from (first_line, first) on; beyond `lines` and `inner` zeros."""
    line, element, offsets = places_
    mask = (first_line + line < lines)[:, None] & (first + element < inner)[None, :]
    async_copy.async_copy_global_to_shared(memory, pointer + offsets, mask)


@gluon.jit
def first_of(ptr, line, element, pitch):
    """The address of an element."""
    return ptr + (gl.cast(line, gl.int64) * pitch + element)


@gluon.jit
def of_batch(ptr, b0, b1, stride0, stride1, BATCHED: gl.constexpr):
    """The address of a matrix."""
    if BATCHED:
        ptr += gl.cast(b0, gl.int64) * whole(stride0) + gl.cast(b1, gl.int64) * whole(stride1)
    return ptr


@gluon.jit
def load(
    a_ptr, b_ptr, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
    stride_a0, stride_a1, pitch_a, stride_b0, stride_b1, pitch_b,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, BATCHED: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """The producers: every step of every unit of this program."""
    N0: gl.constexpr = first_part(BLOCK_N)
    N1: gl.constexpr = BLOCK_N - N0 if BLOCK_N > N0 else 8
    pitch_a, pitch_b = whole(pitch_a), whole(pitch_b)
    # Lines and their elements: K runs along a line, or from line to line.
    if A_MAJOR == "N":
        a_places = places(pitch_a, BLOCK_M, BLOCK_K, WIDE)
    else:
        a_places = places(pitch_a, BLOCK_K, BLOCK_M, WIDE)
    if B_MAJOR == "T":
        b0_places = places(pitch_b, N0, BLOCK_K, WIDE)
        b1_places = places(pitch_b, N1, BLOCK_K, WIDE)
    else:
        b0_places = places(pitch_b, BLOCK_K, N0, WIDE)
        b1_places = places(pitch_b, BLOCK_K, N1, WIDE)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    gdc_wait()
    n = gl.to_tensor(0)
    for unit in range(gl.program_id(0), tiles * SPLIT_K, gl.num_programs(0)):
        tile, _, first, steps = unit_at(unit, tiles, K, BLOCK_K, SPLIT_K)
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        a_batch = of_batch(a_ptr, b0, b1, stride_a0, stride_a1, BATCHED)
        b_batch = of_batch(b_ptr, b0, b1, stride_b0, stride_b1, BATCHED)
        for step in range(steps):
            stage = n % STAGES
            mbarrier.wait(bars.index(STAGES + stage), (n // STAGES & 1) ^ 1)
            k = (first + step) * BLOCK_K
            if A_MAJOR == "N":
                a = first_of(a_batch, row, k, pitch_a)
                copy(a_ring.index(stage), a, a_places, row, k, M, whole(K))
            else:
                a = first_of(a_batch, k, row, pitch_a)
                copy(a_ring.index(stage), a, a_places, k, row, K, whole(M))
            if B_MAJOR == "T":
                b = first_of(b_batch, col, k, pitch_b)
                copy(b0_ring.index(stage), b, b0_places, col, k, N, whole(K))
                if BLOCK_N > N0:
                    b += gl.cast(pitch_b, gl.int64) * N0
                    copy(b1_ring.index(stage), b, b1_places, col + N0, k, N, whole(K))
            else:
                b = first_of(b_batch, k, col, pitch_b)
                copy(b0_ring.index(stage), b, b0_places, k, col, K, whole(N))
                if BLOCK_N > N0:
                    copy(b1_ring.index(stage), b + N0, b1_places, k, col + N0, K, whole(N))
            async_copy.mbarrier_arrive(bars.index(stage), increment_count=False)
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
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    a_ring, b0_ring, b1_ring, bars = make_ring(
        a_ptr.dtype.element_ty, b_ptr.dtype.element_ty, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        A_MAJOR, B_MAJOR, PRODUCERS,
    )  # fmt: skip
    c_memory = bars
    if by_engine(C_MAJOR):
        c_memory = buffers(1, slab_rows(BLOCK_M), EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
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
                A_MAJOR, B_MAJOR, BATCHED, WIDE,
            )),
        ],
        [4], [96],
    )  # fmt: skip


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; the one for large problems first.
TILES = (
    (128, 256, 64, 8, 3),
    (128, 192, 64, 8, 4),
    (128, 160, 64, 8, 4),
    (128, 128, 64, 8, 5),
    (128, 96, 64, 8, 6),
    (64, 128, 64, 4, 7),
    (64, 64, 64, 4, 10),
)


def why_not(problem: Problem) -> str | None:
    reason = why_not_in_parts(problem)
    for name in "ab":
        matrix = getattr(problem, name)
        if not reason and _inner(name, matrix) % 8:
            lines = f"{name}'s {'rows' if _major(name, matrix) == 'N' else 'columns'}"
            reason = f"{lines} have {_inner(name, matrix)} elements; they are copied 8 at a time"
    return reason


def suits(problem: Problem) -> bool:
    """Whether lines of an operand begin elsewhere than lines of L2, of 128 bytes, do."""
    pitches = (m.pitch(_major(name, m)) for name, m in (("a", problem.a), ("b", problem.b)))
    return any(pitch and pitch * problem.itemsize % 128 for pitch in pitches)


def _major(name: str, matrix: Matrix) -> str:
    return "N" if refusal(name, matrix, "N") is None else "T"


def _inner(name: str, matrix: Matrix) -> int:
    """Elements of a line."""
    return matrix.cols if _major(name, matrix) == "N" else matrix.rows


@functools.lru_cache(maxsize=4096)
def _tiles(columns, least):
    return TILES + skinny(columns, least)


def configs(problem):
    return tuple(
        config_of(c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages, split)
        for c in configs_of(problem, _tiles(problem.N, least_columns(problem)), consumers=1)
        for split in splits(c, problem)
    )


def _c_box(problem: Problem, config: Config) -> Box | None:
    return _gluon_host._boxes(problem, config, 1, columns_at_once(problem, config))[3]


def _fixed(problem: Problem, config: Config):
    a_major, b_major = _major("a", problem.a), _major("b", problem.b)
    values = {
        "A_MAJOR": a_major,
        "B_MAJOR": b_major,
        "C_MAJOR": c_major(problem),
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
    arguments=Arguments(_fixed, _tensors, workspace, lambda problem, config: OPTIONS),
    grid=grid, why_not=why_not, suits=suits, configs=configs, interpreted=None,
    config_why_not=config_why_not(1),
    in_order=False,
)  # fmt: skip
