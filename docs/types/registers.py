"""Between a matrix whose layout is a fragment and the registers of a warp's lanes.

A lane's element is one of a tensor [32], so a fragment is a tuple of those; elements of less than
32 bits share a register, the first in its lowest bits. None of it moves data between lanes: each
`convert_layout` says so, and would not compile otherwise.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def lanes():
    """The layout of a tensor [32]: one element per lane."""
    return gl.BlockedLayout([1], [32], [1], [0])


@gluon.constexpr_function
def bits(layout):
    """The shape of a matrix with one dimension per bit of its row and column, the highest first."""
    return [2] * sum(size.bit_length() - 1 for size in layout.shape)


@gluon.constexpr_function
def order(layout):
    """The dimensions of `bits`: those of the lane, the highest first, then the element's, the
    lowest first."""
    row, col = (size.bit_length() - 1 for size in layout.shape)
    bases = layout.lane_bases[::-1] + layout.reg_bases
    return [row - r.bit_length() if r else row + col - c.bit_length() for r, c in bases]


@gluon.constexpr_function
def inverse(permutation):
    return [permutation.index(dim) for dim in range(len(permutation))]


@gluon.constexpr_function
def per_lane(layout):
    """The shape with the lane's bits in one dimension before the element's."""
    return [32] + [2] * len(layout.reg_bases)


@gluon.constexpr_function
def element_bits(layout):
    return len(layout.reg_bases)


@gluon.jit
def elements(matrix, LAYOUT: gl.constexpr):
    """A matrix of this layout as what a lane holds: tensors [32], in the order of the elements."""
    turned = gl.permute(gl.reshape(matrix, bits(LAYOUT)), order(LAYOUT).value)
    parts = (gl.reshape(turned, per_lane(LAYOUT)),)
    for _ in gl.static_range(element_bits(LAYOUT)):  # the highest bit first: they stay in order
        halves = ()
        for i in gl.static_range(len(parts)):
            halves = halves + gl.split(parts[i])
        parts = halves
    found = ()
    for i in gl.static_range(len(parts)):
        found = found + (gl.convert_layout(parts[i], lanes(), assert_trivial=True),)  # noqa: RUF005
    return found


@gluon.jit
def matrix(parts, LAYOUT: gl.constexpr):
    """The matrix of this layout whose `elements` these are."""
    for _ in gl.static_range(element_bits(LAYOUT)):
        joined = ()
        for i in gl.static_range(len(parts) // 2):
            joined = joined + (gl.join(parts[2 * i], parts[2 * i + 1]),)  # noqa: RUF005
        parts = joined
    found = gl.permute(gl.reshape(parts[0], bits(LAYOUT)), inverse(order(LAYOUT)).value)
    return gl.convert_layout(gl.reshape(found, LAYOUT.shape), LAYOUT, assert_trivial=True)


@gluon.jit
def packed(parts):
    """Elements as registers: integers of 32 bits, or what has as many or more."""
    WIDTH: gl.constexpr = parts[0].dtype.primitive_bitwidth
    words = parts
    if WIDTH < 32:
        EACH: gl.constexpr = 32 // WIDTH
        words = ()
        for i in gl.static_range(len(parts) // EACH):
            word = _unsigned(parts[EACH * i])
            for j in gl.static_range(1, EACH):
                word |= _unsigned(parts[EACH * i + j]) << j * WIDTH
            words = words + (word,)  # noqa: RUF005
    return words


@gluon.jit
def _unsigned(part):
    """The bits of an element of 8 or 16, below zeros."""
    BITS: gl.constexpr = gl.uint8 if part.dtype.primitive_bitwidth == 8 else gl.uint16
    return part.to(BITS, bitcast=True).to(gl.uint32)


@gluon.jit
def unpacked(words, DTYPE: gl.constexpr):
    """Registers as elements, of 16 bits or more."""
    parts = words
    if DTYPE.primitive_bitwidth == 16:
        parts = ()
        for i in gl.static_range(len(words)):
            low = words[i].to(gl.uint16).to(DTYPE, bitcast=True)
            high = (words[i] >> 16).to(gl.uint16).to(DTYPE, bitcast=True)
            parts = parts + (low, high)  # noqa: RUF005
    return parts
