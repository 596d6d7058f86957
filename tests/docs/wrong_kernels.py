"""Kernels with the mistakes that learners make: a solution with some of its text exchanged.

Each must get a sentence of its own. `RIGHT` are right all the same, and `LOOPS` never end.
"""

import dataclasses

from docs.exercises import write


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What is exchanged in a rung's solution, everywhere, and a part of what is said of it."""

    rung: str
    old: str
    new: str
    said: str

    def text(self) -> str:
        text = write.solution(self.rung)
        assert self.old in text, f"{self.rung}: there is no {self.old!r}"
        return text.replace(self.old, self.new)


_COPIES = (
    '        mma.copy_tile(a_memory.index(1 - now), a_ptrs, left - BLOCK_K, "K", False)\n'
    '        mma.copy_tile(b_memory.index(1 - now), b_ptrs, left - BLOCK_K, "K", False)\n'
    "        mma.cp_async_commit()\n"
)
_WAIT = "        mma.cp_async_wait(0)\n        mma.barrier()\n"
_BARRIER = "        mma.barrier()\n"
_MULTIPLY = "        acc = mma.multiply(a_memory.index(now), b_memory.index(now), acc)\n"
_READ = "        acc += memory.index(stage).load(layout)\n"
_ARRIVE = "        mbarrier.arrive(empty.index(stage))\n"
_FENCE = "        fence_async_shared()  # reads come before what TMA writes\n"
_EXPECT = "        mbarrier.expect(full.index(stage), desc.block_type.nbytes)\n"

_ADD = (
    "    mask = offs < n\n    x = tl.load(x_ptr + offs, mask=mask)\n"
    "    y = tl.load(y_ptr + offs, mask=mask)\n    tl.store(out_ptr + offs, x + y, mask=mask)\n"
)
_ADD_IF = (
    "    if offs < n:\n        x = tl.load(x_ptr + offs)\n        y = tl.load(y_ptr + offs)\n"
    "        tl.store(out_ptr + offs, x + y)\n"
)

MISTAKES = (
    Mistake("primer", "offs < n", "offs <= n",
            "20, with n = 1 and BLOCK = 16: program 0 loads x[1], but x ends at x[0]. Its mask "),
    Mistake("primer", _ADD, _ADD_IF, "19: a block can't be a condition"),
    Mistake("primer", "offs < n", "not offs >= n", "use `~` for a mask"),
    Mistake("primer", ", mask=mask", "", "It has no mask, or one that is true everywhere"),
    Mistake("primer", "offs < n", "offs < n - 1", "no program stores out[63]."),
    Mistake("primer", "x + y, mask=mask", "x + y", "stores out[1], but out ends at out[0]"),
    Mistake("primer", "offs < n", "offs < BLOCK",
            "32 of 64 elements are left out, in places 32 to 63."),
    Mistake("primer", "x + y, mask", "x - y, mask", "out[0] is 4; it should be -2. 52 of 64"),
    Mistake("simt", "< M) & (", "< M) | (", "stores C["),
    Mistake("simt", " & (offs_n[None, :] < N)", "", "stores C["),
    Mistake("simt", "(offs_m[:, None] < M) & ", "", "stores C["),
    Mistake("simt", "[:, None] < M) & (", "[:, None] < M) and (", "Combine masks with `&`"),
    Mistake("simt", "[:, None] < M) & (", "[:, None] < M) or (", "Combine masks with `|`"),
    Mistake("simt", "offs_m[:, None] * stride_cm", "offs_m[:, None] * N",
            "stored by rows: its strides are 48 and 1, with a gap after each row. From one row of "
            "the block to the next the pointers move by 32 elements; stride_cm is 48."),
    Mistake("simt", " * stride_cn", "", "to the next the pointers move by 1 element; stride_cn is"),
    Mistake("naive", "range(0, K, ", "range(0, K - BLOCK_K + 1, ", "without the last step"),
    Mistake("naive", "range(0, K, ", "range(0, BLOCK_K, ", "the sum of the first step alone"),
    Mistake("naive", "[None, :] < K - k, other=0.0", "[None, :] < K - k", "unless it has `other`"),
    Mistake("naive", "offs_k[None, :] < K - k", "offs_k[None, :] < K", "loads A[0, 70], but A is"),
    Mistake("naive", "b_ptrs, mask=offs_k[:, None] < K - k, other=0.0", "b_ptrs", "loads B[70, 0]"),
    Mistake("naive", "mask=offs_k[:, None]", "mask=offs_k[None, :]",
            "There, `b_ptrs` is [32, 16] and `offs_k[None, :] < K - k` is [1, 32]."),
    Mistake("tiled", "b_ptrs += BLOCK_K * stride_bk", "b_ptrs += BLOCK_K * stride_bn",
            "loads the right blocks in its first step, but in the step that begins at k = 32 it "
            "loads its block of B at B[0, 48] instead of B[32, 16]."),
    Mistake("tiled", "b_ptrs += BLOCK_K * stride_bk", "b_ptrs += 0",
            "loads its block of B at B[0, 0] again instead of B[32, 0]."),
    Mistake("tiled", "(offs_m % M)", "offs_m", "loads A[37, 0], but A is 37 x 70"),
    Mistake("tiled", "_ptrs += BLOCK_K", "_ptrs += 0", "the pointers don't move"),
    Mistake("tiled", "(offs_m % M)[:, None] * stride_am", "(offs_m % M)[:, None] * K", "loads A["),
    Mistake("tiled", "offs_k[None, :] * stride_ak", "offs_k[None, :]",
            "A is 37 x 70, stored by columns"),
    Mistake("swizzled", "tl.minimum(tiles_m - first, GROUP_M)", "GROUP_M",
            "It should have tile (4, 1). The last group has only 3 rows."),
    Mistake("swizzled", "// width * GROUP_M ", "// width ",
            "has stored already. It should have tile (4, 0)."),
    Mistake("swizzled", "first + pid % width % rows\n    pid_n = pid % width // rows",
            "pid // tiles_n\n    pid_n = pid % tiles_n", "need 1 row of tiles of A and 16 columns"),
    Mistake("swizzled", "first + pid % width % rows", "tiles_m - 1 - (first + pid % width % rows)",
            "has tile"),
    Mistake("swizzled", "first + pid % width % rows", "pid // tiles_n", "has stored already"),
    Mistake("swizzled", "    tl.store", "    if pid > 0:\n        tl.store",
            "program 0 stores nothing"),
    Mistake("permuted", "max(1, 64 // BLOCK_K)", "1", "chunk 0 of the rows"),
    Mistake("permuted", "min(8 // per_phase, BLOCK_K // 8)", "8", "would be at place"),
    Mistake("permuted", "min(8 // per_phase, BLOCK_K // 8)", "2", "chunk 0 of the rows 0, 2, 4, 6"),
    Mistake("permuted", "Layout(8", "Layout(4", "vec is 4"),
    Mistake("permuted", "64 // BLOCK_K", "64 / (BLOCK_K - 64)", "ZeroDivisionError"),
    Mistake("permuted", "max(1, 64 // BLOCK_K)", "64 // BLOCK_K",
            "24, with rows of 128 elements: ZeroDivisionError"),
    Mistake("permuted", "min(8 // per_phase, BLOCK_K // 8)", "0", "max_phase is 0; it should be"),
    Mistake("async_pg2s", _WAIT, _WAIT.replace("0", "1"),
            "the last wait leaves its group in flight, because cp_async_wait(1) doesn't wait for "
            "the newest group."),
    Mistake("async_pg2s", _WAIT + _COPIES, _BARRIER + _COPIES, "there is no wait after the commit"),
    Mistake("async_pg2s", _WAIT + _COPIES + _MULTIPLY, _WAIT + _MULTIPLY + _BARRIER + _COPIES,
            "aren't issued yet: they come too late to overlap with the products"),
    Mistake("async_pg2s", _WAIT, _WAIT[: _WAIT.index(")") + 2], "no barrier"),
    Mistake("async_pg2s", _COPIES, _COPIES.replace("1 - now", "now"), "which holds step 1"),
    Mistake("async_pg2s", _WAIT + _COPIES + _MULTIPLY, _COPIES + _WAIT + _MULTIPLY + _BARRIER,
            "waits for them too early"),
    Mistake("async_pg2s", _WAIT + _COPIES, _COPIES + _WAIT.replace("0", "1"), "no barrier since"),
    Mistake("async_pg2s", "        mma.cp_async_commit()\n", "", "its group isn't committed"),
    Mistake("async_pg2s", "left - BLOCK_K, ", "left, ", "it should be"),
    Mistake("async_pg2s", _MULTIPLY, "", "0 of them are multiplied"),
    Mistake("tma", ".T\n", "\n", "b must be [BLOCK_K, BLOCK_N], [64, 32]: see line 35."),
    Mistake("tma", ", k]", ", k * BLOCK_K]",
            "loads its block of A at [0, 4096], outside of A, instead of [0, 64]."),
    Mistake("tma", "load([pid_m * BLOCK_M, k])", "load([pid_m, k])",
            "In the step that begins at k = 0, program (1, 0) loads its block of A at [1, 0] "
            "instead of [16, 0]."),
    Mistake("tma", "b_desc.load([pid_n * BLOCK_N, k]).T", "b_desc.load([k, pid_n * BLOCK_N]).T",
            "loads its block of B at [64, 0], outside of B, instead of [0, 64]."),
    Mistake("tma", "store([pid_m * BLOCK_M, pid_n * BLOCK_N]",
            "store([pid_n * BLOCK_N, pid_m * BLOCK_M]", "has stored already"),
    Mistake("persistent", "step = tl.num_programs(0)", "step = 1", "has stored already"),
    Mistake("persistent", "end = tiles", "end = tl.num_programs(0)", "no program stores C["),
    Mistake("persistent", "end = tiles", "end = tiles - 1", "no program stores C[16, 16]"),
    Mistake("persistent", "        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)\n", "",
            "UnboundLocalError"),
    Mistake("persistent", "= tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            "= tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32) if tile == first else acc",
            "The sums of the tile before are still in it."),
    Mistake("warp_specialized", "(n // STAGES + 1) % 2", "n // STAGES % 2",
            "the kernel hangs: `load`"),
    Mistake("warp_specialized", "full.index(stage), n // STAGES % 2", "full.index(stage), n % 2",
            "before anything has arrived there"),
    Mistake("warp_specialized", "full.index(stage), n // STAGES % 2", "full.index(stage), 0",
            "which still holds step"),
    Mistake("warp_specialized", _READ + _FENCE + _ARRIVE, _ARRIVE + _READ, "has overwritten it"),
    Mistake("warp_specialized", _ARRIVE, "", "of which no phases are complete"),
    Mistake("warp_specialized", _EXPECT, "", "the kernel hangs"),
    Mistake("warp_specialized", "(n // STAGES + 1) % 2", "n // STAGES + 1", "it should be 0 or 1"),
    Mistake("split_k", "tl.cdiv(K, PARTS)", "K // PARTS", "over the first 69 elements of K"),
    Mistake("split_k", "tl.minimum(begin + each, K)", "begin + each", "loads A[0, 70], but A is"),
    Mistake("split_k", "part * M + offs_m\n    tl.store", "offs_m\n    tl.store",
            "has stored already"),
    Mistake("split_k", "range(PARTS)", "range(PARTS - 1)", "should be"),
    Mistake("split_k", "tl.store(p_ptr + rows[:, None] * stride_pm + offs_n[None, :] * stride_pn",
            "tl.atomic_add(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn",
            "which no program has stored"),
)  # fmt: skip

#: Other ways to do it, which are right.
RIGHT = (
    Mistake("async_pg2s", _WAIT + _COPIES + _MULTIPLY,
            _COPIES + _WAIT.replace("0", "1") + _MULTIPLY + _BARRIER, ""),
    Mistake("primer", "y_ptr + offs, mask=mask", "y_ptr + offs % n", ""),
    Mistake("naive", "range(0, K, BLOCK_K):",
            "range(0, tl.cdiv(K, BLOCK_K)):\n        k = k * BLOCK_K", ""),
    Mistake("swizzled", "first + pid % width % rows", "first + (pid - first * tiles_n) % rows", ""),
    Mistake("permuted", "min(8 // per_phase, BLOCK_K // 8)", "8 // per_phase", ""),
    Mistake("warp_specialized", "(n // STAGES + 1) % 2", "1 - n // STAGES % 2", ""),
    Mistake("split_k", "tl.cdiv(K, PARTS)", "tl.cdiv(tl.cdiv(K, BLOCK_K), PARTS) * BLOCK_K", ""),
    Mistake("split_k", "range(PARTS)", "range(PARTS - 1, -1, -1)", ""),
)  # fmt: skip

LOOPS = (
    Mistake("primer", "    tl.store", "    while n > 0:\n        n += 0\n    tl.store", ""),
    Mistake("warp_specialized", _EXPECT, f"        while n >= 0:\n            pass\n{_EXPECT}", ""),
)  # fmt: skip
