"""Products of 65 rows or more with a 4-bit weight, warp-specialised as in rung 10.

C.T = W @ x.T, from the bytes that `int4` describes. In one warp, TMA loads steps of 128 columns of
both. Each of two warpgroups has 64 rows of W: it unpacks their bytes, multiplies by the scales of
their groups, which rounds once, and passes WGMMA the fragments in registers. One unpacks while the
other's WGMMA runs; neither begins a step before its own WGMMA is complete (docs/tried.md says why).
"""

import dataclasses
import functools
from typing import Any

import torch
from triton import cdiv
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch import sm90
from ..arch.lines import Boxes
from ..arch.roles import config_of
from ..arch.tiles import Split
from ..problem import INTERPRETER, Config, Device, Problem
from ..runtime import binding
from ..runtime.workspace import Room
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.fragments import as_operand
from .device.language import Value, aggregate, async_load, reinterpret
from .device.mainloop import make_barriers, next_place, place, waited, zero_block
from .device.memory import buffers, tile_view
from .device.roles import load, run_roles
from .device.scheduler import SIZES, Scheduler
from .device.split_k import SplitK
from .int4 import BYTES, HALF, STEP, halves_text

#: Rows of W of a consumer.
SLAB = gl.constexpr(sm90.ROWS)
#: A box of packed bytes, 8 blocks of 8 rows; no side of one may have more than 256 elements.
BOX = gl.constexpr([8, 2, 256])
#: A slab's bytes [64, 64]: a thread has 16 of each of two rows.
LINES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]], [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 64],
    )
)  # fmt: skip
_FLAT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=3)


@gluon.constexpr_function
def scaled_text(brain, half):
    """`halves_text`, and each number times its scale."""
    kind = "bf16x2" if brain else "f16x2"
    return halves_text(brain, half, f"mul.rn.{kind} $0, $0, $3; mul.rn.{kind} $1, $1, $4;")


@gluon.jit
def unpacked(byte, factors, acc, WHICH: gl.constexpr):
    """Half `WHICH` of a slab's step, 64 columns, as WGMMA takes it for `acc`; registers only.

    `factors`: the scales of the step, one for each of its groups.
    """
    COUNT: gl.constexpr = len(factors)
    factor = factors[WHICH * COUNT // 2][:, None]
    if COUNT == 4:  # the first 32 columns are those of a < 4 in `int4`
        column = gl.arange(0, HALF, gl.SliceLayout(0, LINES))[None, :]
        factor = gl.where(column % 16 < 8, factor, factors[WHICH * 2 + 1][:, None])
    value = gl.inline_asm_elementwise(
        scaled_text(factor.dtype == gl.bfloat16, WHICH), "=&r,=&r,r,r,r", [byte, factor],
        factor.dtype, is_pure=False, pack=4,
    )  # fmt: skip
    value = value.reshape([SLAB, 4, 8, 2]).permute([0, 2, 1, 3]).reshape([SLAB, HALF])
    return as_operand(value, acc)


@aggregate
class Int4Loop:
    """A ring of stages as in `mainloop`, of packed bytes of W [rows, K] and x; and the scales."""

    packed_desc: Value
    x_desc: Value
    scale_ptr: Value
    rows: Value
    w_ring: Value
    x_ring: Value
    bars: Value
    GROUP: gl.constexpr
    SHAPE: gl.constexpr

    @gluon.jit
    def load(self, n, unit):
        """Load a unit whose first step is `n`; return the next unit's first step."""
        SHAPE: gl.constexpr = self.SHAPE
        SLABS: gl.constexpr = SHAPE.CONSUMERS
        W_BYTES: gl.constexpr = self.packed_desc.block_type.nbytes * SLABS
        EXPECTED: gl.constexpr = W_BYTES + self.x_desc.block_type.nbytes
        stage, odd = place(n, SHAPE.STAGES)
        for step in range(unit.first, unit.first + unit.steps):
            full = self.bars.index(stage)
            mbarrier.wait(self.bars.index(SHAPE.STAGES + stage), odd ^ 1)
            mbarrier.expect(full, EXPECTED)
            for i in gl.static_range(SLABS):
                block, memory = (unit.row + i * SLAB) // 8, self.w_ring.index(stage * SLABS + i)
                async_load(self.packed_desc, [block, 2 * step, 0], full, memory)
            async_load(self.x_desc, [unit.col, step * STEP], full, self.x_ring.index(stage))
            stage, odd = next_place(stage, odd, SHAPE.STAGES)
        return n + unit.steps

    @gluon.jit
    def factors(self, rows, step):
        """The scales of a step, of each of its groups one, for these rows."""
        COUNT: gl.constexpr = (STEP + self.GROUP - 1) // self.GROUP
        found = ()
        for i in gl.static_range(COUNT):
            # int64: groups * rows can pass 2**31
            group = gl.cast(step * STEP // self.GROUP + i, gl.int64)
            found += (gl.load(self.scale_ptr + group * self.rows + rows),)
        return found

    @gluon.jit
    def multiply(self, n, unit, WHICH: gl.constexpr):
        """The accumulator of a slab of a unit, complete, and the next unit's first step."""
        SHAPE: gl.constexpr = self.SHAPE
        acc = (zero_block(SLAB, SHAPE.BLOCK_N, self.x_ring.dtype, SHAPE.TYPE),)
        rows = unit.row + WHICH * SLAB + gl.arange(0, SLAB, gl.SliceLayout(1, LINES))
        rows = gl.minimum(rows, self.rows - 1)
        last = unit.first + unit.steps - 1
        factors = self.factors(rows, unit.first)
        stage, odd = place(n, SHAPE.STAGES)
        for step in range(unit.first, last + 1):
            following = self.factors(rows, gl.minimum(step + 1, last))
            mbarrier.wait(self.bars.index(stage), odd)
            lines = self.w_ring.index(stage * SHAPE.CONSUMERS + WHICH)
            flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
            byte = reinterpret(lines, gl.uint8, [SLAB, HALF], flat).load(LINES)
            left, right = unpacked(byte, factors, acc[0], 0), unpacked(byte, factors, acc[0], 1)
            x = tile_view(self.x_ring, stage, "T")
            more = step > unit.first
            sums = warpgroup_mma(left, x.slice(0, HALF, 0), acc[0], use_acc=more, is_async=True)
            sums = warpgroup_mma(right, x.slice(HALF, HALF, 0), sums, is_async=True)
            acc = waited((sums,), 0)
            mbarrier.arrive(self.bars.index(SHAPE.STAGES + stage))
            factors = following
            stage, odd = next_place(stage, odd, SHAPE.STAGES)
        return acc, n + unit.steps


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies its slab, and adds up partial sums where K is in parts."""
    work, loop, out, workspace = args
    gdc_wait()
    n = gl.to_tensor(0)
    for i in range(work.first(), work.units(), work.stride()):
        unit = work.unit(i)
        acc, n = loop.multiply(n, unit, WHICH)
        if work.SHAPE.SPLIT_K == 1:
            out.store(acc, unit, WHICH, WHICH)
        else:
            workspace.reduce(acc, out, unit, unit.tile * work.SHAPE.CONSUMERS + WHICH, WHICH, WHICH)
    out.tail()


@gluon.jit(do_not_specialize=SIZES)
def int4_roles_kernel(
    packed_desc, x_desc, c_desc, c_ptr, scale_ptr, bias_ptr, partials_ptr, counters_ptr,
    M, N, K, stride_cm, stride_cn, GROUP: gl.constexpr, SHAPE: gl.constexpr,
):  # fmt: skip
    """C.T [M, N] = W @ x.T: M rows of W, N of x."""
    gdc_launch_dependents()
    SLABS: gl.constexpr = SHAPE.CONSUMERS
    work = Scheduler(M, N, K, 1, 1, SHAPE)
    RING: gl.constexpr = [SHAPE.STAGES * SLABS] + BOX
    w_ring = gl.allocate_shared_memory(gl.uint8, RING, packed_desc.layout)
    x_ring = buffers(SHAPE.STAGES, STEP, SHAPE.BLOCK_N, "T", x_desc.dtype)
    bars = make_barriers(SHAPE.STAGES, SHAPE.STAGES, SLABS)
    loop = Int4Loop(packed_desc, x_desc, scale_ptr, M, w_ring, x_ring, bars, GROUP, SHAPE)
    args = EpilogueArgs(bias_ptr, None, None, None, Strides(0, 0, 0, 0))
    out = make_epilogue(c_desc, c_ptr, M, N, Strides(0, 0, stride_cm, stride_cn), args, SHAPE)
    run_roles(compute, load, (work, loop, out, SplitK(partials_ptr, counters_ptr, SHAPE)))


class Int4Tile(Split):
    """A tile for consumers with 64 rows each, whose A is packed, two numbers in a byte."""

    def __init__(self, p: Problem, c: Config):
        super().__init__(p, c)
        self.rows, self.of_tile, self.warps = sm90.ROWS, sm90.WARPGROUP, sm90.WARPGROUP
        self.sharers = self.consumers = c.BLOCK_M // self.rows

    @property
    def stage(self) -> int:
        return stage_bytes(self.c.BLOCK_M, self.c.BLOCK_N)


def stage_bytes(rows: int, columns: int) -> int:
    """Bytes of a stage of a tile: W, packed, and x in 16 bits."""
    return STEP.value * (rows // 2 + 2 * columns)


def config(rows: int, N: int, K: int, device: Device) -> Config:
    """The tile of C.T, and parts of K if there are few tiles.

    With a weight of 14336 x 4096, an H200 takes 1.6 times as long for 256 rows in tiles of 256
    columns as for 128 rows in tiles of 128.
    """
    tall = 2 * sm90.ROWS
    columns = 256 if 1.6 * cdiv(rows, 256) <= cdiv(rows, 128) else 128
    tiles = cdiv(rows, columns) * cdiv(N, tall)
    parts = max(1, min(device.sms // tiles, K // (8 * STEP.value), 8))
    room = device.shared - sm90.RESERVE - 32 * 2 * tall  # 32 columns or more are stored at a time
    stages = min(room // stage_bytes(tall, columns), 8)
    return config_of(tall, columns, STEP.value, 2 * sm90.WARPGROUP, stages, parts)


#: Tensors whose addresses the kernel takes; all but the scales may be missing.
BY_ADDRESS = "scale", "bias", "partials", "counters"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything of a launch that doesn't depend on the tensors' addresses."""

    values: dict[str, Any]
    options: dict[str, Any]
    grid: tuple[int]
    boxes: Boxes
    room: Room | None

    def arguments(self, there: dict[str, torch.Tensor]) -> dict[str, Any]:
        """The kernel's tensors and descriptors."""
        packed, x, out = (there[name] for name in ("packed", "x", "out"))
        blocks, steps = packed.shape[:2]
        shape, strides = [blocks, 2 * steps, 256], [steps * BYTES.value, 256, 1]
        return {
            "packed_desc": TensorDescriptor(packed, shape, strides, BOX.value, _FLAT),
            "x_desc": self.boxes.b.gluon_descriptor(x),
            "c_desc": self.boxes.c and self.boxes.c.gluon_descriptor(out),
            "c_ptr": out,
            **{f"{name}_ptr": there.get(name) for name in BY_ADDRESS},
        }


@functools.lru_cache(maxsize=4096)
def plan_of(shape, group: int, dtype, bias, device: Device, chosen: Config | None = None) -> Plan:
    """The plan of a product of `shape` (rows, N, K).

    `dtype` is that of x, the scales and the result; `bias` the bias's, if there is one.
    """
    rows, N, K = shape
    x, w, out = (
        torch.empty(size, dtype=dtype, device="meta") for size in ((rows, K), (N, K), (rows, N))
    )
    spec = {"bias": bias} if bias else {}
    problem = Problem.of(x, w.mT, out, device=device, **spec).transposed()
    chosen = chosen or config(rows, N, K, device)
    tile = Int4Tile(problem, chosen)
    values = {
        "M": N, "N": rows, "K": K, "stride_cm": 1, "stride_cn": N, "GROUP": group,
        "SHAPE": tile.shape,
    }  # fmt: skip
    programs = min(device.sms, chosen.units(problem))
    return Plan(values, tile.options, (programs,), tile.boxes, tile.workspace(problem, chosen))


def supports(device: torch.device) -> bool:
    """Whether there is WGMMA."""
    found = Device.of(device)
    return sm90.has_wgmma(found) and found != INTERPRETER


def multiply(x, packed, scale, bias, out, chosen: Config | None = None) -> None:
    """out [M, N] = x [M, K] @ W.T + bias; all are contiguous, and none is empty.

    `out` begins at a multiple of 16 bytes.
    """
    # So must the tensors that TMA reads.
    x, packed = (t.clone() if t.data_ptr() % sm90.TMA_BYTES else t for t in (x, packed))
    (rows, N), K = out.shape, x.shape[1]
    given = (rows, N, K), K // len(scale), x.dtype, None if bias is None else bias.dtype
    plan = plan_of(*given, Device.of(x.device), chosen)
    there = {"packed": packed, "x": x, "out": out, "scale": scale, "bias": bias}
    with torch.cuda.device_of(x):
        if plan.room:
            there |= zip(("partials", "counters"), plan.room.tensors(x.device), strict=True)
        there = {name: t for name, t in there.items() if t is not None}
        key = (*given, chosen, *((t.dtype, t.data_ptr() & 15) for t in there.values()))
        binding.launch(
            key, int4_roles_kernel, plan.grid, plan.values, plan.options, there, plan.arguments
        )
