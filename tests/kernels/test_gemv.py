"""The rung for few rows: every address, stride, split and type, against the usual budget."""

import dataclasses

import pytest
import torch

import tritemm
from tests.harness import assert_right, ids, operand, operands, run, sweep
from tritemm import plan
from tritemm.arch.gemv import along
from tritemm.compile import asm
from tritemm.kernels.k14_gemv import KERNEL
from tritemm.problem import Problem
from tritemm.spec import Config

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8]
CONFIG = Config(2, 32, 64, num_warps=2)
#: Of strided operands: LLVM fails an assertion on CONFIG with 16-bit ones (Triton 3.6).
STRIDED = Config(8, 2, 128)


@pytest.mark.wide
@sweep(
    dtype=ids(DTYPES),
    layout=ids(["NN", "NT", "TN", "TT", "SS", "SN", "ST"]),
    aligned={"odd": False, "aligned": True},
)
def test_types_and_layouts(layout, dtype, aligned):
    a, b = operands(3, 37, 83, dtype, layout, aligned=aligned)
    assert run(KERNEL, a, b, config=STRIDED if layout[1] == "S" else CONFIG) is None


@sweep(dtype=ids([torch.bfloat16, torch.int8]), offset=ids(range(1, 8)), layout=ids("NT"))
def test_odd_addresses(dtype, offset, layout):
    """NaN, or a large integer, stands before, between and after the lines."""
    a = operand(1, 70, dtype, offset=offset)
    b = operand(70, 45, dtype, layout, offset=8 - offset)
    assert run(KERNEL, a, b, config=CONFIG) is None


@pytest.mark.wide
@sweep(layout=ids("NT"), split=ids([1, 2, 8]), stages=ids([1, 2, 8]))
def test_k_is_split_in_every_way(layout, split, stages):
    """Also in more parts than there are steps of K, and with more rows than a tile has."""
    config = dataclasses.replace(CONFIG, SPLIT_K=split, num_stages=stages, BLOCK_M=1 + stages % 2)
    for k in (1, 65, 200):
        a, b = operands(config.BLOCK_M + 1, 40, k, torch.bfloat16, f"N{layout}")
        assert run(KERNEL, a, b, config=config) is None


#: Configs with M, N, K: tiles of more rows and fewer, parts of 8 x 256 sums, which are more than
#: are read at once, and operands that are exchanged for a single column.
TILES = [
    *(
        (dataclasses.replace(CONFIG, BLOCK_M=tile), (rows, 40, 71))
        for tile in (1, 4, 8)
        for rows in (1, 2, 3, 4, 8, 9)
    ),
    (Config(8, 256, 32, num_warps=2, SPLIT_K=8), (7, 200, 250)),
    (dataclasses.replace(CONFIG, SWAP=True), (75, 1, 66)),
]


@pytest.mark.wide
@pytest.mark.parametrize(("config", "size"), TILES, ids=str)
def test_tiles(config, size):
    for layout in ("NN", "NT"):
        assert run(KERNEL, *operands(*size, torch.bfloat16, layout), config=config) is None


@pytest.mark.parametrize("split", [1, 2])
def test_batches_and_output_strides(split):
    config = dataclasses.replace(CONFIG, SPLIT_K=split)
    a = operand(3, 70, torch.bfloat16, batch=(2, 3))
    b = operand(70, 45, torch.bfloat16, "T", batch=(1, 3)).expand(2, -1, -1, -1)
    assert run(KERNEL, a, b, config=config, pitch_gap=3) is None
    assert run(KERNEL, a, b, config=config, transposed=True) is None


def test_bits_do_not_depend_on_the_rows_beside():
    """One config, one order of terms: row i is the same in a product of one row and of five."""
    a, b = operands(5, 40, 300, torch.float32, "NT")
    options = {"kernel": "gemv", "config": dataclasses.replace(CONFIG, SPLIT_K=2)}
    whole = tritemm.matmul(a, b, **options)
    for i in range(5):
        assert torch.equal(tritemm.matmul(a[i : i + 1], b, **options)[0], whole[i])


CASES = [
    (1, 6144, 4096),
    (1, 768, 2752),
    (2, 176, 1040),
    (1, 1280, 8192),
    (1, 64, 65536),
    (8, 4096, 4096),
    (1, 50257, 768),
    (4, 333, 777),
    (1, 5, 3),
    (3, 1, 9),
    (512, 512, 512),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("dtype", ["bf16", "fp64", "int8"])
def test_configs_are_few_and_sensible(case, layout, dtype):
    problem = asm.problem_of(asm.Job("simt", 90, *case, layout=layout, dtype=dtype))
    configs = KERNEL.configs(problem)
    assert 1 <= len(set(configs)) == len(configs) <= 12
    for config in configs:
        words = config.BLOCK_N if along(problem) == "n" else config.BLOCK_K
        assert words * problem.itemsize % 8 == 0
        if config.SPLIT_K > 1:
            assert config.SPLIT_K * config.BLOCK_K * config.num_stages < 2 * case[2]


@pytest.mark.parametrize(("rows", "most"), [(1, 4), (2, 4), (8, 2)])
def test_words_of_several_steps_are_asked_for_together(rows, most):
    """As many as a thread has room for: of its lines 8 at most, of those and A's rows 16."""
    for k, together in ((96, 1), (4096, 4), (4352, 2), (5120, 2), (40000, 8)):
        problem = asm.problem_of(asm.Job("simt", 90, rows, 6144, k, layout="NT", dtype="bf16"))
        configs = KERNEL.configs(problem)
        for config in configs:
            lines = config.BLOCK_N * config.BLOCK_K // 4 // (32 * config.num_warps)
            if config.num_stages > 1:
                assert lines * config.num_stages <= 8
                assert max(lines, rows) * config.num_stages <= 16
            steps = -(-k // config.BLOCK_K)
            whole = -(-steps // config.num_stages) * config.num_stages
            assert whole <= 1.25 * steps
        if k >= 1024:
            wide = [c.num_stages for c in configs if c.BLOCK_K == 1024]
            assert max(wide) == min(together, most)


def test_a_short_line_is_read_by_few_lanes():
    """Their sums are added up when it ends; 4 steps or more, and still all words fly at once."""
    problem = asm.problem_of(asm.Job("simt", 90, 1, 32768, 512, layout="NT", dtype="bf16"))
    narrow = [c for c in KERNEL.configs(problem) if c.BLOCK_K <= 128]
    assert {c.BLOCK_K * c.num_stages for c in narrow} & {512}
    assert all(c.BLOCK_N >= 4 for c in narrow)


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_lines_on_odd_addresses_are_read_in_words(layout):
    """Every load of B is 8 bytes wide, and so are those of A along K."""
    code = asm.compile_problem(asm.Job("gemv", 90, 1, 1333, 1777, layout=layout))
    assert code.count("LDG.E.64") >= 6 and code.spills == 0
    narrow = code.count("LDG.E.U16")
    assert narrow == (0 if layout == "NT" else 8)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["N", "T"])
def test_counters_are_left_at_zero(layout):
    """A thousand launches in a row, of two problems in turn, give one bit pattern each."""
    config = Config(1, 128, 256, num_warps=4, SPLIT_K=16)
    pairs = [operands(1, n, k, layout=f"N{layout}") for n, k in ((700, 9000), (333, 4095))]
    want = [None, None]
    for _ in range(1000):
        for i, (a, b) in enumerate(pairs):
            c = torch.full((1, b.shape[1]), torch.nan, dtype=a.dtype, device=a.device)
            plan.run(KERNEL, Problem.of(a, b, c), config, a, b, c)
            want[i] = c if want[i] is None else want[i]
            assert torch.equal(c, want[i])
    for c, (a, b) in zip(want, pairs, strict=True):
        assert_right(c, a, b)
