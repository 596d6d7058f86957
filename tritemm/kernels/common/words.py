"""Device helpers of rungs without a tensor core: lines read as words, and what is in a word."""

import triton
import triton.language as tl

from ..pack import cut_words


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
