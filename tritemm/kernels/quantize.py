"""Quantises a matrix to 8 bits with fp32 scales; not a rung, but a step before one.

A program loads a tile once, and stores its codes and those of its transpose, with zeros up to the
pitch, so that stores are wide.
"""

import triton
import triton.language as tl

from .device.tile import INTERPRETED

#: The least maximum from which a scale is computed, so that zeros have a scale too.
LEAST = tl.constexpr(1e-12)


@triton.jit
def divide(x, scale, EXACT: tl.constexpr):
    """x / scale, correctly rounded if `EXACT`; else off by 2**-18 ulp, and then rounded.

    That changes no scale, and no code of 16-bit x: all mantissas were tried with all maxima.
    """
    if INTERPRETED or EXACT:
        quotient = tl.div_rn(x, scale)
    else:
        RCP: tl.constexpr = "rcp.approx.ftz.f32 $0, $1;"
        inverse = tl.inline_asm_elementwise(RCP, "=f,f", [scale], tl.float32, True, 1)
        inverse *= 0.99999976  # below 1 / scale: the rest is positive, and -0 stays -0
        rest = tl.fma(tl.minimum(scale, 3e38), -inverse, 1.0) * inverse  # inf * 0 would be NaN
        quotient = tl.fma(x, inverse, x * rest)
    return quotient


@triton.jit
def scale_of(tile, scale, inside, LARGEST: tl.constexpr, LINES: tl.constexpr, FIND: tl.constexpr):
    """The scales of a tile's lines, or of all of it: stored if `FIND`, else loaded."""
    if FIND:
        bits = tile.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF  # NaN has the largest
        most = tl.max(bits, 1)
        most = (most if LINES else tl.max(most, 0)).to(tl.float32, bitcast=True)
        found = divide(tl.where(most < LEAST, LEAST, most), LARGEST, False)
        tl.store(scale, found, mask=inside)
    else:
        found = tl.load(scale, mask=inside, other=1)
    return found[:, None] if LINES else found


@triton.jit
def codes(x, scale, seed, nth, LARGEST: tl.constexpr, MANTISSA: tl.constexpr, DRAW: tl.constexpr):
    """The codes nearest to x / scale, ties to even; or with `DRAW` either neighbour, at random."""
    x = divide(x.to(tl.float32), scale, x.dtype == tl.float32)
    if MANTISSA == 0 or DRAW or INTERPRETED:
        steps, base, sign = tl.minimum(tl.maximum(x, -LARGEST), LARGEST), 0, 0
        if MANTISSA > 0:
            bits = steps.to(tl.int32, bitcast=True)
            normal: tl.constexpr = 129 - (1 << (6 - MANTISSA))  # least exponent, as fp32 biases it
            exponent = tl.maximum((bits >> 23) & 255, normal)
            unit = ((254 + MANTISSA - exponent) << 23).to(tl.float32, bitcast=True)
            steps = tl.abs(steps) * unit  # codes from `base` on are 1 apart
            base, sign = (exponent - normal) << MANTISSA, (bits >> 24) & 128
        if DRAW:
            a, b, c, d = tl.randint4x(tl.load(seed), nth)
            random = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), x.shape)
            whole = tl.floor(steps)
            steps = whole + (tl.uint_to_uniform_float(random) < steps - whole).to(tl.float32)
        # 1.5 * 2**23 leaves the nearest integer, and its code, in the low bits.
        code = ((steps + 12582912.0).to(tl.int32, bitcast=True) + base) | sign
        code = tl.where(x == x, code, 127 if MANTISSA > 0 else 0).to(tl.uint8)
    else:
        code = x.to(tl.float8e4nv if MANTISSA == 3 else tl.float8e5).to(tl.uint8, bitcast=True)
    return code


@triton.jit
def quantize_kernel(
    x, values, scale, values_t, scale_t, seed, offs, ends,
    count, M, K, stride_m, stride_k, pitch, pitch_t,
    scale_m, scale_k, scale_tm, scale_tk, next_x, next_values, next_scale,
    LARGEST: tl.constexpr, MANTISSA: tl.constexpr, LINES: tl.constexpr, LINES_T: tl.constexpr,
    FIND: tl.constexpr, STORE: tl.constexpr, DRAW: tl.constexpr, TRANSPOSE: tl.constexpr,
    GROUPS: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Scales of a tile [A, B] of x and of its transpose, if `FIND`; their codes, if `STORE`.

    If `LINES`, or `LINES_T` for the transpose, each line of a tile has a scale; else the tile has.
    Further matrices begin `next_x`, `next_values` and `next_scale` elements on; with several there
    is no transpose. The rows of `count` groups, GROUPS at most, end at `offs`; the columns of the
    transpose that they become end at `ends`, multiples of A, with zeros as padding.
    """
    values = values.to(tl.pointer_type(tl.uint8), bitcast=True)
    values_t = values_t.to(tl.pointer_type(tl.uint8), bitcast=True)
    across = tl.cdiv(K, B)
    tiles = tl.cdiv(M if GROUPS == 0 else pitch_t, A) * across
    # int64: M * K can pass 2**31
    nth_matrix = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    x, scale = x + nth_matrix * next_x, scale + nth_matrix * next_scale
    before = nth_matrix * next_values
    i, j = (tile // across).to(tl.int64), (tile % across).to(tl.int64)
    nth, col = tl.arange(0, A), j * B + tl.arange(0, B)
    first, last = i * A, M
    if GROUPS > 0:
        each = tl.arange(0, GROUPS)
        group = tl.sum((tl.load(ends + each, each < count, other=2**31 - 1) <= first).to(tl.int32))
        before_t = tl.load(ends + group - 1, group > 0, other=0)
        first += tl.load(offs + group - 1, group > 0, other=0) - before_t
        last = tl.load(offs + group, group < count, other=0)
    # In a tile to transpose, a thread has rows A / 4 apart: these are neighbours in x.
    row = first + (nth % (A // 4) * 4 + nth // (A // 4) if TRANSPOSE else nth)
    rows, cols = row[:, None], col[None, :]
    tile = tl.load(x + rows * stride_m + cols * stride_k, (rows < last) & (cols < K), other=0)
    line, inside = (row, row < last) if LINES else (i, i >= 0)
    found = scale_of(tile, scale + line * scale_m + j * scale_k, inside, LARGEST, LINES, FIND)
    code = tile
    if STORE:
        four = (before + rows * pitch + j * B) // 4 + tl.arange(0, B // 4)[None, :]
        code = codes(tile, found, seed, four, LARGEST, MANTISSA, DRAW)
        tl.store(values + before + rows * pitch + cols, code, mask=(rows < last) & (cols < pitch))
    if TRANSPOSE:
        ONE_SCALE: tl.constexpr = not LINES and not LINES_T  # so codes are just transposed
        tile = tl.reshape(code if ONE_SCALE else tile, [4, A // 4, B])
        tile = tl.reshape(tl.permute(tile, [2, 1, 0]), [B, A])
        rows, cols = i * A + nth[None, :], col[:, None]
        line, inside = (col, col < K) if LINES_T else (j, j >= 0)
        scale_t += line * scale_tm + i * scale_tk
        if FIND and not LINES_T:
            if LINES:  # the largest of the lines'
                bits = tl.max(tl.max(found.to(tl.int32, bitcast=True), 1), 0)
                found = bits.to(tl.float32, bitcast=True)
            tl.store(scale_t, found)
        elif not ONE_SCALE:
            found = scale_of(tile, scale_t, inside, LARGEST, LINES_T, FIND)
        if STORE:
            if not ONE_SCALE:
                four = (cols * pitch_t + i * A) // 4 + tl.arange(0, A // 4)[None, :]
                tile = codes(tile, found, seed, four, LARGEST, MANTISSA, DRAW)
            tl.store(values_t + cols * pitch_t + rows, tile, mask=(rows < pitch_t) & (cols < K))
