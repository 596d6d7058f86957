"""Which layout avoids bank conflicts?

The kernel stores tiles of A and B in shared memory and reads them with `ldmatrix`, which reads the
same chunk of eight rows at once: of rows 0 to 7, of rows 8 to 15, and so on. A chunk is 8 elements,
or 16 bytes. Shared memory has 32 banks of 4 bytes each, and the eight chunks arrive at once only if
no two of them share a bank. In `gl.SwizzledSharedLayout(vec, per_phase, max_phase, order)` a chunk
has `vec` elements, and chunk c of row r is at place c ^ (r // per_phase % max_phase) of its row.
The given layout is plain. Choose per_phase and max_phase for rows of 16, 32, 64 and 128 elements.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritemm.kernels.device import mma_sync as mma

from ...pictures.banks import BANKS, CHUNK, place
from .checker import WATCHDOG, Wrong, explained, found


@gluon.constexpr_function
def layout_of(BLOCK_K):
    # --- your part: per_phase and max_phase for rows of BLOCK_K elements
    per_phase = max(1, 64 // BLOCK_K)
    max_phase = min(8 // per_phase, BLOCK_K // 8)
    # --- to start from
    #| per_phase = 1
    #| max_phase = 1
    # --- end
    return gl.SwizzledSharedLayout(8, per_phase, max_phase, [1, 0])


@gluon.jit
def permuted_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    pitch_a, pitch_b, stride_cm,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """A is M x K and B is N x K, both by rows of whole chunks, as "K" says."""
    row, col = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    a_ptrs = mma.tile_ptrs(a_ptr, row, M, pitch_a, BLOCK_M, BLOCK_K, "K")
    b_ptrs = mma.tile_ptrs(b_ptr, col, N, pitch_b, BLOCK_N, BLOCK_K, "K")
    layout: gl.constexpr = layout_of(BLOCK_K)
    a_memory = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [BLOCK_M, BLOCK_K], layout)
    b_memory = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [BLOCK_N, BLOCK_K], layout)
    acc = mma.zeros(BLOCK_M, BLOCK_N, gl.float32)
    for left in range(K, 0, -BLOCK_K):
        a_memory.store(mma.load_tile(a_ptrs, left, "K", False))
        b_memory.store(mma.load_tile(b_ptrs, left, "K", False))
        a_ptrs = mma.next_step(a_ptrs, pitch_a, "K")
        b_ptrs = mma.next_step(b_ptrs, pitch_b, "K")
        acc = mma.multiply(a_memory, b_memory, acc)
        mma.barrier()  # all have read the tiles
    mma.store_tile(c_ptr, acc, row, col, M, N, stride_cm, 1, "n", False)


# --- the check
HINT = """
All banks together are 128 bytes wide, or 64 elements. In rows of 64 elements, the same chunk is in
the same banks in every row, so each of the eight rows needs a phase of its own. Two rows of 32
elements fill the banks without sharing one, so both can have the same phase. How many rows can
share a phase, and how many phases do eight rows then need?
"""
DEPTHS, ROWS = (64, 32, 128, 16), 16


def check(module):
    for depth in DEPTHS:
        case = f"With rows of {depth} elements"
        layout = laid_out(module, depth)
        if (layout.vec, list(layout.order)) != (8, [1, 0]):
            raise Wrong(f"{case} vec is {layout.vec} and order {layout.order}: keep 8 and [1, 0].")
        for name in ("per_phase", "max_phase"):
            if not isinstance(value := getattr(layout, name), int) or value < 1:
                raise Wrong(f"{case}, {name} is {value}; it should be a whole number from 1 on.")
        phases = {row // layout.per_phase % layout.max_phase for row in range(ROWS)}
        chunks = depth // 8
        if (most := max(chunk ^ phase for phase in phases for chunk in range(chunks))) >= chunks:
            raise Wrong(
                f"{case}, per_phase = {layout.per_phase} and max_phase = {layout.max_phase}: a "
                f"chunk would be at place {most} of its row, which has only {chunks} places."
            )
        banks_apart(layout, depth, case)


def banks_apart(layout, depth, case):
    """`Wrong` if any of what `ldmatrix` reads at once shares a bank."""
    for first in range(0, ROWS, 8):
        for chunk in range(depth // 8):
            spots = [place(layout, first + row, chunk, depth) % BANKS // CHUNK for row in range(8)]
            worst = max(spots, key=spots.count)
            rows = [first + row for row, spot in enumerate(spots) if spot == worst]
            if len(rows) > 1:
                raise Wrong(
                    f"{case}, per_phase = {layout.per_phase} and max_phase = {layout.max_phase}: "
                    f"chunk {chunk} of the rows {', '.join(map(str, rows))} is in the same banks, "
                    f"{4 * worst} to {4 * worst + 3}."
                )


def laid_out(module, depth):
    """The layout that the file has for rows of so many elements."""
    function = found(module, "layout_of")
    try:
        with WATCHDOG.limited():
            layout = function(depth)
        return getattr(layout, "value", layout)
    except Exception as error:
        raise explained(module.__file__, error, f", with rows of {depth} elements") from error
