"""Rows whose bits depend on neither M nor the batch: which candidates there are, and their bits."""

import dataclasses
import itertools
import math
import types

import pytest
import torch

import tritemm
from tests.dispatch.choosing import A100, B200, problem
from tests.kernels.test_signs import expect_no_faults
from tests.sweep import EVERY, drawn
from tritemm import budget, dispatch, plan
from tritemm.arch import questions
from tritemm.compile import asm
from tritemm.dispatch import candidates
from tritemm.dispatch.cost_model import model
from tritemm.dispatch.request import Request, why_not
from tritemm.kernels.device import scheduler
from tritemm.problem import INTERPRETER, Problem
from tritemm.problem.config import Config, changed, config_of
from tritemm.rungs import RUNGS

BF16 = torch.bfloat16
WORD = "auto/batch_invariant"
#: N and K of layers: wide and narrow, deep, with odd pitches, and with a K that no step divides.
LAYERS = (
    (4096, 4096), (6144, 4096), (2112, 7168), (1280, 8192), (256, 7168), (768, 3072), (1536, 2056),
    (1003, 2051), (64, 16384), (520, 5000),
)  # fmt: skip
#: What FFMA and DMMA multiply, and the rungs that do.
AS_THEY_ARE = {torch.float32: "sgemm", torch.float64: "dgemm"}
#: The largest M, with which the others are compared.
ROWS = 4096
SPREAD = (1, 2, 3, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 192, 255, 256, 257,
          384, 500, 512, 777, 1000, 1024, 1536, 2000, 2048, 3000, 3333, 4095)  # fmt: skip


def every_candidate(asked):
    """All that may be taken for the problem, each as its rung and config."""
    parts = questions.parts_of(asked)
    for group in candidates.in_one_order(asked, candidates.rungs_in_order(asked, RUNGS), parts):
        for config in map(group.whole, group.configs):
            yield group.kernel, config


@pytest.mark.parametrize("dtype", [BF16, *AS_THEY_ARE], ids=str)
@pytest.mark.parametrize("size", LAYERS)
def test_what_is_taken_is_a_candidate_and_can_be_asked_for(size, dtype):
    for M, batch in itertools.product((1, 16, 100, 1000, 4096), ((), (3,))):
        asked = problem(M, *size, dtype=dtype, batch=batch)
        choice = dispatch.choose(asked, WORD)
        found = list(every_candidate(asked))
        assert (choice.kernel, choice.config) in found
        assert str(choice)
        for kernel, config in found:
            assert config.SPLIT_K in (1, config.PARTS)
            again = dispatch.choose(asked, str(Request(kernel.name, config)))
            assert (again.kernel, again.config) == (kernel, config)


@pytest.mark.parametrize("size", LAYERS)
def test_the_cut_follows_from_the_layer(size):
    """Whatever M, the batch, the layouts and what follows are."""
    found = set()
    for M in (*SPREAD, ROWS, 65536):
        for batch, layout in itertools.product(((), (3,)), ("NT", "TN")):
            found.add(questions.parts_of(problem(M, *size, layout, batch=batch)))
        found.add(questions.parts_of(problem(M, *size, bias=BF16, activation="gelu")))
        assert dispatch.choose(problem(M, *size), WORD).config.PARTS in found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("N", "K", "parts"),
    [(256, 7168, 8), (1280, 8192, 5), (64, 131072, 64), (384, 2686391, 22), (768, 65536, 8),
     (1536, 294912, 4), (768, 3072, 1), (2112, 7168, 1), (4096, 14336, 1), (1, 4096, 5), (1, 0, 1)],
)  # fmt: skip
def test_narrow_products_with_a_long_k_are_cut(N, K, parts):
    assert questions.parts_of(problem(16, N, K)) == parts


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_what_warpgroups_multiply_is_what_the_code_shows(rung):
    """`Tile.warpgroups` decides whose sums have one order; signs are what code is held to."""
    present, _ = rung.signs.get(90, ((), ()))
    assert rung.limits.tile.warpgroups == ("HGMMA" in present)


def test_only_sums_of_wgmma_in_fp32_are_cut():
    size = (16, 256, 7168)
    assert questions.parts_of(problem(*size, dtype=torch.float16)) == 8
    assert questions.parts_of(problem(*size, dtype=torch.float16, accumulate=torch.float16)) == 1
    for dtype in AS_THEY_ARE:
        assert questions.parts_of(problem(*size, dtype=dtype)) == 1
    others = [{"device": device} for device in (A100, B200, INTERPRETER)]
    others += [{"dtype": torch.int8}, {"dtype": torch.float32, "precision": "tf32"}]
    for options in others:
        assert questions.parts_of(problem(*size, **options)) == 0


@pytest.mark.parametrize(("dtype", "rung"), AS_THEY_ARE.items(), ids=AS_THEY_ARE.values())
@pytest.mark.parametrize("layout", asm.LAYOUTS)
@pytest.mark.parametrize(("N", "K"), [(4096, 4096), (1280, 8192), (64, 16384), (4093, 4095)])
def test_fp32_and_fp64_take_the_fastest_tile_with_k_whole(N, K, layout, dtype, rung):
    taken = set()
    for M, batch in [*((M, ()) for M in (1, 7, 100, 1000, 8192)), (40, (3,))]:
        asked = problem(M, N, K, layout, dtype, batch=batch)
        choice = dispatch.choose(asked, WORD)
        config = choice.config
        assert (config.SPLIT_K, config.PARTS) == (1, 1)
        assert why_not(choice.kernel, config.view(asked), config) is None
        for name in ("pipelined", rung):
            if dispatch.find(name).why_not(asked) is None:
                named = dispatch.choose(asked, f"{name}/batch_invariant")
                assert choice.predicted <= named.predicted
        taken.add((choice.kernel.name, config.BLOCK_M * config.BLOCK_N))
    assert len(taken) > 1 and rung in dict(taken)
    assert dict(taken).keys() == {rung} or dtype == torch.float64


@pytest.mark.parametrize(("dtype", "rung"), AS_THEY_ARE.items(), ids=AS_THEY_ARE.values())
def test_fp32_and_fp64_have_k_whole_where_auto_cuts_it(dtype, rung):
    asked = problem(64, 64, 65536, dtype=dtype)
    assert dispatch.choose(asked, rung).config.SPLIT_K > 1
    for word in (WORD, f"{rung}/batch_invariant"):
        choice = dispatch.choose(asked, word)
        assert choice.kernel.name == rung and choice.config.SPLIT_K == 1


@pytest.mark.parametrize("dtype", AS_THEY_ARE, ids=str)
def test_what_tma_cannot_read_is_copied_or_goes_through_pointers(dtype):
    large, small = (problem(*size, "NN", dtype) for size in ((512, 4095, 1023), (300, 35, 9)))
    assert dispatch.choose(large, WORD).config.PACK == "ab"
    names = {(bool(config.PACK), kernel.name) for kernel, config in every_candidate(small)}
    assert {name for packed, name in names if not packed} == {"pipelined"}
    assert (True, AS_THEY_ARE[dtype]) in names


@pytest.mark.parametrize(
    "kind",
    [*({"precision": name} for name in ("tf32", "tf32x3", "bf16x3")),
     {"device": A100}, {"device": B200}, {"device": A100, "precision": "bf16x6"}],
    ids=str,
)  # fmt: skip
def test_other_precisions_and_gpus_keep_one_tile(kind):
    asked = (problem(M, 4096, 4096, dtype=torch.float32, **kind) for M in (1, 64, 4096))
    taken = [dispatch.choose(each, WORD) for each in asked]
    assert len({(choice.kernel, choice.config) for choice in taken}) == 1
    assert taken[0].kernel.name not in AS_THEY_ARE.values()


def test_a_rung_that_is_named_cuts_k_if_it_can():
    asked = problem(16, 256, 7168)
    found = {
        name: dispatch.choose(asked, f"{name}/batch_invariant").config
        for name in ("warp_specialized", "split_k", "cluster_split_k", "pingpong", "tma")
    }
    cuts = {name: (config.PARTS, config.SPLIT_K) for name, config in found.items()}
    assert cuts == {
        "warp_specialized": (8, 1), "split_k": (8, 8), "cluster_split_k": (8, 8),
        "pingpong": (1, 1), "tma": (1, 1),
    }  # fmt: skip
    with pytest.raises(ValueError, match="with K in 8 parts: cluster_split_k: none of its tiles"):
        dispatch.choose(problem(65536, 256, 7168), "cluster_split_k/batch_invariant")


def test_odd_pitches_are_copied_where_k_is_cut():
    for M, copied in ((1, "b"), (16, "ab"), (300, "ab"), (5000, "ab")):
        config = dispatch.choose(problem(M, 257, 7171, "NN"), WORD).config
        assert copied == config.PACK and config.PARTS == 8


@pytest.mark.parametrize("K", [4096, 4097, 5000, 7168, 8191, 8200, 16384, 50257, 2686391])
@pytest.mark.parametrize("parts", [2, 3, 5, 8, 16])
def test_all_depths_of_a_step_meet_the_same_cut(K, parts):
    """By the kernel's function: every element of K is in one part, which no tile moves.

    The last one ends where all depths do, behind K.
    """
    cuts = {depth: cut(K, depth, parts) for depth in (64, 128, 256)}
    for depth, found in cuts.items():
        assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])]
        assert all(end > first for first, end in found)
        assert found[-1][1] * depth == -(-K // scheduler.CUT.value) * scheduler.CUT.value
        inner = [first * depth for first, _ in found[1:]]
        assert inner == [first * 64 for first, _ in cuts[64][1:]]
        assert all(place % scheduler.CUT.value == 0 for place in inner)


def cut(K, depth, parts):
    """First step and end of each part, as `Scheduler.share` finds them."""
    language = types.SimpleNamespace(cdiv=lambda a, b: -(-a // b), assume=lambda holds: None)
    found = scheduler.Scheduler.share.fn
    names = {"gl": language, "CUT": scheduler.CUT.value}
    function = types.FunctionType(found.__code__, found.__globals__ | names)
    work = types.SimpleNamespace(K=K, SHAPE=types.SimpleNamespace(BLOCK_K=depth, PARTS=parts))
    ends = []
    for part in range(parts):
        first, steps = function(work, part, parts)
        ends.append((first, first + steps))
    return ends


def test_parts_in_words_and_numbers():
    config = Config(128, 128, 64, num_warps=8, num_stages=5, SPLIT_K=4, PARTS=4)
    assert "K split in 4, K in 4 fixed parts" in str(config)
    assert config_of(changed(config)) == config
    assert Request.parse(str(Request("split_k", config))).config == config
    assert "PARTS" not in changed(dataclasses.replace(config, PARTS=1))


def test_a_program_with_all_parts_takes_longer_and_one_part_as_long():
    asked, kernel = problem(4096, 1024, 8192), dispatch.find("split_k")
    whole = Config(128, 128, 64, num_warps=8, num_stages=5, ORDER="grouped")
    one, all_ = (dataclasses.replace(whole, PARTS=4, SPLIT_K=n) for n in (4, 1))
    assert dispatch.predict(kernel, asked, all_) > dispatch.predict(kernel, asked, whole)
    split = dataclasses.replace(whole, SPLIT_K=4)
    assert dispatch.predict(kernel, asked, one) == dispatch.predict(kernel, asked, split)


def test_a_part_is_as_long_as_the_longest(monkeypatch):
    """K is 32 times 256 elements: two of its 5 parts have 7 of the 32."""
    monkeypatch.setattr(model, "BRIEF", math.inf)  # as if the clock did not fall meanwhile
    asked, kernel = problem(64, 1280, 8192), dispatch.find("split_k")
    config = Config(64, 64, 64, num_stages=10, ORDER="grouped", SPLIT_K=5)
    fixed = dataclasses.replace(config, PARTS=5)
    found = [model.breakdown(kernel, asked, c).steps for c in (config, fixed)]
    assert found[1] / found[0] == pytest.approx(28 / 26)


def variants(rung):
    """Every tile of the rung that takes K in fixed parts, each once, in one of the layouts.

    What has a second sum gets an epilogue every other time.
    """
    endings = itertools.cycle(({}, {"bias": True, "activation": "gelu", "residual": True}))
    own = {}
    for M, (N, K), layout in itertools.product(
        (8, 64, 200, 1024, 8192), ((256, 7168), (1280, 8192)), ("NT", "NN", "TN", "TT")
    ):
        for kernel, config in every_candidate(problem(M, N, K, layout)):
            if kernel.name == rung and not config.SWAP:
                tile = config.BLOCK_M, config.BLOCK_N, config.num_warps, config.CLUSTER
                own.setdefault((tile, layout), (M, N, K, config))
    tiles = list(dict.fromkeys(tile for tile, _ in own))
    for i, tile in enumerate(tiles if EVERY else tiles[:: max(1, len(tiles) // 4)]):
        layouts = [layout for each, layout in own if each == tile]
        for layout in layouts if EVERY else [layouts[i % len(layouts)]]:
            M, N, K, config = own[tile, layout]
            more = next(endings) if config.PARTS > config.SPLIT_K else {}
            yield asm.Job(rung, layout=layout, M=M, N=N, K=K, config=config, **more)


@pytest.mark.wide
@pytest.mark.parametrize("rung", [rung.name for rung in RUNGS if rung.limits.fixed_parts])
def test_each_variant_compiles_without_faults(rung):
    """No spills, and WGMMA is not serialised: the second sum stays in registers."""
    expect_no_faults(list(variants(rung)), "mix")


def test_a_plain_product_has_no_second_sum():
    config = Config(128, 128, 64, num_warps=8, num_stages=5, ORDER="grouped")
    plain, parts = (
        asm.Job("warp_specialized", layout="NT", config=dataclasses.replace(config, PARTS=n))
        for n in (1, 4)
    )
    plain, parts = asm.compile_many([plain, parts], apart=True)
    assert (plain.count("FADD"), parts.count("FADD")) == (0, 64)
    assert parts.count("HGMMA") == 2 * plain.count("HGMMA")


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("K", [256, 777])
def test_tf32_is_copied_along_k_where_the_rung_reads_no_other(layout, K):
    orders = set()
    for M in (1, 5, 8, 64, 1000, 5000):
        for stored in ("N", "T"):
            asked = problem(M, 512, K, stored + layout[1], dtype=torch.float32, precision="tf32")
            choice = dispatch.choose(asked, WORD)
            assert choice.kernel.why_not(choice.config.view(asked)) is None
            orders.add((choice.kernel.name, dataclasses.replace(choice.config, PACK="")))
    assert len(orders) == 1


def test_fewer_stages_where_the_output_needs_the_room():
    deep = Config(128, 256, 64, num_warps=8, num_stages=4, ORDER="grouped", CLUSTER=2)
    cluster, asked = dispatch.find("cluster"), problem(512, 511, 512)
    asked = dataclasses.replace(asked, c=dataclasses.replace(asked.c, dtype=torch.float32))
    assert "shared memory" in why_not(cluster, asked, deep)
    assert candidates._shallower(cluster, asked, deep).num_stages == 3
    with pytest.raises(ValueError, match="batch_invariant=True excludes cluster"):
        candidates._shallower(cluster, asked, dataclasses.replace(deep, num_warps=2))


# What only a GPU shows


def randn(*shape, dtype=BF16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def bits(a, b, **options):
    """The product's, as integers."""
    return as_integers(tritemm.matmul(a, b, batch_invariant=True, **options))


def as_integers(c):
    return c.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[c.element_size()])


def differing(whole, multiply):
    """Those M of `SPREAD` at which the bits of `multiply(M)` are not those rows of `whole`."""
    spread = [M for M in SPREAD if len(whole) > M]
    flags = [(multiply(M) != whole[:M]).any() for M in spread]
    return [M for M, flag in zip(spread, torch.stack(flags).tolist(), strict=True) if flag]


@pytest.mark.gpu
@pytest.mark.parametrize(("N", "K"), LAYERS)
def test_bits_of_rows_alone_and_in_batches(N, K):
    x, w = randn(ROWS, K), randn(N, K)
    whole = bits(x, w.mT)
    assert not differing(whole, lambda M: bits(x[:M], w.mT))
    weights = torch.stack((w, w.flip(0), w))
    for M in (1, 16, 64, 200, 1024):
        got = bits(torch.stack((x[:M], x[-M:], x[1000 : 1000 + M])), weights.mT)
        assert torch.equal(got[0], whole[:M])
        assert torch.equal(got[1], whole[-M:].flip(1))
        assert torch.equal(got[2], whole[1000 : 1000 + M])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
def test_bits_of_other_layouts(layout):
    N, K = 1280, 4104
    x, w = randn(ROWS, K), randn(N, K)
    whole = bits(x, w.mT)
    b = w.mT.contiguous() if layout[1] == "N" else w.mT
    for M in (1, 8, 64, 200, 1000, ROWS):
        a = x[:M].mT.contiguous().mT if layout[0] == "T" else x[:M]
        assert torch.equal(bits(a, b), whole[:M])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", AS_THEY_ARE, ids=str)
@pytest.mark.parametrize("layout", asm.LAYOUTS)
@pytest.mark.parametrize(("N", "K"), [(1280, 4104), (515, 1001)])
def test_bits_of_fp32_and_fp64(N, K, layout, dtype):
    """Alone, in batches and after an epilogue, with and without a copy."""
    x, w, bias = randn(2048, K, dtype=dtype), randn(K, N, dtype=dtype), randn(N, dtype=dtype)
    w = w.mT.contiguous().mT if layout[1] == "T" else w

    def rows(M):
        return x[:M].mT.contiguous().mT if layout[0] == "T" else x[:M]

    for options in ({}, {"bias": bias, "alpha": 0.7}):
        whole = bits(rows(2048), w, **options)
        assert not differing(whole, lambda M, options=options: bits(rows(M), w, **options))
    whole = bits(x, w)
    for M in (1, 16, 200):
        got = bits(torch.stack((rows(M), x[-M:])), torch.stack((w, w)))
        assert torch.equal(got[0], whole[:M]) and torch.equal(got[1], whole[-M:])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", AS_THEY_ARE, ids=str)
@pytest.mark.parametrize("K", [2056, 1001])
def test_bits_of_fp32_and_fp64_by_every_rung(K, dtype):
    M, N = 72, 136
    a, b = randn(M, K, dtype=dtype), randn(N, K, dtype=dtype).mT
    want, c = bits(a, b), torch.empty(M, N, device="cuda", dtype=dtype)
    asked = Problem.of(a, b, c)
    names = [*AS_THEY_ARE.values(), "naive", "tiled", "pipelined", "tma", "persistent"]
    named = [rung for rung in map(dispatch.find, names) if rung.why_not(asked) is None]
    by_name = [(rung, tile) for rung in named for tile in rung.in_one_order(asked, 1)]
    for kernel, config in [*every_candidate(asked), *by_name]:
        plan.run(kernel, asked, config, a, b, c.fill_(torch.nan))
        assert torch.equal(as_integers(c), want), (kernel, config)


@pytest.mark.gpu
@pytest.mark.parametrize("stored", ["N", "T"])
def test_bits_of_tf32(stored):
    x, b = randn(256, 1000, dtype=torch.float32).mT, randn(512, 256, dtype=torch.float32).mT
    whole = bits(x, b, precision="tf32")
    for M in (1, 5, 8, 64, 999):
        a = x[:M].contiguous() if stored == "N" else x[:M].mT.contiguous().mT
        assert torch.equal(bits(a, b, precision="tf32"), whole[:M])


@pytest.mark.gpu
@pytest.mark.parametrize("K", [2056, 4360])
def test_bits_of_what_is_not_finite_and_of_zeros(K):
    """Zeros of either sign, infinities and NaN, next to where K is cut and at its end."""
    x, w = randn(1024, K), -torch.rand(136, K, device="cuda", dtype=BF16)
    x[::7], x[1::7] = 0.0, -0.0
    for row, value in ((2, torch.inf), (3, -torch.inf), (4, torch.nan)):
        for i, k in enumerate((0, 767, 768, K - 1)):
            x[row + 7 * i, k] = value
    assert not differing(bits(x, w.mT), lambda M: bits(x[:M], w.mT))


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [torch.float32, torch.float16])
def test_bits_of_an_epilogue_and_of_fp16(accumulate):
    N, K = 768, 5000
    x, w = randn(ROWS, K, dtype=torch.float16) / 50, randn(N, K, dtype=torch.float16)
    bias, residual = (randn(*s, dtype=torch.float16) for s in ((N,), (ROWS, N)))
    options = {"bias": bias, "activation": "gelu", "alpha": 0.7, "accumulate": accumulate}

    def multiply(M):
        return bits(x[:M], w.mT, residual=residual[:M], **options)

    assert not differing(multiply(ROWS), multiply)


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [rung.name for rung in RUNGS if rung.limits.fixed_parts])
@pytest.mark.parametrize(
    ("M", "N", "K", "batch"), [(200, 264, 5000, (2,)), (9000, 520, 4360, ()), (7, 64, 8200, ())]
)
def test_parts_are_all_added(rung, M, N, K, batch):
    """Products of small integers are exact; one program has many tiles, or one."""
    a, b = budget.exact_operands(randn(*batch, M, K), randn(*batch, N, K).mT)
    c = torch.empty(*batch, M, N, device="cuda", dtype=BF16)
    want = budget.reference(a, b).to(BF16)
    asked = Problem.of(a, b, c)
    assert questions.parts_of(asked) > 1
    for kernel, config in every_candidate(asked):
        if kernel.name == rung and not config.SWAP:
            plan.run(kernel, asked, config, a, b, c.fill_(torch.nan))
            assert torch.equal(c, want), config


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rung", [r.name for r in reversed(candidates.rungs_in_order(problem(72, 136, 2056), RUNGS))]
)
@pytest.mark.parametrize("K", [2056, 4360, 1001])
def test_bits_of_candidates(rung, K):
    """Some of a rung, which are drawn, against one product of another: K whole, in 5 parts, and
    with odd pitches."""
    M, N = 72, 136
    a, b = randn(M, K), randn(N, K).mT
    want = bits(a, b)
    c = torch.empty(M, N, device="cuda", dtype=BF16)
    asked = Problem.of(a, b, c)
    own = (each for each in every_candidate(asked) if each[0].name == rung)
    for kernel, config in drawn(own, 6):
        plan.run(kernel, asked, config, a, b, c.fill_(torch.nan))
        assert torch.equal(as_integers(c), want), config
