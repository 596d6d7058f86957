"""Where does TMA put a byte?

A box of `tma` consists of rows of 128 bytes, 64 elements of 16 bits along K. In the 128-byte
swizzle a row stays within 128 bytes of shared memory: row r takes bytes 128 r to 128 r + 127 of the
box. But its eight chunks of 16 bytes change places: chunk c of row r is where chunk c XOR (r mod 8)
would be without a swizzle. The bytes of a chunk keep their order. At which byte of the box is byte
`byte`, 0 to 127, of row `row`?
"""

from docs.pictures.swizzle import chunks, tile

from . import Answer, same

ROWS, ROW, CHUNK, ELEMENT = 64, 128, 16, 2


def answer(row: int, byte: int) -> int:
    chunk = byte // 16 ^ row % 8
    return 128 * row + 16 * chunk + byte % 16


def check(function: Answer) -> None:
    """Against the places at which WGMMA finds its operands, which tests hold on a GPU."""
    for (row, chunk), begin in chunks(tile(ROW, ROWS, ROW // ELEMENT)).items():
        for inside in range(CHUNK):
            same(function, begin + inside, row=row, byte=CHUNK * chunk + inside)
