"""Rungs that synchronise by hand: what shows where a wait, its partner or a bound is missing.

Operands are small integers whose sums are exact, so one wrong element, or one lost term, shows.
`tools/mutants.py` plants such faults, and names the tests that find them.
"""

import re

import pytest
import torch

import tritemm
from tests.harness import operand, operands, run, rung_param
from tools.stressed import by_hand, spread
from tritemm import budget
from tritemm.compile import asm
from tritemm.kernels import k12_split_k, k17_multicast_split_k, k18_cluster_split_k
from tritemm.problem import Problem
from tritemm.rungs import RUNGS, find
from tritemm.spec import Config

pytestmark = pytest.mark.host  # but for what is marked `gpu`

BF16 = torch.bfloat16
#: M, N, K of few tiles and many steps, no whole number of them for each program.
FEW = (920, 136, 8840)
hand = pytest.mark.parametrize("kernel", [rung_param(kernel) for kernel in by_hand()])
#: Those whose C TMA stores.
ENGINE = [kernel for kernel in by_hand() if "c_desc" in kernel.fn.arg_names]
#: Those that cut K; and those of them that cut it into the same parts for every tile.
cutting = pytest.mark.parametrize(
    "kernel", [rung_param(kernel) for kernel in by_hand() if not kernel.limits.in_order]
)
IN_PARTS = [k12_split_k.KERNEL, k17_multicast_split_k.KERNEL, k18_cluster_split_k.KERNEL]


def exact(M, N, K):
    """A and B, and what they give in bfloat16."""
    a, b = budget.exact_operands(operand(M, K, BF16), operand(K, N, BF16))
    return a, b, budget.reference(a, b).to(BF16)


def poisoned(like, dtype=None):
    return torch.full_like(like, torch.nan, dtype=dtype)


def cut(kernel, a, b, c):
    """The rung's configs that cut K, those of few programs first; there are some."""
    problem = Problem.of(a, b, c)
    found = [config for config in kernel.configs(problem) if config.SPLIT_K > 1]
    assert found
    return sorted(found, key=lambda config: config.tiles(problem) * config.SPLIT_K)


@pytest.mark.wide
@pytest.mark.parametrize("kernel", ENGINE, ids=lambda kernel: kernel.name)
def test_the_engine_stores_what_was_fenced(kernel):
    """A fence for its proxy stands between the threads' writes to shared memory and each store."""
    code = asm.compile_problem(asm.Job(kernel.name, layout="NT", M=512, N=512, K=4096))
    written, fence, store = r"stmatrix|st\.shared", r"fence\.proxy\.async", r"tensor\.\dd\.global"
    kinds = re.findall(f"(?:{written})|(?:{fence})|(?:{store})", code.ptx)
    fenced, stores = False, 0
    for kind in kinds:
        if re.match(store, kind):
            stores += 1
            assert fenced, f"store {stores} follows a write without a fence"
        else:
            fenced = bool(re.match(fence, kind))
    assert stores


@hand
@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_programs_take_many_tiles(kernel, layout):
    """Each goes round its ring many times, and from one tile to the next."""
    a, b = operands(4100, 4200, 1032, BF16, layout, aligned=True)
    problem = Problem.of(a, b, torch.empty(4100, 4200, dtype=BF16, device="meta"))
    configs = kernel.configs(problem)
    for config in {configs[0]: None, configs[len(configs) // 2]: None, configs[-1]: None}:
        assert run(kernel, a, b, config=config) is None


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    ("name", "rows", "columns", "warps", "programs"),
    [
        ("cluster_pingpong", 64, 72, 4, 2), ("cluster_pingpong", 64, 136, 4, 4),
        ("cluster_pingpong", 128, 24, 4, 4), ("cluster_pingpong", 64, 8, 4, 4),
        ("cluster", 128, 104, 8, 4), ("cluster", 192, 88, 12, 2), ("cluster", 256, 136, 8, 2),
        ("multicast_split_k", 64, 72, 4, 4), ("multicast_split_k", 128, 136, 8, 2),
    ],
)  # fmt: skip
def test_tiles_as_wide_as_any_multiple_of_8(name, rows, columns, warps, programs, swap, layout):
    """The shares of the last two programs overlap, pieces of 8 columns leave in groups, and each
    program takes several tiles; of the first C few rows, of the second few columns."""
    config = Config(
        rows, columns, 64, num_warps=warps, num_stages=3, ORDER="grouped", CLUSTER=programs,
        SPLIT_K=2 if "split" in name else 1, SWAP=swap,
    )  # fmt: skip
    for M, N in ((2 * columns - 7, 300 * rows), (300 * rows + 8, 2 * columns - 8)):
        a, b = operands(M, N, 328, BF16, layout, aligned=True)
        assert run(find(name), a, b, config=config) is None


@hand
@pytest.mark.gpu
@pytest.mark.parametrize("gap", [0, 3], ids=["engine", "pointers"])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_batches_in_two_dimensions(kernel, layout, gap):
    """Their sizes differ, and one of B is broadcast: an index in the wrong place shows."""
    a = operand(133, 200, BF16, layout[0], (2, 5), aligned=True)
    b = operand(200, 272, BF16, layout[1], (1, 5), aligned=True).expand(2, -1, -1, -1)
    assert run(kernel, a, b, pitch_gap=gap) is None


@pytest.mark.parametrize("kernel", [rung_param(k) for k in RUNGS if not k.limits.dtype])
@pytest.mark.gpu
def test_a_launch_waits_for_the_one_before(kernel):
    """A short product, which could begin at once, of the result of a long one on a few SMs."""
    a, b, _ = exact(128, 128, 2**16)
    turn = torch.eye(128, dtype=BF16, device="cuda")[torch.randperm(128)].contiguous()
    first, second = (poisoned(turn) for _ in "ab")
    options = {"kernel": "warp_specialized"}, {"kernel": kernel.name}
    want = budget.reference(tritemm.matmul(a, b, **options[0]), turn).to(BF16)
    tritemm.matmul(turn, turn, out=second, **options[1])  # so that the next ones come without delay
    torch.cuda.synchronize()
    for stream in [torch.cuda.current_stream(), torch.cuda.Stream()] * 3:
        with torch.cuda.stream(stream):
            first.fill_(torch.nan), second.fill_(torch.nan)
            tritemm.matmul(a, b, out=first, **options[0])
            tritemm.matmul(first, turn, out=second, **options[1])
            assert torch.equal(second, want)


@cutting
@pytest.mark.gpu
def test_parts_are_summed_launch_after_launch(kernel):
    """Whoever counts finds zero, and all parts are added: together, and as they happen to run."""
    a, b, want = exact(*FEW)
    configs = cut(kernel, a, b, want)
    for config in dict.fromkeys((*spread(configs, 5), configs[-1])):
        results = [poisoned(want) for _ in range(4)]
        for out in results:
            tritemm.matmul(a, b, kernel=kernel.name, config=config, out=out)
        for launch, out in enumerate(results):
            assert torch.equal(out, want), (launch, config)


@pytest.mark.parametrize("kernel", [rung_param(kernel) for kernel in IN_PARTS])
@pytest.mark.gpu
def test_parts_are_added_in_their_order(kernel):
    """Each part is one product, exact in fp32: another order of their sum shows in some bits."""
    M, N, K = FEW
    c = torch.empty(M, N, device="cuda")
    a, b = (torch.zeros(size, dtype=torch.float16, device="cuda") for size in ((M, K), (K, N)))
    configs = [config for config in cut(kernel, a, b, c) if config.SPLIT_K > 2]
    assert configs
    for config in spread(configs, 3):
        steps, parts = -(-K // config.BLOCK_K), config.SPLIT_K
        begins = [steps * part // parts * config.BLOCK_K for part in range(parts)]
        a.zero_()[:, begins] = torch.randn(M, parts, device="cuda").half()
        b.zero_()[begins] = torch.randn(parts, N, device="cuda").half()
        want = torch.zeros_like(c)
        for k in begins:
            want += a[:, k, None].float() * b[k].float()
        got = tritemm.matmul(a, b, kernel=kernel.name, config=config, out_dtype=torch.float32)
        assert torch.equal(got, want), config


@hand
@pytest.mark.gpu
def test_beside_other_launches(kernel):
    """On three streams at once, sizes in turns; programs start late and unevenly."""
    cases = [exact(*size) for size in (FEW, (300, 520, 1032), (64, 512, 4096))]
    streams = [torch.cuda.Stream() for _ in range(3)]
    for a, b, _ in cases:
        tritemm.matmul(a, b, kernel=kernel.name)
    torch.cuda.synchronize()
    results = []
    for turn in range(60):
        a, b, want = cases[turn % 3 - turn // 3 % 3]
        with torch.cuda.stream(streams[turn % 3]):
            results.append((tritemm.matmul(a, b, kernel=kernel.name), want))
    torch.cuda.synchronize()
    assert all(torch.equal(got, want) for got, want in results)
