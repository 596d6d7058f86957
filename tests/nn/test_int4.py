"""Weights of 4 bits: `tritemm.nn.Int4Weight`, and `tritemm.linear` by one."""

import copy
import doctest
import io

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tritemm
from tests.harness import DEVICE, assert_right
from tritemm.kernels import int4_roles
from tritemm.nn import Int4Weight
from tritemm.nn import int4 as module
from tritemm.op import int4 as op
from tritemm.problem import ACTIVATIONS, GATED, EpilogueInputs, activated

TYPES = [torch.bfloat16, torch.float16]
WIDE = torch.float32


def random(*shape, dtype=torch.bfloat16):
    """Values whose mean is not zero, so that a missing term is seen."""
    return (torch.randn(shape, device=DEVICE) + torch.linspace(-1, 1, shape[-1], device=DEVICE)).to(
        dtype
    )


def exact_weight(n, k, group, dtype=torch.bfloat16):
    """Whole numbers, and scales that leave them whole and small."""
    numbers = torch.randint(-8, 8, (n, k), device=DEVICE)
    scale = 2.0 ** torch.randint(0, 3, (k // group, n), device=DEVICE)
    return Int4Weight(Int4Weight.pack(numbers), scale.to(dtype)), numbers


#: Rows, N, K and the group: each tile of rows, more rows than these, N inside a block of 8, parts
#: of K.
SHAPES = {
    "one row": (1, 24, 256, 128),
    "few rows": (5, 77, 1024, 32),
    "a tile of 16": (16, 64, 512, 64),
    "a tile of 32": (27, 130, 128, 128),
    "a tile of 64": (50, 129, 384, 128),
    "tiles of 128": (131, 136, 256, 256),
    "many rows": (op.MANY_ELSEWHERE + 1, 43, 1152, 384),
    "more rows": (op.MANY + 1, 24, 256, 128),
    "parts": (3, 8, 4096, 128),
    "lanes, uneven": (2, 24, 1152, 32),
    "lanes, two steps of a group": (4, 40, 512, 256),
    "a group of several turns": (20, 72, 1024, 512),
}


def rounded(m, weight):
    """Whether elements of the weight are rounded before `m` rows are multiplied."""
    roles = int4_roles.supports(torch.device(DEVICE))
    return m > (op.FEW if roles else op.MANY_ELSEWHERE)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("m", "n", "k", "group"), SHAPES.values(), ids=SHAPES)
def test_every_element_is_right(m, n, k, group, dtype):
    x, bias = random(m, k, dtype=dtype), random(n)
    weight = Int4Weight.of(random(n, k, dtype=dtype), group)
    assert weight.shape == (n, k) and weight.scale.dtype == dtype
    dense = weight.dequantize(dtype if rounded(m, weight) else WIDE).mT
    out = tritemm.linear(x, weight, bias)
    assert out.dtype == dtype
    assert_right(out, x, dense, ending=EpilogueInputs(bias))
    weight, numbers = exact_weight(n, k, group, dtype)
    x = torch.randint(-1, 2, (m, k), device=DEVICE).to(dtype)
    dense = weight.dequantize(WIDE).mT
    assert torch.equal(dense, (numbers * weight.scale.mT.repeat_interleave(group, 1)).mT)
    assert_right(weight(x), x, dense)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("rows", [256, op.MANY + 128])
def test_elements_of_products_of_many_rows_are_rounded_once(rows, group, dtype):
    weight = Int4Weight.of(random(40, 256, dtype=dtype), group)
    x = torch.eye(256, dtype=dtype, device=DEVICE).repeat(rows // 128, 1)[:rows]
    dense = weight.dequantize(dtype if rounded(rows, weight) else WIDE).to(dtype).mT
    assert torch.equal(weight(x), dense.repeat(rows // 128, 1)[:rows])
    odd = torch.empty(1 + weight.packed.numel(), dtype=torch.uint8, device=DEVICE)[1:]
    odd = Int4Weight(odd.view_as(weight.packed).copy_(weight.packed), weight.scale)
    assert torch.equal(odd(x), weight(x))


@pytest.mark.parametrize("rows", [6, op.FEW + 2, op.MANY + 2])
def test_inputs_of_any_strides_and_dimensions(rows):
    weight, _ = exact_weight(24, 256, 128)
    x = torch.randint(-1, 2, (rows, 256), device=DEVICE).bfloat16()
    want = weight(x)
    assert torch.equal(weight(x.view(2, -1, 256)), want.view(2, -1, 24))
    assert torch.equal(weight(x[4]), want[4])
    assert torch.equal(weight(x.mT.contiguous().mT), want)
    bias = torch.randint(-9, 9, (24, 2), device=DEVICE).bfloat16()[:, 0]
    assert torch.equal(weight(x, bias), weight(x, bias.clone()))
    apart = torch.full((rows, 2, 257), torch.nan, dtype=x.dtype, device=DEVICE)
    apart[:, 1, 1:] = x  # at odd addresses
    assert torch.equal(weight(apart[:, 1, 1:]), want)
    odd = torch.empty(1 + x.numel(), dtype=x.dtype, device=DEVICE)[1:].view_as(x)
    assert torch.equal(weight(odd.copy_(x)), want)
    assert weight(x[:0]).shape == (0, 24) and weight(x.view(2, -1, 256)[:, :0]).shape == (2, 0, 24)


@pytest.mark.wide
@pytest.mark.parametrize("activation", [None, *filter(None, ACTIVATIONS), *GATED])
def test_what_follows_is_torchs(activation):
    x, bias, weight = random(3, 128), random(10), Int4Weight.of(random(10, 128))
    plain = tritemm.linear(x, weight, bias)
    residual = random(3, 5 if activation in GATED else 10)
    got = tritemm.linear(x, weight, bias, activation=activation, residual=residual)
    assert torch.equal(got, activated(plain, activation or "") + residual)


# The weight


def test_where_each_number_is_stored():
    weight, numbers = exact_weight(11, 384, 128)
    assert weight.packed.shape == (2, 3, 8, 64)
    n, k = torch.meshgrid(torch.arange(11), torch.arange(384), indexing="ij")
    column = k % 64  # 8 a + 2 t + b
    byte = 16 * (column // 2 % 4) + 2 * (column // 8) + column % 2
    stored = weight.packed.cpu()[n // 8, k // 128, n % 8, byte].int()
    assert torch.equal((stored >> 4 * (k // 64 % 2) & 15) - 8, numbers.cpu().int())


@pytest.mark.parametrize("group", [32, 128, 1152])
@pytest.mark.parametrize("dtype", [*TYPES, WIDE, torch.float64, torch.float8_e5m2], ids=str)
def test_elements_are_rounded_once(group, dtype):
    weight = Int4Weight.of(random(21, 1152, dtype=torch.half), group)
    byte = weight.packed.view(3, 9, 8, 4, 8, 2)
    numbers = torch.stack((byte & 15, byte >> 4), 3).permute(0, 2, 1, 3, 5, 4, 6).double() - 8
    scale = weight.scale.mT.double().repeat_interleave(group, 1)
    want = (numbers.reshape(24, -1)[:21] * scale).to(dtype)
    for got in (weight.dequantize(dtype), copy.deepcopy(weight).cpu().dequantize(dtype)):
        assert got.dtype == dtype and torch.equal(got.to(DEVICE), want)


@pytest.mark.parametrize("group", [32, 64, 128, 384])
def test_the_nearest_weight(group):
    """Less error than by the scales that the largest magnitude over 7 would be."""
    dense = torch.randn(24, 384, device=DEVICE)
    dense[0] = 0
    dense[1, 3] = -100
    got = Int4Weight.of(dense, group).dequantize(WIDE)
    groups = dense.view(24, -1, group)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 7
    usual = ((groups / scale).round() * scale).view_as(dense)
    assert torch.equal(got[0], dense[0]) and abs(got[1, 3] + 100) < 0.4
    ours, theirs = ((each - dense)[2:].square().mean() for each in (got, usual))
    assert ours < 0.9 * theirs
    assert Int4Weight.of(dense.double(), group).scale.dtype == torch.bfloat16
    assert Int4Weight.of(dense.half(), group).scale.dtype == torch.float16


def test_buffers_go_where_modules_go():
    weight = Int4Weight.of(random(16, 256), 64)
    file = io.BytesIO()
    torch.save(weight.state_dict(), file)
    file.seek(0)
    other = Int4Weight(torch.zeros_like(weight.packed), torch.zeros_like(weight.scale))
    other.load_state_dict(torch.load(file))
    layers = torch.nn.Sequential(copy.deepcopy(weight))
    for each in (other, layers[0]):
        assert torch.equal(each.dequantize(), weight.dequantize())
    assert list(layers.state_dict()) == ["0.packed", "0.scale"] and not list(layers.parameters())
    half = layers.to(torch.float16)[0]
    assert half.packed.dtype == torch.uint8 and half.scale.dtype == torch.float16
    assert copy.deepcopy(weight).to("meta")(random(2, 256).to("meta")).shape == (2, 16)


# What torch asks of an operator


@pytest.mark.parametrize("rows", [3, op.FEW, op.MANY_ELSEWHERE])
def test_gradients(rows):
    weight = Int4Weight.of(random(24, 256))
    x, bias = random(2, rows, 256).requires_grad_(), random(24).requires_grad_()
    out = tritemm.linear(x, weight, bias)
    grad = random(2, rows, 24)
    of_x, of_bias = torch.autograd.grad(out, (x, bias), grad)
    assert_right(of_x, grad, weight.dequantize())
    of_rows = grad.float().sum((0, 1)).bfloat16()
    torch.testing.assert_close(of_bias, of_rows, rtol=0.02, atol=0.02)
    assert torch.equal(out, tritemm.linear(x.detach(), weight, bias.detach()))
    product = weight(x.detach(), activation="silu", bias=bias)
    product.sum().backward()
    assert bias.grad is not None and x.grad is None


def test_scales_of_another_type_than_the_inputs():
    """Which the operator takes, where the class refuses them."""
    (weight, _), x = exact_weight(24, 256, 128), random(op.FEW + 6, 256)
    for scale in (weight.scale, weight.scale.half(), weight.scale.float()):
        out = op.INT4(x, weight.packed, scale, None)
        assert_right(out, x, weight.dequantize().mT)


def test_opcheck():
    weight, bias = Int4Weight.of(random(10, 128)), random(10).requires_grad_()
    for rows in (3, op.MANY_ELSEWHERE + 1):
        args = random(rows, 128).requires_grad_(), weight.packed, weight.scale, bias
        torch.library.opcheck(op.INT4, args)
    torch.library.opcheck(op.DEQUANTIZE, (*args[1:3], torch.float32))


def test_compiled():
    weight, bias = Int4Weight.of(random(10, 128)), random(10)

    def function(x):
        return tritemm.linear(x, weight, bias, activation="gelu") + weight(x)

    run = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 5, op.FEW + 1, op.MANY_ELSEWHERE + 1):
        x = random(rows, 128).requires_grad_()
        got, want = run(x), function(x)
        assert torch.equal(got, want)
        grads = [torch.autograd.grad(y.sum(), x)[0] for y in (got, want)]
        assert torch.equal(*grads)


def test_fake_mapped_and_under_autocast():
    weight = Int4Weight.of(random(10, 128))
    x = random(4, 3, 128)
    want = weight(x)
    assert torch.equal(torch.func.vmap(weight, 1, 1)(x), want)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(weight(x.float()), want)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert weight(mode.from_tensor(x)).shape == (4, 3, 10)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [7, 200])
def test_a_cuda_graph_gives_the_same_bits_each_time(rows):
    weight, x = Int4Weight.of(random(1000, 8192)), random(rows, 8192)
    want = weight(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = weight(x)
    for _ in range(3):
        got.fill_(torch.nan)
        graph.replay()
        assert torch.equal(got, want)


@pytest.mark.gpu
@pytest.mark.large(22)
def test_more_than_2_gib_of_packed_weights():
    packed = torch.randint(0, 256, (2**13, 2**10, 8, 64), dtype=torch.uint8, device=DEVICE)
    weight = Int4Weight(packed, torch.ones(2**10, 2**16, dtype=torch.bfloat16, device=DEVICE))
    last = Int4Weight(packed[-1:].clone(), weight.scale[:, -8:].contiguous()).dequantize(WIDE)
    for rows in (1, 70):
        x = torch.randint(-1, 2, (rows, 2**17), device=DEVICE).bfloat16()
        assert_right(weight(x)[:, -8:], x, last.mT)
    assert torch.equal(weight.dequantize()[-8:], last.bfloat16())


# What is refused


def of(n, k, group):
    return lambda: Int4Weight.of(random(n, k), group)


def made(packed, scale, byte=torch.uint8, dtype=torch.float16):
    return lambda: Int4Weight(torch.zeros(packed, dtype=byte), torch.zeros(scale, dtype=dtype))


def called(*shape, dtype=torch.bfloat16, **options):
    """A call of `linear` with inputs of this shape; tuples are tensors' shapes."""

    def call():
        given = {name: random(*v) if isinstance(v, tuple) else v for name, v in options.items()}
        tritemm.linear(random(*shape, dtype=dtype), Int4Weight.of(random(8, 128)), **given)

    return call


WRONG = {
    "columns": (of(8, 96, 32), ValueError, "96 columns in groups of 32; K must be a multiple of"),
    "groups": (of(8, 384, 256), ValueError, "384 columns in groups of 256; K must be a multiple"),
    "a size of groups": (of(8, 128, 16), ValueError, "128 columns in groups of 16; K must be a"),
    "scales": (made((1, 3, 8, 64), (2, 8)), ValueError, "384 columns in groups of 192; K must be"),
    "rows": (made((2, 3, 8, 64), (3, 8)), ValueError, r"uint8 \[2, 3, 8, 64\] and torch.fl"),
    "bytes": (made((1, 3, 8, 64), (3, 8), torch.int8), ValueError, "are torch.int8 "),
    "a type": (made((1, 3, 8, 64), (3, 8), dtype=WIDE), ValueError, "and torch.float32 "),
    "inputs": (called(2, 64), RuntimeError, r"input has shape \[2, 64\]; the weight has \[8, 128"),
    "two types": (
        called(2, 128, dtype=torch.half),
        RuntimeError,
        "to have the same dtype, but got",
    ),
    "elements of integers": (
        lambda: Int4Weight.of(random(8, 128)).dequantize(torch.int8),
        ValueError, "dtype is torch.int8; it must be real",
    ),
    "an activation": (
        called(2, 128, activation="tanh"),
        ValueError,
        "activation='tanh' is unknown",
    ),
    "an option": (called(2, 128, kernel="tma"), TypeError, "kernel don't go with an Int4"),
    "out": (called(2, 128, out=(2, 8)), TypeError, "out don't go with an Int4Weight"),
    "bias": (called(2, 128, bias=(7,)), RuntimeError, r"bias has shape \[7\]; it must be \[8\]"),
    "residual": (called(2, 128, residual=(3, 8)), RuntimeError, r"be broadcast to the result's, "),
    "a residual's type": (
        lambda: Int4Weight.of(random(8, 128))(random(2, 128), residual=random(2, 8).int()),
        RuntimeError, "residual is torch.int32; with",
    ),
    "no residual": (called(2, 128, residual=[1.0]), TypeError, "residual must be Tensor, not list"),
    "no groups": (of(8, 128, 0), ValueError, "128 columns in groups of 0; K must be a"),
    "groups below": (of(8, 128, -128), ValueError, "128 columns in groups of -128; K must be a"),
    "no rows": (of(0, 128, 128), ValueError, r"the weight has shape \[0, 128\], not \[N, K\]"),
    "one dimension": (
        lambda: Int4Weight.of(random(128)), ValueError, r"the weight has shape \[128\]",
    ),
    "whole numbers": (lambda: Int4Weight.of(random(8, 128).int()), ValueError, "int32; it must be"),
    "no scales": (made((1, 3, 8, 64), (0, 8)), ValueError, r"and torch.float16 \[0, 8\]; they"),
    "flat scales": (made((1, 3, 8, 64), (8,)), ValueError, r"and torch.float16 \[8\]; they must"),
    "numbers": (
        lambda: Int4Weight.pack(torch.full((8, 128), 12)), ValueError, "from 12 to 12; -8 to 7",
    ),
    "a module": (
        lambda: tritemm.linear(random(2, 128), torch.nn.Linear(128, 8)), TypeError, "not Linear",
    ),
    "a wide scale": (
        lambda: Int4Weight.of(random(8, 128)).float()(random(2, 128).float()), RuntimeError,
        "scale has become torch.float32, not 16-bit",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_other_devices():
    weight = Int4Weight.of(random(8, 128))
    with pytest.raises(RuntimeError, match="all tensors to be on the same device"):
        weight(random(2, 128).to("meta"))
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        tritemm.linear([1.0] * 128, weight)


def test_of_no_data_and_of_a_class_of_its_own():
    meta = Int4Weight.of(random(24, 256).to("meta"))
    assert meta.packed.is_meta and meta.shape == (24, 256)

    class Own(Int4Weight):
        pass

    weight, x = Int4Weight.of(random(24, 256)), random(2, 256)
    assert torch.equal(tritemm.linear(x, Own(weight.packed, weight.scale)), weight(x))


def test_the_docs_example():
    assert doctest.testmod(module).failed == 0
