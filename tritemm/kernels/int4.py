"""Products of few rows with a 4-bit weight, and its unpacking for products of many rows.

With WGMMA, `int4_roles` multiplies row counts in between.

The product is no rung, though it multiplies like one. C.T = W @ x.T: rows of W fill the
instruction's rows, and the rows of x are its columns. Bytes become 16-bit integers only in the
registers that the tensor core reads, and the sum over a group of columns is multiplied by the
group's scale in fp32. For up to 4 rows each warp is a lane along K: it loads its own steps into
registers. For more, warps share steps, copied to shared memory; TMA copies those of x if the device
has it.

`packed` [ceil(N / 8), K / 128, 8, 64]: the bytes of 8 rows and 128 columns are contiguous. Of the
64 bytes of a row, byte 16 t + 2 a + b (b < 2) holds column k = 8 a + 2 t + b in its low half and
column k + 64 in its high half, both plus 8. So what thread t < 4 of a row multiplies is 16
contiguous bytes. `scale` is [K / group, N].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..arch.sm90 import has_tma, has_wgmma, launches_early
from ..problem import Device
from ..runtime import binding
from ..runtime.workspace import Room
from .device.tile import INTERPRETED, convert, dot, follow, store

#: Columns in one half of a row's bytes, and in a step along K; bytes of 8 rows in a step.
HALF, STEP, BYTES = tl.constexpr(64), tl.constexpr(128), tl.constexpr(512)


@triton.jit
def row_of(line, LANES: tl.constexpr, WARPS: tl.constexpr):
    """The row of the tile that a line, 64 bytes, belongs to, and the lane along K.

    Loads deal out 8 lines to each warp in turn; in this order, a warp gets 16 neighbouring rows.
    """
    warp, block = line // 8 % WARPS, line // (8 * WARPS)
    row = (block // 2 * (WARPS // LANES) + warp // LANES) * 16 + block % 2 * 8 + line % 8
    return row, warp % LANES


@triton.jit
def folded(tile):
    """Without lanes if there is one: three-dimensional dots aren't WGMMA."""
    return tile.reshape(tile.shape[1], tile.shape[2]) if tile.shape[0] == 1 else tile


@triton.jit
def scales_of(scale, step, last, col, N, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
              LANES: tl.constexpr, DEPTH: tl.constexpr, WARPS: tl.constexpr):  # fmt: skip
    """The scales of each group of `DEPTH` steps; each of the four threads of a row loads its."""
    row, lane = row_of(tl.arange(0, 4 * LANES * BLOCK_N) // 4, LANES, WARPS)
    values = ()
    for i in tl.static_range(DEPTH):
        at = tl.minimum(step + i * LANES + lane, last - 1) * STEP
        for j in tl.static_range((STEP + GROUP - 1) // GROUP):
            group = (at // GROUP + j).to(tl.int64)  # int64: groups * N can pass 2**31
            values += (tl.load(scale + group * N + tl.minimum(col + row, N - 1)),)
    return values


@triton.jit
def spread(value, BLOCK_M: tl.constexpr, LANES: tl.constexpr, WARPS: tl.constexpr):
    """Loaded scales as factors of the sums: no data moves."""
    ROWS: tl.constexpr = value.shape[0] // (4 * LANES)
    value = value.to(tl.float32).reshape(ROWS * LANES // (16 * WARPS), 2, WARPS // LANES, LANES, 32)
    value = value.permute(3, 0, 2, 1, 4).reshape(LANES, ROWS, 1, 4, 1)
    value = tl.broadcast_to(value, (LANES, ROWS, BLOCK_M // 8, 4, 2))
    return folded(value.reshape(LANES, ROWS, BLOCK_M))


@triton.constexpr_function
def halves_text(brain, half, more=""):
    """Assembly: four bytes' low or high halves, minus 8, in bf16 or fp16, and then `more` of them.

    A half becomes the lowest bits of 128, or of 1024 in fp16; 136 or 1032 is subtracted, exactly.
    Kernels call it impure to keep the compiler from moving it to a layout in which a register has
    bytes of two rows.
    """
    kind = "bf16x2" if brain else "f16x2"
    base, one, less = ("43", "3f80", "c308") if brain else ("64", "3c00", "e408")
    return f"""{{ .reg .b32 bits, one, less; mov.b32 one, 0x{2 * one}; mov.b32 less, 0x{2 * less};
        shr.u32 bits, $2, {4 * half}; and.b32 bits, bits, 0x0f0f0f0f;
        prmt.b32 $0, bits, 0x{4 * base}, 0x4140; prmt.b32 $1, bits, 0x{4 * base}, 0x4342;
        fma.rn.{kind} $0, $0, one, less; fma.rn.{kind} $1, $1, one, less; {more} }}"""


@triton.jit
def halves(byte, like, WHICH: tl.constexpr, LANES: tl.constexpr, WARPS: tl.constexpr):
    """64 columns: low or high halves of the bytes, minus 8, in the type that `like` points to."""
    if INTERPRETED:
        value = ((byte >> 4 * WHICH & 15).to(tl.float32) - 8).to(like.dtype.element_ty)
    else:
        TEXT: tl.constexpr = halves_text(like.dtype.element_ty == tl.bfloat16, WHICH)
        value = tl.inline_asm_elementwise(
            TEXT, "=&r,=&r,r", [byte], dtype=like.dtype.element_ty, is_pure=False, pack=4
        )
    # From lines and bytes to rows and columns, in the order of the instruction: no data moves.
    ROWS: tl.constexpr = byte.shape[0] // LANES
    tile = value.reshape(ROWS * LANES // (16 * WARPS), 2, WARPS // LANES, LANES, 8, 4, 8, 2)
    return tile.permute(3, 0, 2, 1, 4, 6, 5, 7).reshape(LANES, ROWS, HALF)


@triton.jit
def weights(byte, like, WHICH: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
            WARPS: tl.constexpr):  # fmt: skip
    """Half `WHICH` of a step, one part of 64 columns or two of 32; or, if `WIDTH` is 128, all."""
    tile = halves(byte, like, WHICH, LANES, WARPS)
    if WIDTH == STEP:
        tile = tl.join(tile, halves(byte, like, 1, LANES, WARPS)).permute(0, 1, 3, 2)
        parts = (folded(tile.reshape(LANES, tile.shape[1], STEP)),)
    elif WIDTH == 32:
        first, second = tile.reshape(LANES, tile.shape[1], 2, 32).permute(0, 1, 3, 2).split()
        parts = (folded(first), folded(second))
    else:
        parts = (folded(tile),)
    return parts


@triton.jit(do_not_specialize=["M"])
def int4_kernel(
    x, packed, scale, bias, out, partials, counters, M, N, STEPS,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, SPLIT_K: tl.constexpr,
    LANES: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr,
    WIDTH: tl.constexpr, PDL: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """A tile of out [M, N] = x [M, K] @ W.T + bias, or one part of its sums; K is 128 * STEPS.

    `LANES` are 1 or `WARPS`, and in each turn of the loop a lane multiplies `DEPTH` steps. `EVEN`:
    the steps of a turn divide each part, as they must if there is one lane. A product has
    `WIDTH` columns, of one group: 32, 64 or, by WGMMA alone, 128, since HMMA's registers have
    another order. With `TMA`, x is a descriptor.
    """
    tiles = tl.num_programs(0) // SPLIT_K
    tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    in_m = tl.cdiv(M, BLOCK_M)  # tiles that read the same weights are neighbours
    row, col = tile % in_m * BLOCK_M, tile // in_m * BLOCK_N
    first = split * tl.cdiv(STEPS, SPLIT_K)
    last = tl.minimum(first + tl.cdiv(STEPS, SPLIT_K), STEPS)
    line, lane = row_of(tl.arange(0, LANES * BLOCK_N), LANES, WARPS)
    # int64: N * K / 2 can pass 2**31
    lines = tl.minimum((col + line) // 8, (N - 1) // 8).to(tl.int64) * STEPS + first + lane
    lines = packed + lines * BYTES + line % 8 * HALF
    if PDL:  # weights needn't wait for the launch before: L2 fetches two steps of each lane
        ahead = lines + tl.where(first + 2 * LANES <= last, lane * BYTES + line % 8 * HALF, 0)
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [ahead],
                                  tl.int32, is_pure=False, pack=1)  # fmt: skip
    follow(PDL)
    lines = lines[:, None] + tl.arange(0, HALF)[None, :]
    PART: tl.constexpr = max(WIDTH, HALF)
    POLICY: tl.constexpr = "evict_first" if LANES > 1 else ""
    if LANES > 1:  # a thread loads 2 columns at a time: (8 rows, 8 columns, lane, row, thread)
        x_line = tl.arange(0, BLOCK_M * WIDTH * LANES // 2)
        rows, x_lane = x_line // (4 * WIDTH * LANES) * 8 + x_line // 4 % 8, x_line // 32 % LANES
        at = x_lane * STEP + x_line // (32 * LANES) % (WIDTH // 8) * 8 + x_line % 4 * 2
        at = at[:, None] + tl.arange(0, 2)[None, :]
    else:
        rows, at = tl.arange(0, BLOCK_M), tl.arange(0, WIDTH)[None, :]
    if not TMA:
        # int64: M * K can pass 2**31. Rows past the last one load the last one again.
        rows = tl.minimum(row + rows, M - 1).to(tl.int64)
        x += rows[:, None] * (STEPS * STEP) + first * STEP + at
    GROUPS: tl.constexpr = (STEP + GROUP - 1) // GROUP
    scales = scales_of(scale, first, last, col, N, BLOCK_N, GROUP, LANES, DEPTH, WARPS)
    sums = folded(tl.zeros((LANES, BLOCK_N, BLOCK_M), tl.float32))
    for step in tl.range(first, last, LANES * DEPTH, num_stages=STAGES):
        # Scales aren't prefetched by the pipeline, so they are loaded an iteration ahead.
        following = scales_of(scale, step + LANES * DEPTH, last, col, N, BLOCK_N, GROUP, LANES,
                              DEPTH, WARPS)  # fmt: skip
        byte = ()
        for i in tl.static_range(DEPTH):
            inside = None if EVEN else (step + i * LANES + lane < last)[:, None]
            byte += (tl.load(lines + i * LANES * BYTES, inside, eviction_policy=POLICY),)
        for i in tl.static_range(DEPTH):
            of_group = tl.zeros_like(sums)
            for which in tl.static_range(STEP // PART):
                parts = weights(byte[i], out, which, WIDTH, LANES, WARPS)
                for j in tl.static_range(PART // WIDTH):
                    here = i * LANES * STEP + which * HALF + j * WIDTH
                    if TMA:
                        tile_x = x.load([row, step * STEP + here]).T
                    elif LANES == 1:
                        tile_x = tl.load(x + here).T
                    else:
                        inside = None if EVEN else (step + i * LANES + x_lane < last)[:, None]
                        tile_x = tl.load(x + here, inside, other=None if EVEN else 0.0)
                        tile_x = tile_x.reshape(BLOCK_M // 8, WIDTH // 8, LANES, 8, 4, 2)
                        tile_x = tile_x.permute(2, 1, 4, 5, 0, 3).reshape(LANES, WIDTH, BLOCK_M)
                    of_group = dot(parts[j], tile_x, of_group, "ieee")
                    if (which * HALF + (j + 1) * WIDTH) % min(GROUP, STEP) == 0:
                        factor = scales[i * GROUPS + (which * HALF + j * WIDTH) // GROUP]
                        sums += of_group * spread(factor, BLOCK_M, LANES, WARPS)
                        of_group = tl.zeros_like(sums)
        scales, lines = following, lines + LANES * DEPTH * BYTES
        if not TMA:
            x += LANES * DEPTH * STEP
    sums = (tl.sum(sums, 0) if LANES > 1 else sums).T
    rows, cols = tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
    if SPLIT_K > 1:
        # partials [tiles, SPLIT_K, BLOCK_M, BLOCK_N]
        SIZE: tl.constexpr = BLOCK_M * BLOCK_N
        partials += tile.to(tl.int64) * (SPLIT_K * SIZE)
        place = rows[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        inside = rows[:, None] < M - row
        tl.store(partials + split * SIZE + place, sums, mask=inside)
        tl.debug_barrier()  # orders the program's stores before the atomic's release
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") != SPLIT_K - 1:
            return
        # The last program of a tile adds the parts in their order along K.
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for i in tl.range(SPLIT_K, loop_unroll_factor=max(1, 8192 // SIZE)):
            part = partials + i * SIZE + place
            sums += tl.load(part, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(counters + tile, 0)
    if bias is not None:
        sums += tl.load(bias + cols, mask=cols < N, other=0).to(tl.float32)[None, :]
    # int64: rows of a tile * N can pass 2**31
    store(out + row.to(tl.int64) * N, sums, rows.to(tl.int64), cols, M - row, N, N, 1)


@triton.jit
def dequantize_kernel(packed, scale, out, N, STEPS, GROUP: tl.constexpr, COUNT: tl.constexpr):
    """8 rows and `COUNT` steps of out [N, K]."""
    block, step = tl.program_id(0), tl.program_id(1) * COUNT
    at = tl.arange(0, COUNT * BYTES)
    # int64: N * K / 2 can pass 2**31
    start = packed + (block.to(tl.int64) * STEPS + step) * BYTES
    byte = tl.load(start + at, mask=at < (STEPS - step) * BYTES, other=0)
    byte = byte.reshape(COUNT, 8, 4, 8, 2).permute(1, 0, 3, 2, 4).reshape(8, COUNT, HALF)
    numbers = tl.join(byte & 15, byte >> 4).permute(0, 1, 3, 2).to(tl.float32) - 8
    PIECES: tl.constexpr = COUNT * (STEP // 32)  # no group is smaller
    rows, piece = block * 8 + tl.arange(0, 8), tl.arange(0, PIECES)
    group = ((step * STEP + piece * 32) // GROUP).to(tl.int64)  # groups * N can pass 2**31
    inside = (rows[:, None] < N) & (piece[None, :] < (STEPS - step) * (STEP // 32))
    factor = tl.load(scale + group[None, :] * N + rows[:, None], mask=inside, other=0)
    values = numbers.reshape(8, PIECES, 32) * factor.to(tl.float32)[:, :, None]
    cols = piece[:, None] * 32 + tl.arange(0, 32)[None, :]
    start = out + rows.to(tl.int64)[:, None, None] * (STEPS * STEP) + step * STEP
    values = convert(values, out.dtype.element_ty)
    tl.store(start + cols[None, :, :], values, mask=inside[:, :, None])


def dequantize(packed, scale, out) -> None:
    """Fill out [N, K], of products rounded once; all are contiguous, and none is empty."""
    steps, count = packed.shape[1], 4
    grid, group = (len(packed), triton.cdiv(steps, count)), out.shape[1] // len(scale)
    values = {"N": len(out), "STEPS": steps, "GROUP": group, "COUNT": count}
    tensors = {"packed": packed, "scale": scale, "out": out}
    binding.launch_alike(dequantize_kernel, grid, values, tensors, 4)


#: Programs that an SM runs at once, by the rows of a tile; those of 8 rows use lanes.
PROGRAMS = {8: 4, 16: 8, 32: 4, 64: 2, 128: 2}


def config(M: int, N: int, steps: int, group: int, device: Device) -> dict[str, int]:
    """The tile, and the parts of K: about as many programs as the device runs at once."""
    # Small groups, whose sums are kept apart, leave few registers, and so do addresses of x.
    highest = 128 if group > 32 else 64
    rows = 8 if M <= 4 else min(highest, max(16, triton.next_power_of_2(M)))
    columns, lanes, stages = (32, 4, 1) if rows == 8 else (64, 1, 3)
    depth = 2 if group > 32 and rows < 128 and (lanes > 1 or has_tma(device)) else 1
    tiles = triton.cdiv(M, rows) * triton.cdiv(N, columns)
    # A part has 4 steps or more, or 8 with lanes, and its sums have fewer bytes than its weight.
    least = 4 if lanes == 1 else 8
    most = min(device.sms * PROGRAMS[rows] // tiles, steps // least, 8 * steps // rows, 8)
    parts = 1 << max(1, most).bit_length() - 1
    part = triton.cdiv(steps, parts)
    if lanes == 1:
        depth = depth if steps % depth == 0 else 1
        part = triton.cdiv(part, depth) * depth
        stages = min(stages, device.shared // (depth * (columns * 64 + rows * 256)))
    parts = triton.cdiv(steps, part)  # so no part is empty
    whole = lanes == 1 and has_wgmma(device)
    return {
        "BLOCK_M": rows, "BLOCK_N": columns, "SPLIT_K": parts, "LANES": lanes, "DEPTH": depth,
        "STAGES": stages, "WARPS": 4, "WIDTH": min(group, 128 if whole else 64),
        "EVEN": is_even(steps, parts, depth * lanes),
    }  # fmt: skip


def is_even(steps: int, parts: int, turn: int) -> bool:
    """Whether each part of K is a whole number of turns of this many steps."""
    return steps % turn == 0 and triton.cdiv(steps, parts) % turn == 0


def multiply(x, packed, scale, bias, out, chosen: dict[str, int] | None = None) -> None:
    """out [M, N] = x [M, K] @ W.T + bias; all are contiguous, and none is empty."""
    (M, N), steps, device = out.shape, packed.shape[1], Device.of(x.device)
    group = steps * STEP.value // len(scale)
    values = {"M": M, "N": N, "STEPS": steps, "GROUP": group, "PDL": launches_early(device)}
    values |= chosen or config(M, N, steps, group, device)
    tiles = triton.cdiv(M, values["BLOCK_M"]) * triton.cdiv(N, values["BLOCK_N"])
    programs = tiles * values["SPLIT_K"]
    values["TMA"] = has_tma(device) and values["LANES"] == 1 and x.data_ptr() % 16 == 0

    def arguments(there):
        if values["TMA"]:
            block = [values["BLOCK_M"], values["WIDTH"]]
            shape, strides = [*x.shape], [x.shape[1], 1]  # with one row, any stride is valid
            there = there | {"x": TensorDescriptor(there["x"], shape, strides, block)}
        return there

    tensors = {"x": x, "packed": packed, "scale": scale, "bias": bias, "out": out}
    options = {"num_warps": values["WARPS"]} | ({"launch_pdl": True} if values["PDL"] else {})
    with torch.cuda.device_of(x):
        if programs > tiles:
            room = Room(programs * values["BLOCK_M"] * values["BLOCK_N"], torch.float32, tiles)
            tensors |= zip(("partials", "counters"), room.tensors(x.device), strict=True)
        there = {name: t for name, t in tensors.items() if t is not None}
        values |= dict.fromkeys({"bias", "partials", "counters"} - there.keys())
        key = (*values.items(), *((t.dtype, t.data_ptr() & 15) for t in there.values()))
        binding.launch(key, int4_kernel, (programs,), values, options, there, arguments)
