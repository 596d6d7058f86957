"""Values and scales of 8 bits against torch's own operators, to the bit; and rounding at random."""

import dataclasses
import itertools
import math

import pytest
import torch

import tritemm
from tests.groups import bounds, offsets
from tests.harness import DEVICE, ids, operand, sweep
from tritemm import quantize
from tritemm.op import quantize as op
from tritemm.problem import INTERPRETER

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
BF16, HALF, FP32 = torch.bfloat16, torch.float16, torch.float32
LARGEST = {E4M3: 448.0, E5M2: 57344.0, INT8: 127.0}
SCALINGS = ["tensor", "row", "block", "block2d"]
#: Of numbers that are counted as they are: NaN has a sign that nobody asks for.
NAN = 0x7F


def spread(scale, shape, scaling):
    """`scale` for each element of a matrix."""
    if scaling.startswith("block"):
        scale = scale.repeat_interleave(128, 1)[:, : shape[1]]
    if scaling == "block2d":
        scale = scale.repeat_interleave(128, 0)[: shape[0]]
    return scale


def wanted(x, dtype, scaling):
    """Values and scale by torch, on the CPU, whose division is rounded correctly."""
    x = x.detach().cpu().float()
    M, K = x.shape
    height = 128 if scaling == "block2d" else 1
    if scaling == "tensor":
        most = x.abs().amax()
    elif scaling == "row":
        most = x.abs().amax(1, keepdim=True)
    else:
        whole = torch.zeros(-(-M // height) * height, -(-K // 128) * 128)
        whole[:M, :K] = x.abs()
        most = whole.view(-1, height, whole.shape[1] // 128, 128).amax((1, 3))
    scale = most.clamp(min=1e-12) / torch.tensor(LARGEST[dtype])
    values = (x / spread(scale, x.shape, scaling)).clamp(-LARGEST[dtype], LARGEST[dtype])
    if dtype == INT8:
        return values.nan_to_num(0).round().to(dtype), scale
    return values.to(dtype), scale


def codes(values):
    """Bytes, in which one NaN is as good as another."""
    bits = values.cpu().contiguous().view(torch.uint8)
    return torch.where(values.cpu().float().isnan(), NAN, bits)


def check(got, x, dtype, scaling):
    """To the bit; and that memory is as torch's scaled products, and TMA, take it."""
    M, K = x.shape
    values, scale = wanted(x, dtype, scaling)
    assert got.values.dtype == dtype and got.scale.dtype == FP32
    assert got.values.shape == x.shape and got.scale.shape == scale.shape
    torch.testing.assert_close(got.scale.cpu(), scale, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(codes(got.values), codes(values))
    pitch = -(-K // 16) * 16
    assert got.values.stride() == (pitch, 1) and got.values.data_ptr() % 16 == 0
    if scale.isfinite().all():
        assert not codes(got.values.as_strided((M, pitch), (pitch, 1))[:, K:]).any()
    blocks = -(-K // 128)
    lies = {"tensor": (), "row": (1, 1), "block": (1, M), "block2d": (-(-blocks // 4) * 4, 1)}
    assert got.scale.stride() == lies[scaling]
    dense = values.float() * spread(scale, x.shape, scaling)
    torch.testing.assert_close(got.dequantize().cpu(), dense, rtol=0, atol=0, equal_nan=True)


def check_both(x, dtype, scaling, transpose):
    if isinstance(transpose, str) and scaling != "block":
        transpose = scaling
    found = quantize(x, dtype, scaling, transpose=transpose)
    words = scaling, transpose if isinstance(transpose, str) else scaling
    for got, each, word in zip(found if transpose else (found,), (x, x.mT), words, strict=False):
        check(got, each, dtype, word)


SHAPES = [
    (1, 1), (1, 300), (300, 1), (7, 16), (16, 130), (129, 127), (128, 256), (260, 48), (3, 1000),
]  # fmt: skip


@pytest.mark.wide
@sweep(
    shape=ids(SHAPES), source=ids([BF16, HALF, FP32]), dtype=ids(LARGEST), scaling=ids(SCALINGS),
    transpose=ids([False, True, "block2d"]), layout=ids("NTS"),
)  # fmt: skip
def test_values_and_scales_are_torchs(shape, source, dtype, scaling, transpose, layout):
    """Magnitudes reach into the subnormal numbers of fp8; NaN stands around a strided x."""
    x = operand(*shape, source, layout, offset=3)
    x.mul_(torch.exp2(torch.randint(-14, 3, shape, device=DEVICE)).to(source))
    check_both(x, dtype, scaling, transpose)


@pytest.mark.wide
@pytest.mark.parametrize("transpose", [False, True, "block2d"])
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("source", [BF16, HALF], ids=str)
def test_every_number_of_16_bits(source, dtype, transpose):
    """Infinity, NaN and zeros of both signs among them; then all that are finite."""
    x = torch.arange(-(2**15), 2**15, device=DEVICE).to(torch.int16).view(source).view(256, 256)
    for scaling in ("block", "block2d"):
        check_both(x, dtype, scaling, transpose)
    for scaling in ("row", "tensor"):
        check_both(x.nan_to_num(0, 0, 0), dtype, scaling, transpose)


@pytest.mark.wide
@pytest.mark.parametrize("source", [HALF, FP32], ids=str)
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_ties_go_to_even_and_what_is_beside_them_does_not(dtype, source):
    """The largest number makes the scale a power of two; in fp32 the neighbours of ties, too."""
    if dtype == INT8:
        numbers = torch.arange(0, 128.0)
    else:
        codes = torch.arange(0, 127, dtype=torch.uint8).view(dtype).float()
        numbers = codes[codes <= LARGEST[dtype]]
    ties = (numbers[1:] + numbers[:-1]) / 2
    if source == FP32:
        ends = (torch.nextafter(ties, torch.tensor(end)) for end in (-math.inf, math.inf))
        ties = torch.cat((ties, *ends))
    row = torch.cat((torch.tensor([LARGEST[dtype]]), ties, -ties, numbers)) / 8
    for power in (0, 3) if source == FP32 else (0,):
        check_both((row * 2.0**power).to(source).to(DEVICE)[None], dtype, "row", False)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_zeros_and_tiny_numbers_have_a_scale(scaling, dtype):
    for fill in (0.0, -0.0, 1e-12):
        check_both(torch.full((3, 130), fill, device=DEVICE), dtype, scaling, True)
    for shape in ((0, 5), (5, 0), (0, 0)):
        x = torch.empty(shape, device=DEVICE)
        for got, each in zip(quantize(x, dtype, scaling, transpose=True), (x, x.mT), strict=True):
            assert got.values.shape == got.dequantize().shape == each.shape
            zero = torch.zeros(1, 1, device=DEVICE)
            least = quantize(zero, dtype, scaling).scale.item()
            assert got.scale.flatten().tolist() == [least] * got.scale.numel()


@pytest.mark.wide
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity(bad, scaling):
    """What shares a scale with NaN is NaN, in fp8; int8 has 0, and the scale tells."""
    x = torch.randn(4, 300, device=DEVICE)
    x[1, 140] = bad
    for dtype in LARGEST:
        check_both(x, dtype, scaling, True)
    fp8, int8 = (quantize(x, dtype, scaling) for dtype in ("fp8", "int8"))
    shared = spread(fp8.scale.cpu(), x.shape, scaling).expand(x.shape).isfinite().logical_not()
    assert shared.any() and shared[1, 140]
    assert torch.equal(fp8.values.cpu().float().isnan(), shared & ~(x.cpu().isfinite() & ~(
        torch.tensor(bad).isnan()
    )))  # fmt: skip
    assert not int8.values.cpu()[shared].any() and int8.dequantize()[1, 140].isnan()


def test_extreme_sizes_of_fp32():
    for size in (3e38, 1e-37, 1e-45):
        x = torch.tensor([[size, -size / 3, size / 7, 0.0]], device=DEVICE)
        for dtype in LARGEST:
            check_both(x, dtype, "block", True)


@pytest.mark.parametrize("scaling", ["tensor", "row", "block"])
def test_batches_of_matrices_are_rows(scaling):
    x = torch.randn(2, 3, 5, 300, device=DEVICE)[:, ::2].to(BF16)
    got = quantize(x, "fp8", scaling)
    flat = quantize(x.reshape(-1, 300), "fp8", scaling)
    shape = {"tensor": (), "row": (2, 2, 5, 1), "block": (2, 2, 5, 3)}
    assert got.values.shape == x.shape and got.scale.shape == shape[scaling]
    assert torch.equal(codes(got.values).flatten(), codes(flat.values).flatten())
    assert torch.equal(got.scale.flatten(), flat.scale.flatten())
    assert torch.equal(got.dequantize().flatten(), flat.dequantize().flatten())


def test_rows_longer_than_a_program_takes_whole(monkeypatch):
    x = torch.randn(5, 300, device=DEVICE).to(BF16)
    monkeypatch.setattr(op, "LONGEST", 128)
    check_both(x, E4M3, "row", False)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_several_matrices(scaling, turned):
    x = operand(130, 300, BF16, batch=(2, 3), offset=1)
    x = x.mT if turned else x
    found = quantize(x, E4M3, scaling)
    assert found.dequantize().shape == found.values.shape == x.shape
    if scaling == "tensor":
        return
    for i, j in itertools.product(range(2), range(3)):
        values, scale = wanted(x[i, j], E4M3, scaling)
        assert torch.equal(found.scale[i, j].cpu(), scale)
        assert torch.equal(codes(found.values[i, j]), codes(values))
        if scaling == "block2d":
            check(tritemm.Quantized(found.values[i, j], found.scale[i, j]), x[i, j], E4M3, scaling)
    draws = quantize(x, E4M3, scaling, stochastic=True).values
    assert not torch.equal(draws[0, 0].float(), draws[0, 1].float())


@pytest.mark.parametrize("sizes", [(9, 0, 140, 130, 1), (128, 256), (0,), (0, 0, 3)], ids=str)
@pytest.mark.parametrize("scaling", ["block", "block2d"])
def test_groups_begin_at_multiples_of_128_of_the_transpose(sizes, scaling):
    offs, rest = offsets(sizes), 5
    x = operand(sum(sizes) + rest, 70, BF16)
    a, t, ends = quantize(x, E4M3, "block", transpose=scaling, offs=offs)
    check(a, x, E4M3, "block")
    padded = [-(-n // 128) * 128 for n in sizes]
    assert ends.tolist() == list(itertools.accumulate(padded)) and ends.dtype == torch.int32
    assert t.values.shape[1] % 128 == 0 and t.values.stride() == (t.values.shape[1], 1)
    begin = 0
    for n, size, (i, j) in zip(sizes, padded, bounds(offs), strict=True):
        part = slice(begin, begin + n)
        values, scale = wanted(x[i:j].mT, E4M3, scaling) if n else (t.values[:, part].cpu(), None)
        assert torch.equal(codes(t.values[:, part]), codes(values))
        assert not codes(t.values[:, begin + n : begin + size]).any()
        if n:
            assert torch.equal(t.scale[:, begin // 128 : (begin + size) // 128].cpu(), scale)
        begin += size


@pytest.mark.parametrize("ends", [(9, 3, 12, 9), (-5, 4, 2**31 - 1, 12)])
def test_groups_that_decrease_or_reach_out(ends):
    x, offs = operand(20, 40, BF16), torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    a, t, ends = quantize(x, E4M3, "block", transpose=True, offs=offs)
    check(a, x, E4M3, "block")
    assert (ends.diff() >= 0).all() and 0 <= ends[0] <= ends[-1] <= t.values.shape[1]


@pytest.mark.wide
@pytest.mark.parametrize("shape", [(300, 1), (1, 300)], ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_one_row_or_column_and_its_transpose(scaling, shape):
    """Strides of 1 where there is one element: ptxas of CUDA 12.8 crashed on "tensor"."""
    for source in (BF16, FP32):
        for turned in (True, "block2d"):
            check_both(operand(*shape, source), E4M3, scaling, turned)


def test_every_element_of_an_expanded_matrix():
    x = torch.randn(1, 200, device=DEVICE)
    for each in (x.expand(140, 200), x.mT.expand(200, 140)):
        for scaling in SCALINGS:
            check_both(each, E4M3, scaling, True)


# At random


@pytest.mark.wide
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_the_mean_of_what_is_rounded_at_random(dtype):
    """Each draw is one of the two neighbours; what is a number of 8 bits stays one."""
    size = torch.exp2(torch.randint(-12, 1, (8, 64), device=DEVICE).float())
    x = torch.rand(8, 64, device=DEVICE).sub(0.5) * size
    x[:, 0], x[:, 1], x[:, 2] = 0, 1, -1
    scale = quantize(x, dtype, "tensor").scale
    exact = (x / scale).double()
    draws = [quantize(x, dtype, "tensor", stochastic=True) for _ in range(64)]
    assert all(torch.equal(draw.scale, scale) for draw in draws)
    values = torch.stack([draw.values for draw in draws]).double()
    if dtype == INT8:
        step = torch.ones_like(exact)
    else:
        normal, bits = {E4M3: (-6, 3), E5M2: (-14, 2)}[dtype]
        step = torch.exp2(exact.abs().log2().floor().clamp(min=normal) - bits)
    low = (exact / step).floor() * step
    assert ((values == low) | (values == low + step)).logical_or(exact == values).all()
    assert values.abs().amax() == LARGEST[dtype]
    share = (exact - low) / step
    sigma = (share * (1 - share) / len(draws)).sqrt()
    error = (values.mean(0) - exact).abs() / step
    assert (error <= 5 * sigma + 1e-6).all()
    assert error.mean() < 1.2 * sigma.mean()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_draws_differ_and_follow_from_torchs_seed(scaling):
    x = torch.randn(130, 70, device=DEVICE)

    def draw(seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        return [codes(got.values) for got in quantize(x, "fp8", scaling, transpose=True,
                                                      stochastic=True)]  # fmt: skip

    first, again, other = draw(1), draw(1), draw()
    for i in range(2):
        assert torch.equal(first[i], again[i]) and not torch.equal(first[i], other[i])
    # Neither rows nor columns repeat, so no two elements are rounded by the same number.
    half = torch.full((140, 140), 16.5, device=DEVICE)
    half[0, 0] = 127
    for got in quantize(half, "int8", "tensor", transpose=True, stochastic=True):
        up = (got.values == 17).float()[1:, 1:]
        assert abs(up.mean().item() - 0.5) < 0.02
        assert len(up.unique(dim=0)) == len(up.unique(dim=1)) == 139


def test_a_block_of_128_x_128_is_the_same_transposed():
    got, turned = quantize(
        torch.randn(150, 200, device=DEVICE), "fp8", "block2d", transpose=True, stochastic=True
    )
    assert torch.equal(codes(got.values).mT, codes(turned.values))
    assert torch.equal(got.scale.mT, turned.scale)


@pytest.mark.gpu
def test_a_graph_draws_anew_at_each_replay():
    x = torch.randn(256, 256, device="cuda")
    quantize(x, stochastic=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values = quantize(x, stochastic=True).values
    graph.replay()
    first = codes(values)
    graph.replay()
    assert not torch.equal(first, codes(values))


# As torch's operators are


def calls(x):
    """Some of each kind, as a tuple of tensors."""
    made = [
        *quantize(x, "fp8", "row", transpose=True),
        *quantize(x, E4M3, "block2d", transpose=True),
    ]
    made += [quantize(x, INT8), quantize(x, E5M2, "block"), quantize(x, "int8", "tensor")]
    return tuple(t for got in made for t in (*got, got.dequantize()))


def test_whole_graphs_of_any_size():
    def draw(x):
        return *calls(x), quantize(x, stochastic=True).values

    compiled = torch.compile(draw, backend="aot_eager", fullgraph=True, dynamic=True)
    for shape in ((5, 200), (40, 300)):
        x = torch.randn(shape, device=DEVICE, requires_grad=True)
        *found, drawn = compiled(x)
        for got, want in zip(found, calls(x), strict=True):
            assert got.shape == want.shape and got.stride() == want.stride()
            assert got.dtype == want.dtype and not got.requires_grad and not want.requires_grad
            assert torch.equal(got.float(), want.float())
        assert not torch.equal(codes(drawn), codes(compiled(x)[-1]))


def test_what_has_no_data_has_shapes():
    x = torch.randn(140, 300, device=DEVICE)
    for got, want in zip(calls(x.to("meta")), calls(x), strict=True):
        assert got.device.type == "meta"
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


@pytest.mark.parametrize(
    ("layout", "scaling"), [("N", "row"), ("T", "block"), ("S", "block2d"), ("N", "tensor")]
)
def test_opcheck(layout, scaling):
    x = operand(5, 200, FP32, layout)
    for turned in {scaling, "block2d"} if scaling == "block" else {scaling}:
        torch.library.opcheck(op.QUANTIZE, (x, E4M3, scaling, turned))
    seed = torch.tensor(3, device=DEVICE)
    torch.library.opcheck(op.QUANTIZE, (x, INT8, scaling, None, seed))


class Named(torch.Tensor):
    """A subclass that torch's operators keep."""


def test_a_subclass_is_kept():
    x = torch.randn(3, 4, device=DEVICE)
    got = quantize(x.as_subclass(Named))
    assert isinstance(got.values, Named) and isinstance(got.scale, Named)
    check(tritemm.Quantized(*(t.as_subclass(torch.Tensor) for t in got)), x, E4M3, "row")


matrix = torch.zeros(4, 4)
REFUSED = {
    "no tensor": (([1.0],), {}, TypeError, r"quantize\(\): argument 'x' .* must be Tensor"),
    "a row": ((matrix[0],), {}, ValueError, r"x has shape \[4\]; it must be \[..., M, K\]"),
    "float64": ((matrix.double(),), {}, NotImplementedError, "x is torch.float64; it must be one"),
    "groups": (
        (matrix,),
        {"offs": torch.ones(1).int()},
        ValueError,
        'offs= needs scaling="block" and',
    ),
    "int32": ((matrix.int(),), {}, NotImplementedError, "x is torch.int32; it must be one of"),
    "a list": ((matrix, ["fp8"]), {}, ValueError, "dtype is .'fp8'.; it must be one of"),
    "int8": ((matrix.to(INT8),), {}, NotImplementedError, "x is torch.int8; "),
    "sparse": ((matrix.to_sparse(),), {}, NotImplementedError, "x is torch.sparse_coo"),
    "a type": (
        (matrix, "fp4"),
        {},
        ValueError,
        "dtype is 'fp4'; .* 'fp8', 'int8', torch.float8_e4",
    ),
    "a dtype": ((matrix, BF16), {}, ValueError, "dtype is torch.bfloat16; "),
    "a scaling": ((matrix, "fp8", "col"), {}, ValueError, "'col'; .* tensor, row, block, block2d"),
    "a flag": ((matrix,), {"transpose": 1}, TypeError, "transpose must be True or False"),
    "a word": ((matrix,), {"transpose": "yes"}, ValueError, "'yes'; with .*='row' pass 'row'$"),
    "another word": (
        (matrix, "fp8", "block"),
        {"transpose": "row"},
        ValueError,
        "'block' or 'block2d'",
    ),
    "odds": ((matrix,), {"stochastic": 1}, TypeError, "stochastic must be True or False"),
    "a batch": ((matrix[None],), {"transpose": True}, ValueError, r"\[1, 4, 4\]; .* \[M, K\] with"),
}


@pytest.mark.parametrize(("args", "flags", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(args, flags, error, message):
    x, *more = args
    x = x.to(DEVICE) if isinstance(x, torch.Tensor) else x
    with pytest.raises(error, match=message):
        quantize(x, *more, **flags)


def test_gpus_without_fp8_are_told_of_int8(monkeypatch):
    old = dataclasses.replace(INTERPRETER, name="NVIDIA A100", capability=(8, 0))
    monkeypatch.setattr(op.Device, "of", staticmethod(lambda device: old))
    x = torch.randn(3, 4, device=DEVICE)
    message = r"fp8 needs .* 8.9 or newer; NVIDIA A100 has 8.0. Use dtype=\"int8\" there"
    with pytest.raises(RuntimeError, match=message):
        quantize(x)
    check(quantize(x, "int8"), x, INT8, "row")


def test_it_is_public():
    assert tritemm.quantize is quantize
    got = quantize(torch.randn(2, 3, device=DEVICE))
    assert isinstance(got, tritemm.Quantized) and got._fields == ("values", "scale")


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", ["tensor", "row", "block"])
def test_torch_multiplies_them_as_they_are(scaling):
    if scaling == "block" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("torch's products with scales of blocks are for Hopper")
    x, w = (torch.randn(n, 512, device="cuda").to(BF16) for n in (256, 384))
    a, b = quantize(x, "fp8", scaling), quantize(w, "fp8", scaling)
    scales = a.scale, b.scale.mT if b.scale.dim() else b.scale
    got = torch._scaled_mm(a.values, b.values.mT, *scales, out_dtype=BF16)
    want = a.dequantize() @ b.dequantize().mT
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=0.5)


@pytest.mark.gpu
@pytest.mark.large(20)
def test_offsets_past_two_to_the_31():
    x = torch.zeros(2**15 + 1, 2**16 + 8, dtype=BF16, device="cuda")
    x[-1] = torch.randn(2**16 + 8, device="cuda")
    for scaling in ("block", "row"):
        got, turned = quantize(x, "fp8", scaling, transpose=True)
        want = quantize(x[-1:], "fp8", scaling)
        assert torch.equal(got.values[-1:].view(torch.uint8), want.values.view(torch.uint8))
        assert torch.equal(got.scale[-1], want.scale[0])
        assert torch.equal(turned.scale[:, -1] > 1e-10, x[-1] != 0)
        assert (turned.values[:, -1].float().abs() == 448).sum() == (x[-1] != 0).sum()
