"""Properties of Triton that kernels in PTX rely on, but no documentation promises.

A test reads each of these in the PTX that Triton emits (tests/kernels/test_triton_contract.py):

1. A program's shared memory begins at the symbol `global_smem`, and its largest allocation comes
   first.
2. An allocation keeps its place from its first use to its last, as Triton sees them; before and
   after, others may have it. Triton doesn't see what PTX does at an address.
3. The PTX entry has the name of the kernel's function, and its parameters are NAME_param_0 and so
   on. A tensor descriptor is a parameter for its map, then one for each size and each stride.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: Words of a block of an allocation that PTX uses.
WORDS = gl.constexpr(256)


@gluon.jit
def shared_memory():
    """The address of the largest allocation."""
    return gl.inline_asm_elementwise(
        "mov.u32 $0, global_smem;", "=r", [], gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def allocate(BYTES: gl.constexpr):
    """Shared memory for PTX to use, to be the largest allocation; `keep` ends its use."""
    BLOCKS: gl.constexpr = BYTES // (4 * WORDS)
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    memory = gl.allocate_shared_memory(gl.int32, [BLOCKS, WORDS], layout)
    keep(memory)
    return memory


@gluon.jit
def keep(memory):
    """Use an allocation: write its last 128 words, which PTX leaves alone."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    last = memory.index(memory.shape[0] - 1)
    last.slice(WORDS - 128, 128).store(gl.zeros([128], gl.int32, layout))


@gluon.constexpr_function
def tensor_map(kernel, operand, batched):
    """The name in PTX of the tensor map of A or B, the first arguments of `kernel`."""
    sizes_and_strides = 2 * (4 if batched else 2)
    return f"{kernel}_param_{0 if operand == 'a' else 1 + sizes_and_strides}"
