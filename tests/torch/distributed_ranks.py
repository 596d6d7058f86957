"""What each process of `test_distributed` does: checks of DTensor on a group of processes.

Run as a program, because a group wants processes of its own: it runs all checks on groups of the
sizes that it is given, and writes what failed. On the CPU all processes are forks of one, which
has imported what takes long. Every number is whole and small, so results are equal to the bit.
"""

import argparse
import contextlib
import copy
import datetime
import functools
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tritemm

IMPORTED_BY_TRITEMM = "torch.distributed.tensor" in sys.modules

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
)
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tritemm.api.row_parallel import added, products  # noqa: E402
from tritemm.problem import INTERPRETED, NOTHING  # noqa: E402
from tritemm.runtime import fast_path  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tensor_parallel.py"
R, P = Replicate(), Partial()
OPERATORS = torch.ops.tritemm
OPTIONS = "auto", None, None


def rules(n: int) -> list[tuple]:
    """Shapes and placements of two operands, and the placement of their product, on n devices."""
    return [
        ((8, 8), (8, 12), R, R, R),
        ((8, 8), (8, 12), Shard(0), R, Shard(0)),
        ((8, 8), (8, 12), R, Shard(1), Shard(1)),
        ((8, 8), (8, 12), Shard(1), Shard(0), P),
        ((n, 5, 8), (8, 12), R, R, R),
        ((n, 5, 8), (8, 12), Shard(0), R, Shard(0)),
        ((n, 5, 8), (8, 12), Shard(1), R, Shard(1)),
        ((3, n, 8), (8, 12), Shard(1), R, Shard(1)),
        ((n, 5, 8), (8, 12), R, Shard(1), Shard(2)),
        ((n, 5, 8), (8, 12), Shard(2), Shard(0), P),
        ((n, 5, 8), (n, 8, 6), Shard(0), Shard(0), Shard(0)),
        ((n, 5, 8), (1, 8, 6), Shard(0), R, Shard(0)),
        ((8, 8), (n, 8, 6), R, Shard(0), Shard(0)),
        ((8, 8), (n, 8, 6), Shard(0), R, Shard(1)),
        ((1, 5, 8), (1, 8, 6), R, R, R),
        ((n, 1, 5, 8), (n, 8, 6), Shard(0), R, Shard(0)),
        ((n, 1, 5, 8), (n, 8, 6), R, Shard(0), Shard(1)),
        # Four devices have 2, 2, 2 and 0 of six.
        ((6, 8), (8, 12), Shard(0), R, Shard(0)),
        ((8, 8), (8, 6), R, Shard(1), Shard(1)),
        ((8, 6), (6, 12), Shard(1), Shard(0), P),
    ]


def whole(*shape, dtype=torch.float32, bound=3) -> torch.Tensor:
    """Whole numbers, the same on every device."""
    return torch.randint(-bound, bound + 1, shape).to(dtype)


def on(mesh, tensor):
    return tensor.to(mesh.device_type)


def place(tensor, mesh, *placements) -> DTensor:
    """`tensor`, sharded from what every device has of it, without communication."""
    tensor = on(mesh, tensor)
    if P in placements:
        first = mesh.get_local_rank() == 0
        placed = DTensor.from_local(tensor if first else torch.zeros_like(tensor), mesh, [P])
    else:
        placed = DTensor.from_local(tensor, mesh, [R] * mesh.ndim).redistribute(mesh, placements)
    return placed.detach().requires_grad_(tensor.requires_grad)


def same(found, expected, placement=None) -> None:
    """Assert that a DTensor stands for `expected`, and is placed so."""
    assert isinstance(found, DTensor)
    if placement is not None:
        assert found.placements == (placement,), (found.placements, placement)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.stride() == expected.stride(), (found.stride(), expected.stride())
    full = found.full_tensor().cpu()
    assert torch.equal(full, expected), (full - expected).abs().max()


def silently(call, *args, **named):
    """The result of a call that communicates nothing."""
    with CommDebugMode() as communication:
        result = call(*args, **named)
    assert communication.get_total_counts() == 0, communication.get_comm_counts()
    return result


def check_rules_are_registered_on_demand(mesh):
    assert not IMPORTED_BY_TRITEMM
    a, b = place(whole(8, 8), mesh, R), place(whole(8, 8), mesh, R)
    with pytest.raises(NotImplementedError, match="sharding strategy"):
        OPERATORS.gemm.default(a, b, *NOTHING, *OPTIONS, torch.float32)
    with torch.inference_mode():
        assert tritemm.matmul(a, b).placements == (R,)
    OPERATORS.gemm.default(a, b, *NOTHING, *OPTIONS, torch.float32)
    tritemm.distributed.register()  # once more does no harm


def check_the_fast_path_is_for_plain_tensors(mesh):
    assert not fast_path.plain(place(whole(8, 8), mesh, R))
    assert not fast_path.plain(nn.Parameter(place(whole(8, 8), mesh, R)))


def check_mm(mesh):
    for a_shape, b_shape, a_placed, b_placed, expected in rules(mesh.size()):
        a, b = whole(*a_shape), whole(*b_shape)
        x, y = place(a, mesh, a_placed), place(b, mesh, b_placed)
        same(silently(tritemm.matmul, x, y), a @ b, expected)


def check_what_no_rule_fits_is_redistributed(mesh):
    a, b = whole(8, 8), whole(8, 12)
    for placements in [(Shard(0), Shard(1)), (Shard(0), Shard(0)), (P, R), (P, P)]:
        x, y = (place(t, mesh, p) for t, p in zip((a, b), placements, strict=True))
        with CommDebugMode() as communication:
            result = tritemm.matmul(x, y)
        assert communication.get_total_counts() > 0
        same(result, a @ b)


def check_matmul_of_vectors(mesh):
    matrix, vector, batch = whole(8, 8), whole(8), whole(4, 8, 8)
    for left, right, left_placed, right_placed, expected in [
        (matrix, vector, Shard(0), R, Shard(0)),
        (matrix, vector, Shard(1), Shard(0), P),
        (vector, matrix, R, Shard(1), Shard(0)),
        (vector, matrix, Shard(0), Shard(0), P),
        (vector, vector, Shard(0), Shard(0), P),
        (vector, vector, R, R, R),
        (batch, vector, Shard(0), R, Shard(0)),
        (vector, batch, R, Shard(2), Shard(1)),
    ]:
        x, y = place(left, mesh, left_placed), place(right, mesh, right_placed)
        same(silently(tritemm.matmul, x, y), left @ right, expected)
    with torch.inference_mode():
        x, y = place(matrix, mesh, Shard(0)), place(vector, mesh, R)
        same(silently(tritemm.matmul, x, y), matrix @ vector, Shard(0))


def check_types(mesh):
    """That of the result is part of what DTensor remembers of a call."""
    for dtype, results in [
        (torch.float16, (torch.float16, torch.float32)),
        (torch.bfloat16, (torch.bfloat16, torch.float32)),
        (torch.int8, (torch.int32,)),
    ]:
        a, b = whole(8, 8, dtype=dtype), whole(8, 12, dtype=dtype)
        x, y = place(a, mesh, Shard(1)), place(b, mesh, Shard(0))
        for result in results:
            expected = (a.float() @ b.float()).to(result)
            same(silently(tritemm.matmul, x, y, out_dtype=result), expected, P)


def check_out(mesh):
    a, b = whole(8, 8), whole(8, 12)
    for placements in [(Shard(0), R), (Shard(1), Shard(0)), (R, R)]:
        x, y = (place(t, mesh, p) for t, p in zip((a, b), placements, strict=True))
        for placement in (R, Shard(0), Shard(1)):
            out = place(torch.zeros(8, 12), mesh, placement)
            assert tritemm.matmul(x, y, out=out) is out
            same(out, a @ b, placement)
            out.zero_()
            OPERATORS.gemm_out.default(x, y, *NOTHING, *OPTIONS, out=out)
            same(out, a @ b, placement)
            assert tritemm.matmul(x, y, activation="relu", out=out, beta=2) is out
            same(out, (a @ b).relu() + 2 * (a @ b), placement)
            row = place(a[0].repeat(2)[:12], mesh, R)
            tritemm.addmm(row, x, y, out=out)
            same(out, a[0].repeat(2)[:12] + a @ b, placement)


ACTIVATIONS = {
    "": lambda x: x,
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": functools.partial(nn.functional.gelu, approximate="tanh"),
    "silu": nn.functional.silu,
}


def swiglu(pair):
    gate, up = pair.chunk(2, -1)
    return nn.functional.silu(gate) * up


def epilogue(product, bias, residual, activation, alpha, beta):
    product = alpha * product
    function = swiglu if activation == "swiglu" else ACTIVATIONS[activation]
    product = function(product if bias is None else product + bias)
    return product if residual is None else product + beta * residual


def like(placement, term, rank):
    """Placement of a term that is added to a result of `rank` dimensions, in plain words."""
    if not placement.is_shard():
        return placement
    dim = placement.dim - rank + term.dim()
    return Shard(dim) if dim >= 0 and term.shape[dim] > 1 else R


def check_gemm(mesh):
    """All rules with all terms; activations by turns, after the sum of parts without one."""
    activations = 3 * list(ACTIVATIONS)
    for a_shape, b_shape, a_placed, b_placed, expected in rules(mesh.size())[:11]:
        a, b = whole(*a_shape), whole(*b_shape)
        product = a @ b
        x, y = place(a, mesh, a_placed), place(b, mesh, b_placed)
        *batch, rows, columns = product.shape
        bias = 4 * whole(columns)
        shapes = [product.shape, (rows, 1), (columns,), (*(1 for _ in batch), 1, columns), ()]
        for i, shape in enumerate(shapes):
            activation = "" if expected == P else activations.pop()
            activations = activations or list(ACTIVATIONS)
            terms = (None, bias)[i % 2], (4 * whole(*shape), None)[i == 2]
            placed = [
                t if t is None else place(t, mesh, like(expected, t, product.dim())) for t in terms
            ]
            rest = activation, 2.0, -1.0
            options = (*OPTIONS, torch.float32)
            found = silently(OPERATORS.gemm.default, x, y, *placed, *rest, False, *options)
            near(found, epilogue(product, *terms, *rest), expected)


def near(found, expected, placement) -> None:
    """As `same`, of whole numbers after an activation, which has errors of its own."""
    assert found.placements == (placement,), (found.placements, placement)
    torch.testing.assert_close(found.full_tensor().cpu(), expected, rtol=1e-3, atol=1e-3)


def check_a_gate_stays_with_its_partner(mesh):
    """Whatever the operands' placements: a device's share of columns would have gates alone."""
    a, b, bias = whole(8, 8), whole(8, 24), 4 * whole(24)
    want = swiglu(a @ b + bias)
    for a_placed, b_placed in ((Shard(0), R), (R, Shard(1)), (Shard(1), Shard(0)), (R, R)):
        x, y, z = place(a, mesh, a_placed), place(b, mesh, b_placed), place(bias, mesh, R)
        rest = "swiglu", 1.0, 1.0
        found = OPERATORS.gemm.default(x, y, z, None, *rest, False, *OPTIONS, torch.float32)
        assert found.shape == want.shape
        torch.testing.assert_close(found.full_tensor().cpu(), want, rtol=1e-3, atol=1e-3)


def check_terms_are_added_once(mesh):
    """A sum over devices has one bias and one residual, and its activation after all of it."""
    a, b, bias, residual = whole(8, 8), whole(8, 12), 4 * whole(12), 4 * whole(8, 12)
    x, y = place(a, mesh, Shard(1)), place(b, mesh, Shard(0))
    terms = place(bias, mesh, R), place(residual, mesh, R)
    for activation, expected in [("", P), ("relu", R), ("", P)]:
        rest = activation, 1.0, 2.0
        found = OPERATORS.gemm.default(x, y, *terms, *rest, False, *OPTIONS, torch.float32)
        same(found, epilogue(a @ b, bias, residual, *rest), expected)


def check_integers_are_not_divided(mesh):
    a, b = whole(8, 8, dtype=torch.int8), whole(8, 12, dtype=torch.int8)
    bias = whole(12, dtype=torch.int32)
    x, y = place(a, mesh, Shard(1)), place(b, mesh, Shard(0))
    for term in (None, place(bias, mesh, R)):
        rest = term, None, "", 1.0, 1.0, False, *OPTIONS, torch.int32
        expected = a.int() @ b.int() + (0 if term is None else bias)
        same(OPERATORS.gemm.default(x, y, *rest), expected, P if term is None else R)


def check_gradients(mesh):
    for a_shape, b_shape, a_placed, b_placed, expected in rules(mesh.size()):
        a, b = whole(*a_shape).requires_grad_(), whole(*b_shape).requires_grad_()
        result = a @ b
        grad = whole(*result.shape)
        wanted = torch.autograd.grad(result, (a, b), grad)
        x, y = place(a, mesh, a_placed), place(b, mesh, b_placed)
        incoming = place(grad, mesh, R if expected == P else expected)
        found = torch.autograd.grad(tritemm.matmul(x, y), (x, y), incoming)
        for gradient, operand, value in zip(found, (x, y), wanted, strict=True):
            same(gradient, value.contiguous())
            assert gradient.placements in (operand.placements, (P,))
            local = operand.shape if gradient.placements == (P,) else operand.to_local().shape
            assert gradient.to_local().shape == local


def check_gradients_of_gemm(mesh):
    for a_placed, b_placed, expected, activation in [
        (Shard(0), R, Shard(0), "relu"),
        (R, Shard(1), Shard(1), "relu"),
        (Shard(1), Shard(0), P, ""),
    ]:
        shapes = (8, 8), (8, 12), (12,), (8, 12)
        plain = [whole(*shape).requires_grad_() for shape in shapes]
        rest = activation, 2.0, -1.0
        result = epilogue(plain[0] @ plain[1], *plain[2:], *rest)
        grad = whole(*result.shape)
        wanted = torch.autograd.grad(result, plain, grad)
        # What is added to a sum over devices is whole on each, as RowwiseParallel has a bias.
        terms = [R if expected == P else like(expected, t, 2) for t in plain[2:]]
        placements = a_placed, b_placed, *terms
        sharded = [place(t, mesh, p) for t, p in zip(plain, placements, strict=True)]
        found = OPERATORS.gemm.default(*sharded, *rest, False, *OPTIONS, torch.float32)
        assert found.placements == (expected,)
        incoming = place(grad, mesh, R if expected == P else expected)
        for gradient, value in zip(
            torch.autograd.grad(found, sharded, incoming), wanted, strict=True
        ):
            same(gradient, value.contiguous())


def check_two_dimensions(mesh):
    """Each dimension of a mesh has a rule of its own."""
    both = init_device_mesh(mesh.device_type, (2, 2))
    for a_shape, a_placed, b_placed, expected in [
        ((8, 8), (Shard(0), R), (R, Shard(1)), (Shard(0), Shard(1))),
        ((8, 8), (Shard(0), Shard(1)), (R, Shard(0)), (Shard(0), P)),
        ((4, 4, 8), (Shard(0), Shard(1)), (R, R), (Shard(0), Shard(1))),
        ((2, 4, 8), (Shard(0), Shard(0)), (R, R), None),
        ((4, 2, 8), (Shard(0), Shard(0)), (R, R), (Shard(0), Shard(0))),
    ]:
        a, b = whole(*a_shape).requires_grad_(), whole(8, 12).requires_grad_()
        result = a @ b
        grad = whole(*result.shape)
        wanted = torch.autograd.grad(result, (a, b), grad)
        x, y = place(a, both, *a_placed), place(b, both, *b_placed)
        found = tritemm.matmul(x, y)
        same(found, result.detach())
        assert expected in (None, found.placements), found.placements
        given = torch.autograd.grad(found, (x, y), place(grad, both, R, R))
        for gradient, value in zip(given, wanted, strict=True):
            same(gradient, value.contiguous())


class MLP(nn.Module):
    """Two layers, in whole numbers."""

    def __init__(self, linear):
        super().__init__()
        self.up, self.down = linear(8, 16), linear(16, 8)
        for parameter in self.parameters():
            parameter.data = 4 * whole(*parameter.shape, bound=1)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def models(mesh, sequence=False):
    """Three that compute the same: torch's on one device, torch's sharded, and ours sharded.

    `sequence`: what comes in and goes out is sharded along its first dimension, else whole.
    """
    outside = Shard(0) if sequence else R
    plan = {
        "up": ColwiseParallel(input_layouts=outside),
        "down": RowwiseParallel(output_layouts=outside),
    }
    alone = MLP(nn.Linear)
    theirs, ours = copy.deepcopy(alone), MLP(tritemm.Linear)
    ours.load_state_dict(alone.state_dict())
    sharded = [parallelize_module(on(mesh, model), mesh, plan) for model in (theirs, ours)]
    return on(mesh, alone), *sharded


def trained(model, x):
    """Output, gradient of `x` and counts of collectives, of one step."""
    x = x.detach().requires_grad_()
    with CommDebugMode() as communication:
        y = model(x)
        y.backward(torch.ones_like(y))
    counts = {str(k): v for k, v in communication.get_comm_counts().items() if v}
    return y.detach(), x.grad, counts


def same_gradients(sharded, alone):
    parameters = dict(alone.named_parameters())
    for name, parameter in sharded.named_parameters():
        same(parameter.grad, parameters[name].grad.cpu())
        if parameter.placements != (R,):
            assert parameter.grad.placements == parameter.placements


def check_parallelize_module(mesh):
    """Forwards and backwards as on one device, with as much communication as nn.Linear has."""
    for sequence, x in [(False, whole(4, 8)), (False, whole(2, 3, 8)), (True, whole(4, 2, 8))]:
        alone, theirs, ours = models(mesh, sequence)
        expected = trained(alone, on(mesh, x))[:2]
        outside = Shard(0) if sequence else R
        x = place(x, mesh, outside).to_local()
        *_, usual = trained(theirs, x)
        *found, communication = trained(ours, x)
        assert communication == usual and usual
        for piece, value in zip(found, expected, strict=True):
            assert torch.equal(piece, place(value, mesh, outside).to_local())
        same_gradients(ours, alone)


def check_bits_of_any_number(mesh):
    """Of 1, 2 and 4 processes; and alone or with other rows. Backward has the columns' own."""
    n, rank = mesh.size(), mesh.get_rank()
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.float32):
        x, w, bias = (
            torch.randn(*shape, device=mesh.device_type).to(dtype)
            for shape in ((6, 48), (5, 48), (5,))
        )
        alone = added(products(x, w, 8)) + bias
        mine = [t.chunk(n, -1)[rank].clone().requires_grad_() for t in (x, w)]
        got = tritemm.row_parallel_linear(*mine, bias)
        assert torch.equal(got, alone.to(dtype))
        assert torch.equal(tritemm.row_parallel_linear(mine[0][2:3], mine[1], bias), got[2:3])
        if n > 1:
            with pytest.raises(RuntimeError, match="leave create_graph out"):
                torch.autograd.grad(got.sum(), mine, create_graph=True)
        got.sum().backward()
        ones = torch.ones_like(got)
        torch.testing.assert_close(mine[0].grad, (ones @ w).chunk(n, -1)[rank])
        torch.testing.assert_close(mine[1].grad, (ones.mT @ x).chunk(n, -1)[rank])


def check_an_optimizer_steps(mesh):
    alone, _, ours = models(mesh)
    x = on(mesh, whole(4, 8))
    for each in (alone, ours):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.25)
        each(x).sum().backward()
        optimizer.step()
    placed = dict(ours.named_parameters())
    for name, parameter in alone.named_parameters():
        same(placed[name].detach(), parameter.detach().cpu(), placed[name].placements[0])


def check_compiled(mesh):
    """With one graph for the whole model, forwards and backwards."""
    alone, _, ours = models(mesh)
    x = on(mesh, whole(4, 8))
    expected = trained(alone, x)[0]
    result = torch.compile(ours, backend="aot_eager", fullgraph=True)(x)
    result.backward(torch.ones_like(result))
    assert torch.equal(result, expected)
    same_gradients(ours, alone)


def check_fsdp_of_tensor_parallel(mesh):
    """On a mesh of two dimensions: batches along one, weights along both."""
    both = init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("data", "tensor"))
    alone, _, ours = models(both["tensor"])
    fully_shard(ours, mesh=both["data"])
    x = on(mesh, whole(4, 8))
    expected = trained(alone, x)[0]
    index = both.get_local_rank("data")
    result = trained(ours, x.chunk(2)[index])[0]
    assert torch.equal(result, expected.chunk(2)[index])
    parameters = dict(alone.named_parameters())
    for name, parameter in ours.named_parameters():
        # FSDP takes the mean over its dimension.
        assert torch.equal(2 * parameter.grad.full_tensor(), parameters[name].grad), name


def check_the_example_trains(mesh):
    spec = importlib.util.spec_from_file_location("tensor_parallel", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    losses = module.train(mesh)
    assert len(losses) == module.STEPS and losses[-1] < losses[0]
    exact = mesh.device_type == "cpu"  # bfloat16 elsewhere
    for sharded, alone in losses:
        assert sharded == pytest.approx(alone, rel=1e-5 if exact else 2e-2)


@contextlib.contextmanager
def torchs_products():
    """What each device multiplies, it multiplies by torch: the rules are the same."""

    def mm(a, b, kernel, precision, accumulate, out_dtype):
        dtype = torch.float32 if a.is_floating_point() else torch.int32
        return (a.to(dtype) @ b.to(dtype)).to(out_dtype)

    def gemm(a, b, bias, residual, activation, alpha, beta, symmetric, *options):
        assert not symmetric
        product = mm(a, b, *options)
        return epilogue(product, bias, residual, activation, alpha, beta).to(product.dtype)

    with warnings.catch_warnings(), torch.library._scoped_library("tritemm", "IMPL") as library:
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for operator in (mm, gemm):
            library.impl(operator.__name__, operator, "CPU", allow_override=True)
        yield


def rank(index: int, size: int, names: list[str], device: str, meeting: str, report: str) -> None:
    """Run checks as one process of a group, and write what became of them."""
    if device == "cuda":
        torch.cuda.set_device(index)
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=index,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    mesh = init_device_mesh(device, (size,))
    faults = {}
    for name in names:
        # The kernels are slow in the interpreter: what two processes do with them has to do.
        own = not INTERPRETED or (name == "parallelize_module" and size == 2)
        torch.manual_seed(0)
        try:
            with contextlib.nullcontext() if own else torchs_products():
                globals()[f"check_{name}"](mesh)
            faults[name] = None
        except Exception:
            faults[name] = traceback.format_exc()
    Path(report, f"{size}_{index}.json").write_text(json.dumps(faults))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", help="folder for <size>_<rank>.json: check -> traceback or null")
    parser.add_argument("groups", nargs="+", help="size:check,check,...")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    context = multiprocessing.get_context("fork" if args.device == "cpu" else "spawn")
    for group in args.groups:
        size, names = group.split(":")
        with tempfile.TemporaryDirectory() as folder:
            meeting = str(Path(folder, "meeting"))
            rest = int(size), names.split(","), args.device, meeting, args.report
            processes = [context.Process(target=rank, args=(i, *rest)) for i in range(int(size))]
            for process in processes:
                process.start()
            for process in processes:
                process.join()


if __name__ == "__main__":
    main()
