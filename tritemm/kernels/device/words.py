"""Lines read as words of 8 bytes, and a word's elements: for copies, and without a tensor core."""

import triton
import triton.language as tl

WORD = tl.constexpr(8)  # bytes
#: The most programs of a launch that prefetch their first lines into L2 before they may read: few
#: enough to run alongside the previous launch. Of more, most begin after it: they'd fetch twice.
FEW = tl.constexpr(128)


@triton.jit
def cut_words(ptr, start, word, end, mask, SKEW: tl.constexpr, RAGGED: tl.constexpr):
    """The words `word` [1, words] of the lines that begin `start` bytes after `ptr`, as uint64.

    `end` is the length of a line in bytes; it and `start` are int64. Bytes past the end of a line
    are anything, or 0 if RAGGED; `mask` excludes words past it. Without SKEW all lines
    begin on 8-byte boundaries. No aligned word is read that holds no byte of the line: it might
    be in a page that is not mapped.
    """
    address = ptr.to(tl.int64)
    place = word.to(tl.int64) * WORD
    if SKEW:
        start += address & (WORD - 1)
        skew = (start & (WORD - 1)).to(tl.int32)  # bytes that precede the line in its first word
        # The index of a word stays a term of its own: that neighbours are contiguous is what
        # lets the compiler put them side by side in a warp.
        words = (address & -WORD).to(tl.pointer_type(tl.uint64)) + (start >> 3) + word
        low = tl.load(words, mask=mask, other=0)
        # Of the words that reach into the next one, the last begins before this.
        reach = tl.where(skew > 0, end + skew - WORD, 0)
        straddles = mask & (place < reach)
        high = tl.load(words + 1, mask=straddles, other=0)
        shift = (skew * 8).to(tl.uint64)
        # Without skew both shifts are by 0, and `high` is 0.
        value = (low >> shift) | (high << ((64 - shift) & 63))
    else:
        words = address.to(tl.pointer_type(tl.uint64)) + (start >> 3) + word
        value = tl.load(words, mask=mask, other=0)
    if RAGGED:
        excess = tl.maximum(place + WORD - end, 0) & (WORD - 1)  # bytes; any where masked
        value &= tl.full((1,), -1, tl.int64).to(tl.uint64) >> (excess * 8).to(tl.uint64)
    return value


@triton.jit
def element_of(words, j, dtype: tl.constexpr, SUM: tl.constexpr):
    """Element j of each word, as the accumulator's type; `words` may be elements already."""
    if words.dtype == dtype:
        values = words
    elif dtype.primitive_bitwidth == 64:
        values = words.to(dtype, bitcast=True)
    elif dtype.primitive_bitwidth == 32:
        values = (words >> (32 * j)).to(tl.uint32).to(dtype, bitcast=True)
    elif dtype.primitive_bitwidth == 16:
        values = (words >> (16 * j)).to(tl.uint16).to(dtype, bitcast=True)
    else:
        values = (words >> (8 * j)).to(tl.uint8).to(dtype, bitcast=True)
    return values.to(SUM)


@triton.jit
def elements(ptr, line, element, stride_line, stride_element, mask):
    """The elements at (line, element); both are indices, and one of them may be a scalar."""
    # int64: lines * pitch can pass 2**31
    start = tl.cast(line, tl.int64) * stride_line
    return tl.load(ptr + start + tl.cast(element, tl.int64) * stride_element, mask=mask, other=0.0)


@triton.jit
def words_of(ptr, line, word, length, stride_line, mask,
             SKEW: tl.constexpr, RAGGED: tl.constexpr):  # fmt: skip
    """The words [1, words] of lines of `length` contiguous elements."""
    size: tl.constexpr = ptr.dtype.element_ty.primitive_bitwidth // 8
    # int64: lines * pitch, and long lines, can pass 2**31 bytes
    start = tl.cast(line, tl.int64) * stride_line * size
    return cut_words(ptr, start, word, length.to(tl.int64) * size, mask, SKEW, RAGGED)


@triton.jit
def interleaved(tiles, first: tl.constexpr, step: tl.constexpr, count: tl.constexpr):
    """`count` of the tiles [rows, words], every `step`-th, as one [rows, words * count].

    Column i of the result is column i // count of tile i % count.
    """
    if count == 1:
        tile = tiles[first]
    else:
        even = interleaved(tiles, first, step * 2, count // 2)
        odd = interleaved(tiles, first + step, step * 2, count // 2)
        tile = tl.interleave(even, odd)
    return tile


@triton.jit
def prefetch(b_ptr, col, first, last, N, stride_bk, stride_bn, BLOCK_N: tl.constexpr,
             BLOCK_K: tl.constexpr, STAGES: tl.constexpr, ALONG: tl.constexpr,
             PDL: tl.constexpr):  # fmt: skip
    """Prefetch into L2 what the first step reads of B, before the wait for the previous launch.

    Nothing is read yet, so data still being written is not missed. Past an edge of B, the prefetch
    is of the edge.
    """
    if PDL and ALONG != "":
        per: tl.constexpr = WORD * 8 // b_ptr.dtype.element_ty.primitive_bitwidth
        if ALONG == "k":
            n = col + tl.arange(0, BLOCK_N)[:, None]
            k = first + tl.arange(0, BLOCK_K // per)[None, :] * per
        else:
            n = col + tl.arange(0, BLOCK_N // per)[None, :] * per
            k = first + tl.arange(0, BLOCK_K)[:, None]
        few = tl.num_programs(0) <= FEW
        if few & (first < last):
            # int64: lines * pitch can pass 2**31
            n_ptrs = b_ptr + tl.cast(tl.minimum(n, N - 1), tl.int64) * stride_bn
            for s in tl.static_range(STAGES):
                at = tl.cast(tl.minimum(k + s * BLOCK_K, last - 1), tl.int64)
                tl.inline_asm_elementwise(
                    "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [n_ptrs + at * stride_bk],
                    dtype=tl.int32, is_pure=False, pack=1,
                )  # fmt: skip
