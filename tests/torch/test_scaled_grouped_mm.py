"""`scaled_grouped_mm`: groups of 8-bit operands, with scales of any recipe, in every form."""

import itertools

import pytest
import torch

import tritemm
from tests.dispatch.choosing import H200
from tests.groups import bounds, offsets
from tests.harness import DEVICE, Guarded, assert_right, rung_param
from tests.kernels.test_scaled import (
    ABLE,
    E4M3,
    E5M2,
    INT8,
    RECIPES,
    configs_of,
    scale,
    values,
)
from tritemm import plan
from tritemm.problem import BLOCK, EpilogueInputs, Problem, result_shape

#: Groups that begin inside a block of 128, an empty one among them; three lines are of none.
SIZES, REST = (9, 0, 140, 130, 1), 3


def called(form, recipes=("row", "row"), types=(E4M3, E4M3), n=40, k=300, sizes=SIZES):
    """Operands, offsets, scales [lines, steps], of each group or of all, and a call's arguments."""
    count, total = len(sizes), sum(sizes) + REST
    terms = total if form == "k" else k
    lines = {"m": (total, n), "n": (n, total), "k": (n, n + 24)}[form]
    whole = {"m": (True, False), "n": (False, True), "k": (True, True)}[form]
    operands, scales, args = [], [], []
    for size, recipe, dtype, one in zip(lines, recipes, types, whole, strict=True):
        of_groups = not one or (form == "k" and recipe in ("tensor", "row"))
        stack = torch.stack([values(size, terms, dtype) for _ in range(1 if one else count)])
        made = [scale(size, terms, recipe) for _ in range(count if of_groups else 1)]
        operands.append(stack[0] if one else stack)
        scales.append(torch.stack(made) if of_groups else made[0])
        args += [as_given(scales[-1], recipe), recipe]
    return operands[0], operands[1].mT, offsets(sizes), scales, args


def as_given(scales, recipe):
    """Scales [lines, steps] as a caller has them."""
    if recipe == "tensor":
        return scales[..., 0, 0]
    return {"row": scales[..., 0], "block": scales, "block2d": scales.mT}[recipe]


def some_lines(scales, count, begin, end):
    """Those of lines from `begin` to `end`, of scales of each of `count` lines, or of 128."""
    lines = torch.arange(begin, end, device=DEVICE)
    return scales[lines if len(scales) == count else lines // BLOCK]


def only(values, begin, end):
    """8-bit values [lines, terms] with zeros but for some terms."""
    inside = torch.zeros(values.shape[1], dtype=torch.bool, device=DEVICE)
    inside[begin:end] = True
    return values.float().where(inside, 0.0).to(values.dtype)


def check(form, c, a, b, offs, scales, promoted=True, bias=None, activation="", alpha=1.0):
    """Each group against the dense product of its operands, and zeros behind the last."""
    assert not {"m": c[offs[-1] :], "n": c[:, offs[-1] :], "k": c[:0]}[form].count_nonzero()
    for g, (i, j) in enumerate(bounds(offs)):
        x, y, found = (t[g] if t.dim() == 3 else t for t in (a, b, c))
        of_x, of_y = (t[g] if t.dim() == 3 else t for t in scales)
        if form == "m":
            x, found, of_x = x[i:j], found[i:j], some_lines(of_x, len(a), i, j)
        elif form == "n":
            y, found, of_y = y[:, i:j], found[:, i:j], some_lines(of_y, b.shape[1], i, j)
        elif i == j:
            assert not found.count_nonzero()
        else:
            x, y = only(x, i, j), only(y.mT, i, j).mT
        if i < j:
            then = EpilogueInputs(None if bias is None else bias[g], None, activation, alpha)
            assert_right(found, x, y, scales=(of_x, of_y, promoted), ending=then)


@pytest.mark.wide
@pytest.mark.parametrize("recipes", list(itertools.product(RECIPES, RECIPES)), ids="-".join)
@pytest.mark.parametrize("form", "mnk")
def test_recipes(form, recipes):
    a, b, offs, scales, args = called(form, recipes)
    c = tritemm.scaled_grouped_mm(a, b, *args, offs=offs, output_dtype=torch.float32)
    check(form, c, a, b, offs, scales)
    half = tritemm.scaled_grouped_mm(a, b, *args, offs=offs)
    assert half.dtype == torch.bfloat16 and torch.equal(half, c.bfloat16())


@pytest.mark.wide
@pytest.mark.parametrize("kernel", [rung_param(k) for k in ABLE if k.limits.groups])
@pytest.mark.parametrize("form", "mk")
@pytest.mark.parametrize(
    "recipes",
    [("row", "row"), ("block", "block2d"), ("block", "block"), ("block2d", "block")],
    ids="-".join,
)
def test_every_config(kernel, form, recipes):
    """Configs of each rung, as they are and swapped, by which columns are cut."""
    a, b, offs, scales, _ = called(form, recipes, n=136, k=400, sizes=(130, 0, 257, 122))
    shape = result_shape(a, b, "", len(offs))
    ways = itertools.product((True, False)[: 1 + (recipes[0] == "row")], (False, True))
    for promoted, in_blocks in ways:
        if in_blocks:
            offs = offsets((128, 0, 256, 128)) if form == "k" else offs
        guarded = Guarded.like(shape, torch.float32)
        out = guarded.tensor
        more = {"groups": form, "scales": (*scales, promoted), "in_blocks": in_blocks}
        problem = Problem.of(a, b, out, **more)
        configs = configs_of(kernel, problem)
        able = kernel.name == "scaled" or (in_blocks and kernel.name == "warp_specialized")
        assert configs or (kernel.why_not(problem) and not able)
        for config in configs:
            out.fill_(guarded.poison)
            plan.run(kernel, problem, config, a, b, out, offs, *scales)
            guarded.assert_untouched_outside()
            check(form, out, a, b, offs, scales, promoted)


@pytest.mark.parametrize("recipe", RECIPES)
def test_columns_that_share_a_scale_are_not_cut(recipe):
    """Tiles of groups begin anywhere, and with Gluon the columns of one share scales of 128."""
    a, b, offs, scales, _ = called("m", (recipe, "block"), n=136, k=400)
    shape = result_shape(a, b, "", len(offs))
    c = torch.empty(shape, device=a.device)
    problem = Problem.of(a, b, c, groups="m", scales=(*scales, True), device=H200)
    cut = [k for k in ABLE if not k.interpreted and k.why_not(problem) is None]
    assert cut
    for kernel in cut:
        reason = kernel.why_not(problem.transposed()) or ""
        assert ("columns are cut into groups" in reason) == (recipe == "block2d")


@pytest.mark.wide
@pytest.mark.parametrize("form", "mnk")
@pytest.mark.parametrize("types", [(E4M3, E5M2), (INT8, INT8)], ids=str)
@pytest.mark.parametrize("stored", ["NT", "TN"])
def test_types_strides_and_fast_sums(form, types, stored):
    a, b, offs, scales, args = called(form, types=types)
    if stored == "TN":
        a, b = a.mT.contiguous().mT, b.contiguous()
    more = {"output_dtype": torch.float32, "use_fast_accum": True}
    c = tritemm.scaled_grouped_mm(a, b, *args, offs=offs, **more)
    check(form, c, a, b, offs, scales, promoted=False)


@pytest.mark.wide
@pytest.mark.parametrize("form", "mk")
@pytest.mark.parametrize("activation", [None, "silu", "swiglu"])
def test_what_follows(form, activation):
    a, b, offs, scales, args = called(form, ("block", "block"))
    bias = torch.randn(len(SIZES), b.shape[-1], device=DEVICE)
    c = tritemm.scaled_grouped_mm(
        a, b, *args, bias=bias, offs=offs, activation=activation, alpha=0.5,
        output_dtype=torch.float32,
    )  # fmt: skip
    if form == "k":
        c, bias = c[[0, 2, 3, 4]], bias[[0, 2, 3, 4]]
        offs = offs[[0, 2, 3, 4]]  # that of the empty group is its bias
    keep = [t[[0, 2, 3, 4]] if form == "m" and t.dim() == 3 else t for t in (b, *scales)]
    if form == "m":
        offs, bias = offs[[0, 2, 3, 4]], bias[[0, 2, 3, 4]]
    check(form, c, a, keep[0], offs, keep[1:], True, bias, activation or "", 0.5)


def test_without_offsets_operands_are_batches():
    a, b = (torch.stack([values(n, 200, E4M3) for _ in range(3)]) for n in (24, 40))
    of_a, of_b = (torch.stack([scale(n, 200, "block") for _ in range(3)]) for n in (24, 40))
    bias = torch.randn(3, 40, device=DEVICE)
    args, more = (of_a, "block", of_b, "block"), {"output_dtype": torch.float32}
    one = b[:1].expand(3, -1, -1)
    for y in (b, one):
        c = tritemm.scaled_grouped_mm(a, y.mT, *args, **more)
        relu = tritemm.scaled_grouped_mm(a, y.mT, *args, bias=bias, activation="relu", **more)
        for g in range(3):
            scales = of_a[g], of_b[g], True
            assert_right(c[g], a[g], y[g].mT, scales=scales)
            assert_right(
                relu[g], a[g], y[g].mT, scales=scales, ending=EpilogueInputs(bias[g], None, "relu")
            )
    out = torch.empty_like(relu)
    assert (
        tritemm.scaled_grouped_mm(a, y.mT, *args, bias=bias, activation="relu", out=out, **more)
        is out
    )
    assert torch.equal(out, relu)


def test_torchs_enums_flat_scales_and_out():
    kinds = getattr(torch.nn.functional, "ScalingType", None)
    if kinds is None:
        pytest.skip("torch has no ScalingType")
    for form in "mk":
        a, b, offs, _, args = called(form)
        want = tritemm.scaled_grouped_mm(a, b, *args, offs=offs)
        flat = [args[0].flatten(), kinds.RowWise, [args[2]], [kinds.RowWise]]
        flat[2] = flat[2] if form == "m" else args[2].flatten()
        guarded = Guarded.like(want.shape, torch.bfloat16, pitch_gap=8)
        out = guarded.tensor
        assert tritemm.scaled_grouped_mm(a, b, *flat, offs=offs, out=out) is out
        guarded.assert_untouched_outside()
        assert torch.equal(out, want)


@pytest.mark.parametrize("ends", [(9, 3, 12, 9, 9), (-5, 4, 2**31 - 1, 12, 12)])
def test_offsets_that_decrease_or_reach_out_write_nothing_outside(ends):
    recipes = {"m": ("block", "block2d"), "n": ("row", "row"), "k": ("block", "block2d")}
    for form in "mnk":
        a, b, offs, _, args = called(form, recipes[form], n=24, k=140)
        guarded = Guarded.like(result_shape(a, b, "", len(offs)), torch.bfloat16)
        offs = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
        tritemm.scaled_grouped_mm(a, b, *args, offs=offs, out=guarded.tensor)
        guarded.assert_untouched_outside()


@pytest.mark.parametrize("form", "mk")
def test_no_group_reads_another(form):
    """NaN in other groups' values changes nothing, where scales of blocks are shared too."""
    a, b, offs, _, args = called(form, ("block", "block"), (E5M2, E5M2))
    want = tritemm.scaled_grouped_mm(a, b, *args, offs=offs)
    begin, end = bounds(offs)[2]
    nan = torch.full((), float("nan"), device=DEVICE).to(E5M2)
    for part in (a,) if form == "m" else (a.mT, b):
        part[:begin] = part[end:] = nan
    found = tritemm.scaled_grouped_mm(a, b, *args, offs=offs)
    place = (slice(begin, end),) if form == "m" else (2,)
    assert torch.equal(found[place], want[place])


def test_an_empty_group_that_begins_where_the_scales_end():
    """Behind them stands NaN, which 0 would not undo."""
    n, sizes = 24, (100, 28, 0)
    a, b = (values(n, sum(sizes), E4M3) for _ in range(2))
    nan = torch.full((n, 2), float("nan"), device=DEVICE).mT.contiguous().mT
    nan[:, 0] = 1.5
    scale = nan[:, :1]
    c = tritemm.scaled_grouped_mm(a, b.mT, scale, "block", scale, "block", offs=offsets(sizes))
    assert c.isfinite().all() and not c[2].count_nonzero() and c[:2].count_nonzero()


@pytest.mark.wide
@pytest.mark.parametrize("sizes", [(9, 0, 140, 130, 1), (300, 0), (0, 5, 128)], ids=str)
def test_groups_of_k_in_blocks(sizes):
    """What `quantize` makes of rows that are cut, multiplied along them."""
    offs, total = offsets(sizes), sum(sizes) + REST
    x, y = (torch.randn(total, n, device=DEVICE) for n in (24, 40))
    (_, a, ends), (_, b, same) = (
        tritemm.quantize(t, "fp8", "block", transpose=True, offs=offs) for t in (x, y)
    )
    assert torch.equal(ends, same)
    args = a.values, b.values.mT, a.scale, "block", b.scale, "block"
    more = {"offs": ends, "output_dtype": torch.float32}
    c = tritemm.scaled_grouped_mm(*args, in_blocks=True, **more)
    check("k", c, a.values, b.values.mT, ends, [a.scale, b.scale])
    for g, (i, j) in enumerate(bounds(offs)):
        exact = x[i:j].mT @ y[i:j]
        assert (c[g] - exact).norm() <= 0.06 * exact.norm()


@pytest.mark.gpu
def test_groups_of_k_that_are_not_in_blocks_are_nan():
    a, b, offs, _, args = called("k", ("block", "block"), sizes=(128, 256, 100, 28))
    c = tritemm.scaled_grouped_mm(a, b, *args, offs=offs, in_blocks=True)
    assert c[:2].isfinite().all() and c[2:].isnan().all()


@pytest.mark.once
def test_compiled():
    for form in "nk":
        a, b, offs, _, args = called(form)

        @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
        def multiply(a, b, offs, *args):
            return tritemm.scaled_grouped_mm(a, b, *args, offs=offs) * 2

        want = tritemm.scaled_grouped_mm(a, b, *args, offs=offs) * 2
        assert torch.equal(multiply(a, b, offs, *args), want)


A = torch.zeros(16, 32, device=DEVICE).to(E4M3)
B = torch.zeros(2, 32, 24, device=DEVICE).to(E4M3)
ONE, OFFS = torch.ones((), device=DEVICE), offsets((3, 4))
ROWS, COLUMNS = torch.ones(16, device=DEVICE), torch.ones(2, 24, device=DEVICE)
WRONG = {
    "no offsets": ((A, B, ONE, "tensor", ONE, "tensor"), {}, "offs is missing"),
    "4D": ((A, B[None], ONE, "tensor", ONE, "tensor"), {"offs": OFFS}, "mat_b is 4D"),
    "K": ((A[:, 1:], B, ONE, "tensor", ONE, "tensor"), {"offs": OFFS}, "K is 31 in mat_a"),
    "columns": ((A, B, ROWS, "row", ROWS, "row"), {"offs": OFFS}, r"it must be \[2, 24\]"),
    "groups": ((A, B, ROWS, "row", COLUMNS, "row"), {"offs": OFFS[:1]}, "offs has 1 groups"),
    "blocks": ((A, B, ONE, "block", ONE, "block2d"), {"offs": OFFS}, r"it must be \[16, 1\]"),
    "k": ((A, A.mT, ROWS, "row", ROWS, "row"), {"offs": OFFS}, r"it must be \[2, 16\]"),
    "turned": (
        (A, B, ROWS, "row", torch.ones(24, 2, 1, device=DEVICE), "row"),
        {"offs": OFFS},
        r"shape \[24, 2, 1\]",
    ),
    "no groups": ((A, B, ONE, "tensor", ONE, "tensor"), {"offs": OFFS.long()}, "where mat_a is"),
}


@pytest.mark.parametrize(("args", "options", "told"), WRONG.values(), ids=WRONG)
def test_what_is_refused(args, options, told):
    with pytest.raises(RuntimeError, match=told):
        tritemm.scaled_grouped_mm(*args, **options)
