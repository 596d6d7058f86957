"""gemv: few rows, so memory is the limit; the wide operand is read once, at any address.

Adds to       split_k: no tensor core, no TMA; lines on odd addresses read as 8-byte words
Mirrors       nothing; no CUDA rung is for few rows
Compiler does layouts with a line's words side by side in a warp; the sums across lanes and warps
Signs         sm_80: FFMA, no HMMA, no HGMMA; sm_90: FFMA, no HMMA, no HGMMA
Needs         sm_80; any strides; every type
Note          Right for every M, and slow for more than about 8 rows. Sums fp16 in fp32 always.
"""

import dataclasses
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..problem import Matrix, Problem
from ..runtime.workspace import Room
from ..spec import Arguments, Config, TritonKernel
from .common.host import POINTERS, tma_why_not
from .common.limits import MOST_PROGRAMS, programs_why_not
from .common.tile import batch_offset, follow, split_batch, store, widen
from .pack import WORD, cut_words

#: Rows of C in one program: more would not leave registers for what is in flight.
MOST_ROWS = 8
#: Parts that K is split in, at most: the last program of a tile reads as many.
MOST_PARTS = 128

#: Words of a thread that are asked for at once, at most and at least.
IN_FLIGHT = 8
LEAST_IN_FLIGHT = 2
#: Of a config that a caller names: words in flight, and sums, of a thread. The code for a step
#: grows with both, and the compiler's time with the code.
MOST_IN_FLIGHT, MOST_SUMS = 16, 64
#: Programs per SM that are enough to keep it busy.
PROGRAMS = 3


@triton.jit
def part(words, j, dtype: tl.constexpr, SUM: tl.constexpr):
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
def sums_along_k(a_ptr, b_ptr, row, col, first, last, M, N, K,
                 stride_am, stride_ak, stride_bk, stride_bn,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 STAGES: tl.constexpr, A_WORDS: tl.constexpr, A_SKEW: tl.constexpr,
                 B_WORDS: tl.constexpr, B_SKEW: tl.constexpr, RAGGED: tl.constexpr,
                 SUM: tl.constexpr):  # fmt: skip
    """The tile [BLOCK_M, BLOCK_N] of sums over `first <= k < last`; lanes run along K."""
    dtype: tl.constexpr = a_ptr.dtype.element_ty
    per: tl.constexpr = WORD * 8 // dtype.primitive_bitwidth if B_WORDS else 1
    WORDS: tl.constexpr = BLOCK_K // per
    # Lines past the edge are read from the last one, and not stored.
    line = tl.minimum(col + tl.arange(0, BLOCK_N), N - 1)[:, None]  # [BLOCK_N, 1]

    acc = ()
    for _m in tl.static_range(BLOCK_M):
        acc += (tl.zeros((BLOCK_N, WORDS), dtype=SUM),)
    for step in range(first // per, tl.cdiv(last, per), WORDS * STAGES):
        # All loads of a step come before the first use.
        b, a = (), ()
        for s in tl.static_range(STAGES):
            word = step + s * WORDS + tl.arange(0, WORDS)[None, :]  # [1, WORDS]
            if B_WORDS:
                b += (words_of(b_ptr, line, word, K, stride_bn, word * per < last,
                               B_SKEW, RAGGED),)  # fmt: skip
            else:
                b += (elements(b_ptr, line, word, stride_bn, stride_bk, word < last),)
        for s in tl.static_range(STAGES):
            word = step + s * WORDS + tl.arange(0, WORDS)[None, :]
            for m in tl.static_range(BLOCK_M):
                m_line = tl.minimum(row + m, M - 1)
                if A_WORDS:
                    a += (words_of(a_ptr, m_line, word, K, stride_am, word * per < last,
                                   A_SKEW, RAGGED),)  # fmt: skip
                else:
                    for j in tl.static_range(per):
                        k = word * per + j
                        a += (elements(a_ptr, m_line, k, stride_am, stride_ak, k < last),)
        for s in tl.static_range(STAGES):
            total = ()
            for m in tl.static_range(BLOCK_M):
                terms = acc[m]
                for j in tl.static_range(per):
                    if A_WORDS:
                        factor = part(a[s * BLOCK_M + m], j, dtype, SUM)
                    else:
                        factor = a[(s * BLOCK_M + m) * per + j].to(SUM)
                    terms += factor * part(b[s], j, dtype, SUM)
                total += (terms,)
            acc = total

    sums = interleaved(acc, 0, 1, BLOCK_M).reshape(BLOCK_N, WORDS, BLOCK_M)
    return tl.sum(sums, 1).T


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
def sums_along_n(a_ptr, b_ptr, row, col, first, last, M, N,
                 stride_am, stride_ak, stride_bk,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 STAGES: tl.constexpr, B_SKEW: tl.constexpr, SUM: tl.constexpr):  # fmt: skip
    """The tile [BLOCK_M, BLOCK_N] of sums over `first <= k < last`; lanes run along N."""
    dtype: tl.constexpr = a_ptr.dtype.element_ty
    per: tl.constexpr = WORD * 8 // dtype.primitive_bitwidth
    WORDS: tl.constexpr = BLOCK_N // per
    word = col // per + tl.arange(0, WORDS)[None, :]  # [1, WORDS]

    acc = ()
    for _jm in tl.static_range(per * BLOCK_M):
        acc += (tl.zeros((BLOCK_K, WORDS), dtype=SUM),)
    for step in range(first, last, BLOCK_K * STAGES):
        # All loads of B in a step come before the first use.
        b = ()
        for s in tl.static_range(STAGES):
            k = step + s * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]  # [BLOCK_K, 1]
            inside = (k < last) & (word * per < N)
            b += (words_of(b_ptr, k, word, N, stride_bk, inside, B_SKEW, False),)
        for s in tl.static_range(STAGES):
            k = step + s * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]
            a = ()
            for m in tl.static_range(BLOCK_M):
                m_line = tl.minimum(row + m, M - 1)
                a += (elements(a_ptr, m_line, k, stride_am, stride_ak, k < last).to(SUM),)
            total = ()
            for j in tl.static_range(per):
                for m in tl.static_range(BLOCK_M):
                    total += (acc[j * BLOCK_M + m] + a[m] * part(b[s], j, dtype, SUM),)
            acc = total

    sums = tl.sum(interleaved(acc, 0, 1, per * BLOCK_M), 0)
    return sums.reshape(BLOCK_N, BLOCK_M).T


# Nothing is specialised on the sizes: a kernel compiled for one shape serves its like.
_OPEN = ["M", "N", "K", "B1", *(f"stride_{axis}" for axis in (
    "a0", "a1", "am", "ak", "b0", "b1", "bk", "bn", "c0", "c1", "cm", "cn"))]  # fmt: skip


@triton.jit(do_not_specialize=_OPEN)
def gemv_kernel(
    a_ptr, b_ptr, c_ptr, partial_ptr, counter_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, stride_am, stride_ak,
    stride_b0, stride_b1, stride_bk, stride_bn,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, SPLIT_K: tl.constexpr, PARTS: tl.constexpr,
    ALONG: tl.constexpr, A_WORDS: tl.constexpr, A_SKEW: tl.constexpr,
    B_SKEW: tl.constexpr, RAGGED: tl.constexpr, BATCHED: tl.constexpr, WIDE: tl.constexpr,
    ACC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    SUM: tl.constexpr = tl.float32 if tl.float16 == ACC else ACC
    M, N, K = widen(M, WIDE), widen(N, WIDE), widen(K, WIDE)
    tiles = tl.num_programs(0) // SPLIT_K
    tile = tl.program_id(0) % tiles
    split = tl.program_id(0) // tiles
    pid, b0, b1 = split_batch(tile, M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
    a_ptr += batch_offset(b0, b1, stride_a0, stride_a1)
    b_ptr += batch_offset(b0, b1, stride_b0, stride_b1)
    c_ptr += batch_offset(b0, b1, stride_c0, stride_c1)
    row = pid // tl.cdiv(N, BLOCK_N) * BLOCK_M
    col = pid % tl.cdiv(N, BLOCK_N) * BLOCK_N

    step: tl.constexpr = BLOCK_K * STAGES
    span = tl.cdiv(tl.cdiv(K, step), SPLIT_K) * step
    first = split * span
    last = tl.minimum(first + span, K)
    if ALONG == "n":
        sums = sums_along_n(
            a_ptr, b_ptr, row, col, first, last, M, N, stride_am, stride_ak, stride_bk,
            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, B_SKEW, SUM,
        )  # fmt: skip
    else:
        sums = sums_along_k(
            a_ptr, b_ptr, row, col, first, last, M, N, K,
            stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
            A_WORDS, A_SKEW, ALONG == "k", B_SKEW, RAGGED, SUM,
        )  # fmt: skip

    # int64: M * N can pass 2**31 elements
    offs_m = (row + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n = (col + tl.arange(0, BLOCK_N)).to(tl.int64)
    if SPLIT_K == 1:
        store(c_ptr, sums, offs_m, offs_n, M, N, stride_cm, stride_cn)
    else:
        # partial [tiles, SPLIT_K, BLOCK_M, BLOCK_N]
        partial_ptr += tl.cast(tile, tl.int64) * (SPLIT_K * BLOCK_M * BLOCK_N)
        inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        tl.store(partial_ptr + split * (BLOCK_M * BLOCK_N) + inside, sums)
        tl.debug_barrier()  # what the program has stored, the atomic's thread then releases
        if tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == SPLIT_K - 1:
            # The last program of a tile adds the parts, in their order along K.
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
            for first_part in range(0, SPLIT_K, PARTS):
                parts = (first_part + tl.arange(0, PARTS))[:, None, None] * (BLOCK_M * BLOCK_N)
                # .cg: from L2, where the other programs' sums are
                total += tl.sum(
                    tl.load(partial_ptr + parts + inside[None, :, :], cache_modifier=".cg"), 0
                )
            store(c_ptr, total, offs_m, offs_n, M, N, stride_cm, stride_cn)
            tl.store(counter_ptr + tile, 0)


def skewed(matrix: Matrix, line: int) -> bool:
    """Whether some line of `matrix` starts inside a word; `line` elements lie between two."""
    steps = (*matrix.strides[:2], line)
    return not matrix.aligned or any(s * matrix.dtype.itemsize % WORD.value for s in steps)


def along(problem: Problem) -> str:
    """The axis that B is contiguous along, "k" or "n", or "" if neither is."""
    *_, stride_k, stride_n = problem.b.strides
    if stride_k == 1:
        return "k"
    return "n" if stride_n == 1 else ""


def fixed(problem: Problem, config: Config):
    axis = along(problem)
    per = WORD.value // problem.itemsize
    *_, stride_am, stride_ak = problem.a.strides
    *_, stride_bk, stride_bn = problem.b.strides
    return POINTERS.fixed(problem, config) | {
        "ALONG": axis,
        "A_WORDS": axis == "k" and stride_ak == 1,
        "A_SKEW": skewed(problem.a, stride_am),
        "B_SKEW": skewed(problem.b, stride_bn if axis == "k" else stride_bk),
        "RAGGED": problem.K % per != 0,
        "WIDE": problem.long,  # offsets have 64 bits in any case
        "SPLIT_K": config.SPLIT_K,
        "PDL": problem.device.pdl,
        # 64 sums per thread of 4 warps are read at once.
        "PARTS": min(config.SPLIT_K, max(1, 8192 // (config.BLOCK_M * config.BLOCK_N))),
    }


def room(problem: Problem, config: Config) -> Room | None:
    """Where K is split: for its partial sums, and a counter for each tile."""
    if config.SPLIT_K == 1:
        return None
    tiles = config.tiles(problem)
    half = problem.accumulate == torch.float16
    dtype = torch.float32 if half else problem.accumulate
    return Room(config.SPLIT_K * tiles * config.BLOCK_M * config.BLOCK_N, dtype, tiles)


def tensors(problem: Problem, config: Config, a, b, c, partial=None, counters=None):
    operands = POINTERS.tensors(problem, config, a, b, c)
    return operands | {"partial_ptr": partial, "counter_ptr": counters}


def few_rows(problem: Problem) -> int:
    """Where B runs along N, every row has an accumulator for each element of a word: too many; and
    what the copy engine can read is multiplied faster by tensor cores.

    Of A's rows, elements beside each other are of different rows where A is stored by columns.
    """
    if along(problem) == "n":
        return int(problem.itemsize != 2 or tma_why_not(problem) is not None)
    return 2 if problem.a.layout == "T" else MOST_ROWS


def options(problem: Problem, config: Config) -> dict[str, bool]:
    return {"launch_pdl": True} if problem.device.pdl else {}


def why_not(problem: Problem) -> str | None:
    """All fits but tiles that are more than the programs of a launch."""
    if problem.M * problem.N * problem.batch <= MOST_PROGRAMS:
        return None  # at once: a tile has an element or more
    return programs_why_not(min(grid(problem, config) for config in configs(problem)))


def config_why_not(problem: Problem, config: Config) -> str | None:
    """The last program of a tile reads the sums of parts by powers of two; words are whole."""
    split, m, n, k = config.SPLIT_K, config.BLOCK_M, config.BLOCK_N, config.BLOCK_K
    if split & (split - 1):
        return f"SPLIT_K is {split}; a power of two is possible"
    if split > MOST_PARTS:
        return f"SPLIT_K is {split}; {MOST_PARTS} parts are possible"
    if m > MOST_ROWS:
        return f"BLOCK_M is {m}; {MOST_ROWS} is possible"
    axis = along(problem)
    per = WORD.value // problem.itemsize if axis else 1
    name, size = ("BLOCK_N", n) if axis == "n" else ("BLOCK_K", k)
    if size % per:
        return f"{name} is {size}; a word has {per} elements, multiples of that are possible"
    words = -(-n * k // (per * 32 * config.num_warps))
    of_a = 1 if axis == "n" else m
    flying = max(words, of_a) * config.num_stages
    if flying > MOST_IN_FLIGHT:
        return (
            f"{flying} words of a thread are in flight; {MOST_IN_FLIGHT} are possible. "
            "Take a smaller tile, fewer stages or more warps"
        )
    kept = words * m * (per if axis == "n" else 1)
    if kept > MOST_SUMS:
        return f"{kept} sums per thread; {MOST_SUMS} are possible. Take a smaller tile"
    return None


def grid(problem: Problem, config: Config) -> int:
    return config.tiles(problem) * config.SPLIT_K


def configs(problem: Problem) -> tuple[Config, ...]:
    """First what should suit: 4 to 8 words in flight per thread, and programs for each SM.

    Then fewer or more lines, or parts of K, per program.
    """
    rows = min(_next_power_of_2(problem.M), MOST_ROWS)
    choices = _along_n if along(problem) == "n" else _along_k
    enough = PROGRAMS * problem.device.sms
    distinct = dict.fromkeys(choices(problem, rows))
    fewest_idle = sorted(distinct, key=lambda config: -min(grid(problem, config), enough))
    if problem.M * problem.N * problem.batch > MOST_PROGRAMS:
        able = [c for c in fewest_idle if grid(problem, c) <= MOST_PROGRAMS]
        return tuple(able or fewest_idle)
    return tuple(fewest_idle)


def _along_k(problem: Problem, rows: int) -> Iterator[Config]:
    per = WORD.value // problem.itemsize if along(problem) else 1
    length = -(-problem.K // per)  # words
    for warps, lines in ((8, 4), (4, 4), (8, 2), (4, 2), (8, 1)):
        # Words of a line in a step: no more than threads, so that A needs no shared memory.
        words = min(32 * warps, _next_power_of_2(length))
        if lines * rows > 16 and lines > 1:
            continue
        columns = lines * 32 * warps // words
        stages = _stages(-(-length // words), IN_FLIGHT // max(lines, rows))
        if lines * stages < LEAST_IN_FLIGHT:
            continue
        tile = Config(rows, columns, words * per, num_warps=warps, num_stages=stages)
        split = _split(problem, tile, programs=problem.device.sms)
        yield dataclasses.replace(tile, SPLIT_K=split)


def _stages(steps: int, most: int) -> int:
    """Steps whose words are in flight together: a power of two, which adds a quarter at most."""
    able = (n for n in (8, 4, 2) if n <= most and 4 * (-(-steps // n) * n) <= 5 * steps)
    return next(able, 1)


def _along_n(problem: Problem, rows: int) -> Iterator[Config]:
    per = WORD.value // problem.itemsize
    # The accumulators of a word are rows * per.
    rows = min(rows, 32 // per)
    stages = 8 if rows * per <= 8 else 4
    length = -(-problem.N // per)  # words
    for most, occupancy in ((32, 6), (32, 3), (16, 6), (32, 12)):
        words = min(most, _next_power_of_2(length))
        tile = Config(rows, words * per, 256 // words, num_warps=8, num_stages=stages)
        split = _split(problem, tile, programs=occupancy * problem.device.sms)
        yield dataclasses.replace(tile, SPLIT_K=split)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _split(problem: Problem, tile: Config, programs: int) -> int:
    """Parts of K, a power of two, that make `programs` programs or leave one step to each."""
    wanted = programs // tile.tiles(problem)
    steps = problem.K // (tile.BLOCK_K * tile.num_stages)
    parts = max(1, min(wanted, steps, MOST_PARTS))
    return 1 << (parts.bit_length() - 1)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=gemv_kernel, grid=grid, configs=configs,
    arguments=Arguments(fixed, tensors, workspace=room, options=options),
    interpreted=Config(4, 128, 128), few_rows=few_rows, why_not=why_not,
    config_why_not=config_why_not,
    in_order=False,
)  # fmt: skip
