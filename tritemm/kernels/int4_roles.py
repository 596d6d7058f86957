"""Products of many rows with a weight of 4 bits: warps with roles, as in `k10_warp_specialized`.

C.T = W @ x.T as in `int4`, whose bytes these are. One warp has TMA load a step of both, 128 of K.
Two warpgroups have 64 rows of W each: they turn bytes into numbers, multiply these by the scales of
their groups, and have WGMMA take the products, rounded once, from registers. While one does so, the
other keeps the tensor cores busy; neither begins before its own products are complete, since ptxas
doesn't find registers for more.
"""

import functools
from typing import Any, NamedTuple

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
from .device.language import Value, aggregate, async_load, reinterpret
from .device.mainloop import make_barriers, next_place, place, waited, zero_block
from .device.memory import buffers, mma_layout, tile_view
from .device.roles import load, run_roles
from .device.scheduler import SIZES, Scheduler
from .device.split_k import SplitK
from .int4 import STEP

#: Rows of W of a consumer, and of a tile; their bytes in a step.
SLAB, ROWS = gl.constexpr(64), gl.constexpr(128)
SLAB_BYTES = gl.constexpr(SLAB.value * STEP.value // 2)
#: A box of packed bytes, 8 blocks of 8 rows: lines of TMA have 256 elements at most.
BOX = (8, 2, 256)
_FLAT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=len(BOX))


@gluon.constexpr_function
def byte_layout():
    """Of a slab's bytes [64, 64]: a thread has 16 of each of two rows, as `int4` stores them."""
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]], [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 64],
    )  # fmt: skip


@gluon.constexpr_function
def fragment_layout(columns):
    """Of the rows that WGMMA takes from registers, for an accumulator of so many columns."""
    return gl.DotOperandLayout(0, mma_layout(columns, 4), 2)


@gluon.constexpr_function
def scaled_text(brain, half):
    """Four bytes' low or high halves, minus 8, times a scale each, in bf16 or fp16.

    A half becomes the lowest bits of 128, or of 1024 in fp16, which is then subtracted: exact. The
    product is rounded, as a sum with -0, because PTX has a product of pairs in fp16 alone.
    """
    kind = "bf16x2" if brain else "f16x2"
    base, one, less = ("0x43434343", "0x3f803f80", "0xc308c308")
    if not brain:
        base, one, less = ("0x64646464", "0x3c003c00", "0xe408e408")
    return f"""{{ .reg .b32 bits, one, less, none;
        mov.b32 one, {one}; mov.b32 less, {less}; mov.b32 none, 0x80008000;
        shr.u32 bits, $2, {4 * half}; and.b32 bits, bits, 0x0f0f0f0f;
        prmt.b32 $0, bits, {base}, 0x4140; prmt.b32 $1, bits, {base}, 0x4342;
        fma.rn.{kind} $0, $0, one, less; fma.rn.{kind} $1, $1, one, less;
        fma.rn.{kind} $0, $0, $3, none; fma.rn.{kind} $1, $1, $4, none; }}"""


@gluon.jit
def unpacked(byte, factors, HALF: gl.constexpr, LAYOUT: gl.constexpr):
    """64 columns of a slab's weight, from the halves of its bytes; registers only.

    `factors`: the scales of the step, one for each group.
    """
    EACH: gl.constexpr = len(factors) // 2  # of a half
    factor = factors[HALF * EACH][:, None]
    if EACH == 2:  # byte 16 t + 2 a + b is of column 8 a + 2 t + b
        place = gl.arange(0, 64, gl.SliceLayout(0, byte.type.layout))[None, :]
        factor = gl.where(place % 16 < 8, factor, factors[HALF * EACH + 1][:, None])
    value = gl.inline_asm_elementwise(
        scaled_text(factor.dtype == gl.bfloat16, HALF), "=&r,=&r,r,r,r", [byte, factor],
        factor.dtype, is_pure=False, pack=4,
    )  # fmt: skip
    value = value.reshape([64, 4, 8, 2]).permute([0, 2, 1, 3]).reshape([64, 64])
    return gl.convert_layout(value, LAYOUT, assert_trivial=True)


@aggregate
class Int4Loop:
    """A ring of stages as in `mainloop`, of packed bytes of W [N, K] and of x; and the scales."""

    packed_desc: Value
    x_desc: Value
    scale_ptr: Value
    N: Value
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
        BYTES: gl.constexpr = SLABS * SLAB_BYTES + self.x_desc.block_type.nbytes
        stage, odd = place(n, SHAPE.STAGES)
        for step in range(unit.first, unit.first + unit.steps):
            full = self.bars.index(stage)
            mbarrier.wait(self.bars.index(SHAPE.STAGES + stage), odd ^ 1)
            mbarrier.expect(full, BYTES)
            for i in gl.static_range(SLABS):
                block, memory = (unit.row + i * SLAB) // 8, self.w_ring.index(stage * SLABS + i)
                async_load(self.packed_desc, [block, 2 * step, 0], full, memory)
            async_load(self.x_desc, [unit.col, step * STEP], full, self.x_ring.index(stage))
            stage, odd = next_place(stage, odd, SHAPE.STAGES)
        return n + unit.steps

    @gluon.jit
    def factors(self, rows, step):
        """The scales of a step, of each half of its columns one or two, for these rows."""
        EACH: gl.constexpr = 2 if self.GROUP < STEP // 2 else 1
        found = ()
        for i in gl.static_range(2 * EACH):
            group = (step * STEP + i * (STEP // 2 // EACH)) // self.GROUP
            # int64: groups * N can pass 2**31
            found += (gl.load(self.scale_ptr + gl.cast(group, gl.int64) * self.N + rows),)
        return found

    @gluon.jit
    def multiply(self, n, unit, WHICH: gl.constexpr):
        """The accumulator of a slab of a unit, complete, and the next unit's first step."""
        SHAPE: gl.constexpr = self.SHAPE
        LAYOUT: gl.constexpr = byte_layout()
        FRAGMENT: gl.constexpr = fragment_layout(SHAPE.BLOCK_N)
        acc = zero_block(SLAB, SHAPE.BLOCK_N, self.x_ring.dtype, SHAPE.TYPE)
        rows = unit.row + WHICH * SLAB + gl.arange(0, SLAB, gl.SliceLayout(1, LAYOUT))
        rows = gl.minimum(rows, self.N - 1)
        last = unit.first + unit.steps - 1
        factors = self.factors(rows, unit.first)
        stage, odd = place(n, SHAPE.STAGES)
        for step in range(unit.first, last + 1):
            following = self.factors(rows, gl.minimum(step + 1, last))
            mbarrier.wait(self.bars.index(stage), odd)
            lines = self.w_ring.index(stage * SHAPE.CONSUMERS + WHICH)
            lines = reinterpret(lines, gl.uint8, [64, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
            byte = lines.load(LAYOUT)
            left = unpacked(byte, factors, 0, FRAGMENT)
            right = unpacked(byte, factors, 1, FRAGMENT)
            x = tile_view(self.x_ring, stage, "T")
            more = step > unit.first
            acc = warpgroup_mma(left, x.slice(0, 64, 0), acc, use_acc=more, is_async=True)
            acc = warpgroup_mma(right, x.slice(64, 64, 0), acc, is_async=True)
            acc = waited((acc,), 0)[0]
            mbarrier.arrive(self.bars.index(SHAPE.STAGES + stage))
            factors = following
            stage, odd = next_place(stage, odd, SHAPE.STAGES)
        return (acc,), n + unit.steps


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
    w_ring = gl.allocate_shared_memory(
        gl.uint8, [SHAPE.STAGES * SLABS, 8, 2, 256], packed_desc.layout
    )
    x_ring = buffers(SHAPE.STAGES, STEP, SHAPE.BLOCK_N, "T", x_desc.dtype)
    bars = make_barriers(SHAPE.STAGES, SHAPE.STAGES, SLABS)
    loop = Int4Loop(packed_desc, x_desc, scale_ptr, M, w_ring, x_ring, bars, GROUP, SHAPE)
    args = EpilogueArgs(bias_ptr, None, None, None, Strides(0, 0, 0, 0))
    out = make_epilogue(c_desc, c_ptr, M, N, Strides(0, 0, stride_cm, stride_cn), args, SHAPE)
    run_roles(compute, load, (work, loop, out, SplitK(partials_ptr, counters_ptr, SHAPE)), SLABS)


class Unpacked(Split):
    """A tile of two consumers of 64 rows, whose A comes as bytes of 4-bit halves."""

    def __init__(self, p: Problem, c: Config):
        super().__init__(p, c)
        self.rows, self.of_tile, self.warps = SLAB.value, sm90.WARPGROUP, sm90.WARPGROUP
        self.sharers = self.consumers = c.BLOCK_M // self.rows

    @property
    def columns(self) -> int:
        """As many as the stages leave room for."""
        room = self.facts.shared - sm90.RESERVE - self.c.num_stages * stage_bytes(self.c.BLOCK_N)
        each = self.c.BLOCK_M * self.facts.element
        return next((width for width in (64, 32, 16, 8) if width * each <= room), 0)


def stage_bytes(columns: int) -> int:
    """Bytes of a stage of tiles of so many columns: packed ones of W, and x in 16 bits."""
    return STEP.value * (ROWS.value // 2 + 2 * columns)


def config(rows: int, N: int, K: int, device: Device) -> Config:
    """The tile of C.T, [128, columns], and parts of K where there are few tiles.

    Measured on an H200, one of 256 columns takes 1.6 times as long as one of 128.
    """
    columns = 256 if 1.6 * cdiv(rows, 256) <= cdiv(rows, 128) else 128
    tiles = cdiv(rows, columns) * cdiv(N, ROWS.value)
    parts = max(1, min(device.sms // tiles, K // (8 * STEP.value), 8))
    room = device.shared - sm90.RESERVE - 32 * 2 * ROWS.value  # 32 columns are stored at a time
    stages = min(room // stage_bytes(columns), 8)
    return config_of(ROWS.value, columns, STEP.value, 8, stages, parts)


class Plan(NamedTuple):
    """All of a launch that doesn't depend on where tensors lie."""

    values: dict[str, Any]
    options: dict[str, Any]
    grid: tuple[int]
    boxes: Boxes
    room: Room | None

    def arguments(self, there: dict[str, torch.Tensor]) -> dict[str, Any]:
        """The kernel's tensors and descriptors."""
        packed, x, out = (there[name] for name in ("packed", "x", "out"))
        blocks, steps = packed.shape[:2]
        shape, strides = [blocks, 2 * steps, 256], [steps * 512, 256, 1]
        return {
            "packed_desc": TensorDescriptor(packed, shape, strides, [*BOX], _FLAT),
            "x_desc": self.boxes.b.gluon_descriptor(x),
            "c_desc": self.boxes.c and self.boxes.c.gluon_descriptor(out), "c_ptr": out,
            **{f"{name}_ptr": there.get(name) for name in OTHERS},
        }  # fmt: skip


#: Tensors that the kernel takes by their addresses; all but the scales may be missing.
OTHERS = "scale", "bias", "partials", "counters"


@functools.lru_cache(maxsize=4096)
def plan_of(shape, group: int, dtype, bias, device: Device, chosen: Config | None = None) -> Plan:
    """Of a product [rows, N, K], its types, and that of the bias if there is one."""
    rows, N, K = shape
    x, w, out = (
        torch.empty(size, dtype=dtype, device="meta") for size in ((rows, K), (N, K), (rows, N))
    )
    spec = {"bias": bias} if bias else {}
    problem = Problem.of(x, w.mT, out, device=device, **spec).transposed()
    chosen = chosen or config(rows, N, K, device)
    tile = Unpacked(problem, chosen)
    values = {
        "M": N, "N": rows, "K": K, "stride_cm": 1, "stride_cn": N, "GROUP": group,
        "SHAPE": tile.shape,
    }  # fmt: skip
    registers = sm90.REGISTERS[tile.sharers]
    options = {"num_warps": tile.warps, "maxnreg": registers, "launch_pdl": True}
    programs = min(device.sms, chosen.units(problem))
    return Plan(values, options, (programs,), tile.boxes, tile.workspace(problem, chosen))


def can(device: torch.device, packed: torch.Tensor) -> bool:
    """Whether there is WGMMA, and TMA can read the packed weight."""
    found = Device.of(device)
    return sm90.has_wgmma(found) and found != INTERPRETER and packed.data_ptr() % 16 == 0


def multiply(x, packed, scale, bias, out, chosen: Config | None = None) -> None:
    """out [M, N] = x [M, K] @ W.T + bias; all are contiguous, and none is empty."""
    x = x if x.data_ptr() % 16 == 0 else x.clone()
    (rows, N), K = out.shape, x.shape[1]
    kinds = x.dtype, None if bias is None else bias.dtype
    key = (rows, N, K), K // len(scale), *kinds, Device.of(x.device), chosen
    plan = plan_of(*key)
    there = {"packed": packed, "x": x, "out": out, "scale": scale}
    there |= {} if bias is None else {"bias": bias}
    with torch.cuda.device_of(x):
        if plan.room:
            there |= zip(("partials", "counters"), plan.room.tensors(x.device), strict=True)
        key += tuple(t.data_ptr() & 15 for t in there.values())
        binding.launch(
            key, int4_roles_kernel, plan.grid, plan.values, plan.options, there, plan.arguments
        )
