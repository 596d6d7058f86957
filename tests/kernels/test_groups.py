"""Groups: products whose rows, columns or K offsets on the device cut, by each rung that can."""

import dataclasses
import itertools
import math

import pytest
import torch

import tritemm
from tests.dispatch.choosing import H200
from tests.groups import bounds, check, cut, offsets, parts, poison
from tests.harness import DEVICE, Guarded, assert_right, ids, operand, sweep
from tests.sweep import CODE, EVERY, drawn
from tritemm import Config, plan
from tritemm.dispatch import cache
from tritemm.dispatch.request import why_not
from tritemm.problem import EpilogueInputs, Problem
from tritemm.problem.tile_space import Grouped
from tritemm.rungs import RUNGS

BF16, HALF, FP32, FP64, INT8 = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8
)  # fmt: skip
ABLE = [kernel for kernel in RUNGS if kernel.limits.groups]
#: Sizes of groups, and of what lies behind the last.
SIZES = {
    "ragged": ((5, 0, 40, 33, 0, 3, 70), 0),
    "rest": ((5, 0, 40, 33, 0, 3, 70), 37),
    "first": ((0, 0, 1), 0),
    "empty": ((0,) * 7, 37),
    "one": ((50,), 0),
    "ones": ((1,) * 40, 3),
    "whole": ((32, 64, 96), 0),
    "last": ((7, 90, 13, 0, 0, 27) + (0,) * 60, 37),
}
NARROW = Config(128, 16, 128, 4, 5, "grouped", SWAP=True)


def able_configs(kernel, problem, configs):
    """Those of the `configs` that the kernel takes; with operands swapped if they say so."""
    return [
        config
        for config in configs
        if kernel.why_not(config.view(problem)) is None
        and why_not(kernel, config.view(problem), config) is None
    ]


@pytest.mark.wide
@sweep(
    kernel={kernel.name: kernel for kernel in ABLE if DEVICE == "cuda" or kernel.interpreted},
    form=ids("mk"),
    sizes=SIZES,
    n=ids((8, 72, 201, 256)),
    k=ids((16, 136, 137)),
    dtype=ids((BF16, HALF, FP32, FP64, INT8)),
    layout=ids(("NN", "NT", "TN")),
)
def test_every_rung_that_can(kernel, form, sizes, n, k, dtype, layout, request):
    """On a GPU in a third of its configs: neighbours are NaN, and nothing outside is written."""
    (sizes, rest), aligned = sizes, k != 137
    if DEVICE == "cuda":
        sizes, rest = [4 * size for size in sizes], 4 * rest
    elif n > 80:
        n = 40
    offs, total = offsets(sizes), sum(sizes) + rest
    layout = layout if form == "m" else "TN"
    a, b = cut(form, n, k, len(sizes), total, dtype, layout, aligned=aligned)
    poison_it = dtype.is_floating_point and rest
    if poison_it:
        poison(form, a, b, total - rest, total)
    out = torch.int32 if dtype == INT8 else dtype
    guarded = Guarded.like((total, n) if form == "m" else (len(sizes), n, n), out)
    c, precision = guarded.tensor, "ieee"
    if dtype == FP32 and kernel.interpreted is None:
        precision = "tf32"
    problem = Problem.of(a, b, c, precision=precision, groups=form)
    if reason := kernel.why_not(problem):
        assert any(word in reason for word in ("16 bits", "of 16", "along K", "128 is"))
        pytest.skip(reason)
    own = [kernel.interpreted] if DEVICE == "cpu" else [*kernel.configs(problem), NARROW]
    able = able_configs(kernel, problem, own)
    for config in drawn(able, max(3, -(-len(able) // 3)), code=CODE + request.node.name):
        c.fill_(guarded.poison)
        plan.run(kernel, problem, config, a, b, c, offs)
        guarded.assert_untouched_outside()
        check(form, c, a, b, offs, precision=precision)


@pytest.mark.wide
@pytest.mark.parametrize("kernel", [k for k in ABLE if DEVICE == "cuda" or k.interpreted], ids=str)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("m", "n"), [(8, 72), (72, 8), (136, 264)])
@pytest.mark.parametrize("form", "mk")
def test_a_groups_bias_is_its_own_in_every_config(form, m, n, swap, kernel, request):
    """Also where operands are swapped, so that it runs along the rows of the kernel's product."""
    sizes = (16, 0, 24, 8)
    offs, total = offsets(sizes), sum(sizes)
    a, b = cut(form, n, m, len(sizes), total, BF16)
    if form == "k":
        a = operand(m, total, BF16, "T")
    bias, shape = operand(len(sizes), n, BF16), (total, n) if form == "m" else (len(sizes), m, n)
    c = torch.empty(shape, dtype=BF16, device=DEVICE)
    problem = Problem.of(a, b, c, groups=form, bias=BF16)
    view = problem.transposed() if swap else problem
    own = [kernel.interpreted] if DEVICE == "cpu" else kernel.configs(view)
    able = able_configs(kernel, problem, [dataclasses.replace(c, SWAP=swap) for c in own])
    assert able or (form == "m" and swap)  # which "grouped" refuses
    for config in drawn(able, 1, code=CODE + request.node.name):
        c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, kernel=kernel.name, config=config)
        for g, (found, x, y) in enumerate(parts(form, c, a, b, offs)[0]):
            if x.shape[1]:
                assert_right(found, x, y, ending=EpilogueInputs(bias[g]))
            else:
                assert torch.equal(found, bias[g].expand_as(found))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(2, 0, 9, 1, 5), (16, 0, 70, 30, 1)], ids=str)
def test_groups_of_short_k(sizes):
    """Which have small tiles and short steps where C is large."""
    a, b = cut("k", 264, 16, len(sizes), sum(sizes) + 3, BF16, "TN", aligned=True)
    b = torch.cat([b] * 17, 1)
    poison("k", a, b, sum(sizes), sum(sizes) + 3)
    offs = offsets(sizes)
    check("k", tritemm.grouped_mm(a, b, offs=offs), a, b, offs)


@pytest.mark.gpu
@pytest.mark.skipif(not EVERY, reason="takes two minutes: TRITEMM_SWEEP=all")
def test_a_group_of_as_many_terms_as_offsets_can_count():
    one, K = torch.ones(1, dtype=INT8, device=DEVICE), 2**31 - 1
    config = Config(64, 64, 256, 4, 3, "grouped")
    options = {"offs": offsets([K]), "kernel": "grouped", "config": config}
    assert tritemm.grouped_mm(one.expand(1, K), one.expand(K, 1), **options).item() == K


@pytest.mark.parametrize(("form", "sizes"), [("m", (2**31, 1, 1)), ("k", (1, 2**31, 1))])
def test_more_than_offsets_can_count_are_refused(form, sizes):
    M, K, N = sizes
    a, b = (torch.empty(1, device="meta").expand(*each) for each in ((M, K), (K, N)))
    with pytest.raises(RuntimeError, match=f"the {form.upper()} that it cuts is 2147483648:"):
        Problem.of(a, b, a[:, :1], groups=form, device=H200)


@pytest.mark.parametrize("form", "mnk")
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_no_group_reads_another(form, dtype):
    sizes = (20, 0, 13, 30)
    offs = offsets(sizes)
    a, b = cut(form, 24, 40, len(sizes), sum(sizes), dtype)
    clean = tritemm.grouped_mm(a, b, offs=offs)
    for group, (i, j) in enumerate(bounds(offs)):
        if i == j:
            continue
        x, y = a.clone(), b.clone()
        poison(form, x, y, i, j)
        spoilt = tritemm.grouped_mm(x, y, offs=offs)
        both = (parts(form, c, a, b, offs)[0] for c in (spoilt, clean))
        for g, ((found, *_), (want, *_)) in enumerate(zip(*both, strict=True)):
            if g == group:
                assert found.isnan().all()
            else:
                assert torch.equal(found, want)


@pytest.mark.wide
@pytest.mark.parametrize("count", [1, 257, 1500 if DEVICE == "cuda" else 300])
@pytest.mark.parametrize("form", "mk")
def test_any_number_of_groups(form, count):
    sizes = [g % 3 for g in range(count)]
    offs = offsets(sizes)
    a, b = cut(form, 16, 24, count, sum(sizes) + 2, BF16)
    check(form, tritemm.grouped_mm(a, b, offs=offs), a, b, offs)


@pytest.mark.parametrize("dtype", [BF16, FP64, INT8], ids=str)
def test_what_follows_in_any_type(dtype):
    offs = offsets((5, 0, 9))
    a, b = cut("m", 16, 24, 3, 20, dtype)
    bias = operand(3, 16, torch.int32 if dtype == INT8 else dtype)
    c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, alpha=3)
    check("m", c, a, b, offs, bias, "", 3.0)
    added = operand(3, 24, bias.dtype)  # where K is cut, each of a group's rows gets it
    c = tritemm.grouped_mm(a.mT, a[:, :24], offs=offs, bias=added, alpha=3)
    for g, (i, j) in enumerate(bounds(offs)):
        x, y = (a.mT[:, i:j], a[i:j, :24]) if j > i else (a.mT[:, :1] * 0, a[:1, :24] * 0)
        assert_right(c[g], x, y, ending=EpilogueInputs(added[g], alpha=3.0))
    if dtype == INT8:  # a factor is a whole number of 64 bits, of which 32 are kept
        c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, alpha=2**53 + 1)
        check("m", c, a, b, offs, bias, "", 1.0)
    for ends in ((3, 50, 60), (9, 3, 12), (-3, 2, 4)):  # nothing is raised, or read outside
        wrong = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
        assert tritemm.grouped_mm(a, b, offs=wrong, bias=bias).shape == (20, 16)


@pytest.mark.wide
@pytest.mark.parametrize("sizes", [SIZES["rest"], SIZES["last"]], ids=["rest", "last"])
@pytest.mark.parametrize("activation", ["", "relu", "gelu", "silu", "swiglu", "geglu"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_follows(sizes, activation, bias):
    sizes, rest = sizes
    offs = offsets(sizes)
    a, b = cut("m", 48, 40, len(sizes), sum(sizes) + rest, BF16, "NT")
    added = operand(len(sizes), 48, BF16) if bias else None
    c = tritemm.grouped_mm(a, b, offs=offs, bias=added, activation=activation or None, alpha=0.5)
    check("m", c, a, b, offs, added, activation, 0.5)


def test_groups_and_dense_products_are_not_tuned_as_one():
    """A batch of one is a dense product, and one group isn't."""
    a, b = operand(64, 32, BF16), operand(32, 48, BF16)
    c = torch.empty(64, 48, dtype=BF16, device=DEVICE)
    keys = {cache.key(Problem.of(a, b, c))}
    keys.add(cache.key(Problem.of(a, b[None], c, groups="m")))
    keys.add(cache.key(Problem.of(a, b, c[None], groups="k")))
    assert len(keys) == 3


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_bits_of_a_row_do_not_depend_on_the_others(dtype):
    """With batch_invariant=True, whatever is routed where; without, run to run."""
    weights = cut("m", 264, 512, 4, 1, dtype, "NT")[1]
    rows = operand(600, 512, dtype)
    want = tritemm.grouped_mm(rows[:1], weights, offs=offsets((0, 1, 0, 0)), batch_invariant=True)
    count = 600 if DEVICE == "cuda" else 40
    for before, after in ((0, 3), (7, 1), (count - 20, 19)):
        sizes = (before, 1 + after, 0, 0)
        some = torch.cat([rows[1 : 1 + before], rows[:1], rows[1 : 1 + after]])
        found = tritemm.grouped_mm(some, weights, offs=offsets(sizes), batch_invariant=True)
        assert torch.equal(found[before], want[0])
        one, two = (tritemm.grouped_mm(some, weights, offs=offsets(sizes)) for _ in range(2))
        assert torch.equal(one, two)


@pytest.mark.host
@pytest.mark.parametrize("axis", "mnk")
def test_the_host_counts_no_fewer_tiles_than_there_are(axis):
    for sizes, rest in SIZES.values():
        total = sum(sizes) + rest
        M, N = (total if axis == name else 100 for name in "mn")
        space = Grouped(M, N, len(sizes), axis)
        for rows, columns in itertools.product((16, 64), (32, 128)):
            down, across = math.ceil(100 / rows), math.ceil(100 / columns)
            if axis == "k":
                there = down * across * len(sizes)
            elif axis == "m":
                there = across * sum(math.ceil(size / rows) for size in (*sizes, rest))
            else:
                there = down * sum(math.ceil(size / columns) for size in (*sizes, rest))
            assert there <= space.tiles(rows, columns) <= space.elements
