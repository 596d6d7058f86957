"""Products in graphs: compiled by Dynamo and Inductor, traced, exported; and torch's modes."""

import functools
import pickle

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.harness import DEVICE
from tests.nn.models import pair, with_integers
from tests.torch.test_out import OUTS
from tests.torch.twins import TORCH, equal, integers, leaf, same
from tritemm.problem import NOTHING
from tritemm.runtime import inductor


@pytest.fixture(autouse=True)
def _anew():
    counters.clear()


GRAPHS = {
    "matmul": (lambda lib, x, w: 2 * lib.matmul(x.relu(), w), (8, 9)),
    "linear": (
        lambda lib, x, w: lib.linear(x, w, w[:, 0], activation="relu", residual=w[:, 1]), (9, 8)
    ),
    "einsum": (
        lambda lib, x, w: lib.einsum(
            "bqhd,bkhd->bhqk", *(t.unflatten(-1, (2, 4)) for t in (x, torch.stack((w, w))))
        ),
        (9, 8),
    ),
}  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("call", "shape"), GRAPHS.values(), ids=GRAPHS)
def test_whole_graphs(call, shape, dynamic, training):
    compiled = torch.compile(
        functools.partial(call, tritemm), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for rows in (5, 6, 7):
        x, w = integers(2, rows, 8), integers(*shape)
        if training:
            x.requires_grad_(), w.requires_grad_()
        got, want = compiled(x, w), call(TORCH, x, w)
        equal(got, want)
        if training:
            equal(*(torch.autograd.grad(y.sum(), (x, w)) for y in (got, want)))


@pytest.mark.parametrize("kind", [dict, tritemm.Config])
def test_a_config_that_changes_between_calls_of_a_graph(kind):
    a, b = leaf(20, 16).detach(), leaf(16, 20).detach()
    compiled = torch.compile(
        lambda a, b, config: tritemm.matmul(a, b, kernel="naive", config=config),
        fullgraph=True, backend="eager",
    )  # fmt: skip
    for rows in (16, 32, 64):
        config = kind(BLOCK_M=rows, BLOCK_N=16, BLOCK_K=16)
        assert torch.equal(compiled(a, b, config), a @ b)


INTO = {
    "matmul": lambda a, b, out: tritemm.matmul(a, b, out=out),
    "linear": lambda a, b, out: tritemm.linear(a, b.mT, b[0], activation="relu", out=out),
    "addmm": lambda a, b, out: tritemm.addmm(b[0], a, b, beta=2, out=out),
}


#: What is said of an `out` that is refused.
TOLD = {"wrong type": "dtype", "overlapping itself": "clone", "requires grad": "requires grad"}


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:.*resized")
@pytest.mark.parametrize("call", INTO)
@pytest.mark.parametrize("kind", OUTS)
def test_compile_with_out(kind, call):
    a, b = integers(4, 5), integers(5, 6)
    whole = kind in ("right", "transposed", "slice")
    compiled = torch.compile(INTO[call], backend="eager", fullgraph=whole)
    with torch.device(DEVICE):
        mine, ours = OUTS[kind](), OUTS[kind]()
    if kind in TOLD:
        for function in (INTO[call], compiled):
            with pytest.raises(RuntimeError, match=TOLD[kind]):
                function(a, b, mine)
    else:
        assert compiled(a, b, mine) is mine
        same(mine, INTO[call](a, b, ours))
    # None of these is a plan, a choice or a launch.
    assert counters["frames"]["total"] <= 8


@pytest.mark.wide
@pytest.mark.parametrize("call", INTO)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inductor_with_an_out_that_begins_where_a_size_says(mode, call):
    """As in a cache of keys, from the second position on, which is a number of the graph's."""
    b, cache, want = integers(4, 4), *torch.zeros(2, 5, 3, 4, device=DEVICE)

    def write(x, cache, i):
        INTO[call](x, b, cache[i])

    compiled = torch.compile(write)
    with mode():
        for i in range(5):
            compiled(x := integers(3, 4), cache, i)
            write(x, want, i)
            assert torch.equal(cache, want)


def test_nothing_that_the_dispatcher_calls_is_compiled_after_a_break():
    a, b = leaf(4, 5), leaf(5, 4)
    loss = tritemm.linear(tritemm.matmul(a, b), b, activation="silu").sum()
    (want,) = torch.autograd.grad(loss, a, retain_graph=True)

    @torch.compile(backend="eager")
    def step(a, b, loss, out):
        # In none of these graphs is what writes to an `out` that isn't contiguous, or goes back.
        torch.ops.tritemm.gemm_out(a, b, *NOTHING, "auto", None, None, out=out)
        torch.ops.tritemm.gemm_out(
            a, b, None, out, "", 1.0, 1.0, False, "auto", None, None, out=out
        )
        loss.backward()
        return out + 1

    out = torch.zeros(4, 4, device=DEVICE, dtype=torch.float64).mT
    assert torch.equal(step(a.detach(), b.detach(), loss, out), 2 * (a @ b) + 1)
    assert torch.equal(a.grad, want)
    # Up to torch 2.11 some 20 of torch's own are counted.
    assert counters["frames"]["total"] <= 30


def converted_layers():
    """A converted one and one of ours."""
    return pair(torch.nn.Sequential(torch.nn.Linear(5, 5), tritemm.Linear(5, 5)))[0]


PAST_THE_LIMIT = {
    "functions": lambda: lambda x, w: tritemm.addmm(w[0], x, tritemm.linear(x, w).mT @ x),
    "layers": lambda: functools.partial(lambda layers, x, w: layers(x), converted_layers()),
    "out": lambda: lambda x, w: tritemm.matmul(x.detach(), w, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("kind", PAST_THE_LIMIT)
def test_nothing_is_compiled_apart_where_dynamo_has_given_up(kind):
    function = PAST_THE_LIMIT[kind]()
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled = torch.compile(function, backend="aot_eager", dynamic=False)
        for rows in range(2, 7):
            x, w = leaf(rows, 5, dtype=torch.float32), integers(5, 5)
            want, got = function(x, w), compiled(x, w)
            torch.testing.assert_close(got, want)
            if want.requires_grad:
                torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (got, want)))
    # Two that are compiled, and one that is one too many.
    assert counters["frames"]["total"] == 3


MASKED = {
    "K": lambda lib, x, w, m, n: lib.matmul(x[m].mT, x[n]),
    "K of vectors": lambda lib, x, w, m, n: lib.matmul(x[m][:, 0], x[n][:, 1]),
    "a batch": lambda lib, x, w, m, n: lib.matmul(x[m].unsqueeze(1), w[None]),
    "addmm": lambda lib, x, w, m, n: lib.addmm(w[0], x[m], w, beta=2),
    "a row is added": lambda lib, x, w, m, n: lib.addmm(w[:1], x[m], w),
    "a sum is added": lambda lib, x, w, m, n: lib.addmm(x[n] @ w, x[m], w),
    "mv": lambda lib, x, w, m, n: lib.mv(x[m].mT, x[n][:, 0]),
    "einsum": lambda lib, x, w, m, n: lib.einsum("ij,jk->ik", x[m], w),
    "einsum over it": lambda lib, x, w, m, n: lib.einsum("ij,ik->jk", x[m], x[n]),
    "einsum in a batch": lambda lib, x, w, m, n: lib.einsum("ij,ik->ijk", x[m], x[n]),
    "einsum of heads": lambda lib, x, w, m, n: lib.einsum(
        "bqhd,bkhd->bhqk", x[m].reshape(-1, 2, 2, 1), x[n].reshape(-1, 2, 2, 1)
    ),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", MASKED)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_only_data_tell(name):
    function = MASKED[name]
    compiled = torch.compile(
        functools.partial(function, tritemm), backend="aot_eager", fullgraph=True
    )
    x, w = leaf(6, 4), leaf(4, 4)
    for first, second in ((0b110101, 0b101110), (0b011000, 0b000110)):
        m, n = (
            torch.tensor([bits >> i & 1 for i in range(6)], device=DEVICE) == 1
            for bits in (first, second)
        )
        got, want = compiled(x, w, m, n), function(torch, x, w, m, n)
        assert torch.equal(got, want)
        equal(*(torch.autograd.grad(t.sum(), (x, w), allow_unused=True) for t in (got, want)))


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_data_tell_apart_are_refused():
    compiled = torch.compile(
        lambda x, m, n: tritemm.matmul(x[m].mT, x[n]), backend="aot_eager", fullgraph=True
    )
    few, many = (torch.arange(6, device=DEVICE) < count for count in (2, 3))
    with pytest.raises(RuntimeError):
        compiled(integers(6, 4), few, many)


def test_vmap_in_a_compiled_graph_is_one_product():
    counts, a, b = [], integers(6, 2, 4), integers(4, 3)

    def count(graph, _):
        targets = [node.target for node in graph.graph.nodes]
        counts.append(targets.count(torch.ops.tritemm.gemm.default))
        return graph

    product = torch.func.vmap(lambda x: tritemm.matmul(x, b))
    compiled = torch.compile(product, backend=aot_autograd(fw_compiler=count))
    assert torch.equal(compiled(a), a @ b) and counts == [1]


# Inductor's code


def layer_of(inputs, outputs):
    return with_integers(tritemm.Linear(inputs, outputs, bias=False))


def test_inductor_calls_the_product_without_a_detour():
    """Forward and backward, in memory that Inductor has planned; strides as it finds them."""
    layer, x = layer_of(5, 6), integers(4, 5).requires_grad_()
    compiled = torch.compile(lambda t: layer(t.relu()) + 1, fullgraph=True)

    def step():
        compiled(x).sum().backward()

    _, sources = run_and_get_code(step)
    called = [source.count("torch.ops.tritemm.gemm_into(") for source in sources]
    assert called == [1, 2] and "tritemm.gemm.default(" not in "".join(sources)
    got = x.grad, layer.weight.grad
    x.grad = layer.weight.grad = None
    (x.relu() @ layer.weight.mT + 1).sum().backward()
    assert torch.equal(got[0], x.grad) and torch.equal(got[1], layer.weight.grad)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_inductor_calls_what_follows_without_a_detour(biased, added):
    x, w = integers(4, 5), integers(6, 5)
    bias, residual = integers(6) if biased else None, integers(4, 6) if added else None

    def layer(x, w, bias, residual):
        # The residual is a view, the bias is computed.
        bias = bias if bias is None else bias + 1
        residual = residual if residual is None else residual[:, :]
        return tritemm.linear(x.relu(), w, bias, activation="relu", residual=residual) + 1

    operands = x, w, bias, residual
    for each in (operands, tuple(t if t is None else t + 1 for t in operands)):
        got, sources = run_and_get_code(torch.compile(layer, fullgraph=True), *each)
        assert torch.equal(got, layer(*each))
        assert "torch.ops.tritemm.gemm_into(" in "".join(sources)
        assert "tritemm.gemm.default(" not in "".join(sources)
        torch._dynamo.reset()


def test_inductor_with_other_shapes_and_views():
    compiled = torch.compile(lambda a, b: tritemm.matmul(a[:, ::2].mT, b), dynamic=True)
    for rows in (5, 6, 9):
        a, b = integers(2, rows, 8), integers(2, 4, 3)
        b = torch.cat([b] * 3, 1)[:, : -(-rows // 2)]
        a = a[:, : 2 * b.shape[1]]
        assert torch.equal(compiled(a, b), a[:, ::2].mT @ b)


# Traced and exported


TRACED = {
    "matmul": lambda a, b, c, v: tritemm.matmul(a, b, activation="relu", alpha=2),
    "linear": lambda a, b, c, v: tritemm.linear(a, b.mT, c[0], residual=c),
    "linear of a constant": lambda a, b, c, v: tritemm.linear(a, torch.ones(5, 4, device=DEVICE)),
    "addmm": lambda a, b, c, v: tritemm.addmm(c, a, b, beta=2, alpha=3),
    "addmm without its input": lambda a, b, c, v: tritemm.addmm(c, a, b, beta=0),
    "baddbmm": lambda a, b, c, v: tritemm.baddbmm(c[None], a[None], b[None]),
    "mv": lambda a, b, c, v: tritemm.mv(a, v),
    "einsum": lambda a, b, c, v: tritemm.einsum("ij,jk->ki", a, b),
    "syrk": lambda a, b, c, v: tritemm.syrk(a),
    "Linear": torch.nn.Sequential(tritemm.Linear(4, 5, activation="relu", device=DEVICE)),
}


@pytest.fixture(params=TRACED)
def traced(request):
    """What is traced, and its arguments."""
    function = TRACED[request.param]
    args = integers(3, 4), integers(4, 5), integers(3, 5), integers(4)
    return function, args[:1] if isinstance(function, torch.nn.Module) else args


def test_symbolic_trace(traced):
    function, args = traced
    graph = torch.fx.symbolic_trace(function)
    called = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert any(getattr(t, "__module__", "").startswith("tritemm.") for t in called)
    assert torch.equal(pickle.loads(pickle.dumps(graph))(*args), function(*args))


def test_symbolic_trace_of_several_products():
    def function(x, w):
        return tritemm.newton_schulz(x), tritemm.row_parallel_linear(x, w)

    x, w = integers(3, 16, dtype=torch.float32), integers(5, 16, dtype=torch.float32)
    graph = torch.fx.symbolic_trace(function)
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert called == [tritemm.newton_schulz, tritemm.row_parallel_linear]
    equal(graph(x, w), function(x, w))


@pytest.mark.wide
@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_jit_trace(traced):
    function, args = traced
    graph = torch.jit.trace(function, args)
    assert "tritemm::" in str(graph.inlined_graph)
    x, *rest = (t + 1 for t in args)
    x.requires_grad_()
    got, want = graph(x, *rest), function(x, *rest)
    equal(got, want)
    equal(*(torch.autograd.grad(y.sum(), x) for y in (got, want)))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_gradients_through_a_traced_graph(mode):
    x, w = integers(4, 5), integers(5, 3)
    graph = make_fx(lambda a, b: tritemm.matmul(a, b), tracing_mode=mode)(x, w)
    w.requires_grad_()
    graph(x, w).sum().backward()
    assert torch.equal(w.grad, x.mT @ torch.ones(4, 3, device=DEVICE))


@pytest.mark.parametrize("decomposed", [False, True])
def test_gradients_through_an_exported_program(decomposed):
    x = integers(4, 5)
    program = torch.export.export(layer_of(5, 3), (x,))
    module = (program.run_decompositions() if decomposed else program).module()
    module(x).sum().backward()
    (weight,) = module.parameters()
    assert torch.equal(weight.grad, torch.ones(3, 4, device=DEVICE) @ x)


def test_packages_are_refused_where_torch_mixes_up_types(monkeypatch):
    monkeypatch.setattr(inductor, "_MIXES_TYPES", True)
    x = integers(2, 5)
    program = torch.export.export(layer_of(5, 3), (x,))
    with pytest.raises(Exception, match="other types than it should"):
        torch._inductor.aoti_compile_and_package(program)


# What torch's modes and subclasses see


@pytest.mark.wide
@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 1, 3, 4), (3, 4, 5)), ((0, 4), (4, 5))])
@pytest.mark.parametrize("strided", [False, True])
def test_opcheck(shapes, strided):
    args = [leaf(*shape, dtype=torch.float32).detach() for shape in shapes]
    if strided:
        args = [t.mT.contiguous().mT for t in args]
    options = (*NOTHING, "auto", "ieee", None)
    torch.library.opcheck(torch.ops.tritemm.gemm.default, (*args, *options, torch.float32))
    out = torch.empty_like(torch.matmul(*args))
    torch.library.opcheck(torch.ops.tritemm.gemm_out.default, (*args, *options), {"out": out})


def test_opcheck_of_what_follows():
    x, w, b, r = leaf(3, 4), leaf(5, 4), leaf(5), leaf(3, 5)
    for activation in ("", "silu"):
        given = b, r, activation, 2.0, 0.5, False
        options = "auto", None, torch.float64, torch.float64
        torch.library.opcheck(torch.ops.tritemm.gemm, (x, w.mT, *given, *options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    a, b = leaf(4, 5, dtype=torch.float32), leaf(5, 6, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=dtype):
        got, want = tritemm.matmul(a, b), torch.matmul(a, b)
        mixed = tritemm.matmul(a, b.to(dtype))
        double = tritemm.matmul(a.double(), b.double())
        same(*(lib.linear(a, b.mT, b[0]) for lib in (tritemm, TORCH)))
    assert got.dtype == want.dtype == mixed.dtype == dtype
    assert double.dtype == torch.float64
    got.sum().backward()
    assert a.grad.dtype == torch.float32


def test_flop_counter():
    a, b = leaf(2, 3, 4), leaf(4, 5)
    with FlopCounterMode(display=False) as ours:
        tritemm.matmul(a, b).sum().backward()
    assert ours.get_total_flops() == 3 * 2 * 2 * 3 * 4 * 5
    with FlopCounterMode(display=False) as ours:
        tritemm.linear(a, b.mT, b[0])
    assert ours.get_total_flops() == 2 * 2 * 3 * 4 * 5


class Watching(torch.Tensor):
    """Notes which functions it is asked about, and what they are given by name."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append((func, {k for k, value in (kwargs or {}).items() if value is not None}))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda a, t: tritemm.matmul(a, t), None),
        (lambda a, t: tritemm.linear(t, a.mT, a[0]), "bias"),
        (lambda a, t: tritemm.matmul(a, a, out=t), "out"),
    ],
)
def test_a_subclass_is_asked(call, name):
    a = integers(4, 4)
    want, Watching.seen = a @ a + (a[0] if name == "bias" else 0), []
    got = call(a, a.clone().as_subclass(Watching))
    function, given = Watching.seen[0]
    assert function is tritemm.matmul and (name is None or name in given)
    assert isinstance(got, Watching) and torch.equal(got.as_subclass(torch.Tensor), want)


def test_meta_tensors_have_shapes():
    a = torch.empty(2, 3, 4, device="meta")
    out = tritemm.matmul(a, torch.empty(4, 5, device="meta"))
    assert out.device.type == "meta" and out.shape == (2, 3, 5)
