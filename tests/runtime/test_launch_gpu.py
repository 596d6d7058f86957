"""The short launch path on a GPU: the bits of Triton's own launch, whatever goes on around it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl

import tritemm
from tests.harness import assert_right, operand, operands, rungs, typed
from tests.sweep import drawn
from tritemm import budget, plan
from tritemm.op import derivatives
from tritemm.problem import Problem
from tritemm.rungs import RUNGS
from tritemm.runtime import binding, fast_path, triton_private, workspace

pytestmark = [pytest.mark.gpu, pytest.mark.latest]

SIZES = [(256, 512, 384), (300, 264, 200), (8, 1024, 512)]


def of(kernel, *size):
    """Operands of a product that the rung can make."""
    return operands(*size, typed(kernel, torch.bfloat16))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Each test makes its own products and finds its own kernels."""
    monkeypatch.setattr(binding, "_LOADED", {})
    monkeypatch.setattr(binding, "_CALLS", {})
    fast_path.KNOWN.clear()


def calls_of(monkeypatch):
    """Counts the launches through a prepared call."""
    count = []
    original = binding.Call.__call__

    def counted(self, stream, addresses):
        count.append(stream)
        original(self, stream, addresses)

    monkeypatch.setattr(binding.Call, "__call__", counted)
    return count


def test_everything_private_is_where_it_was():
    """On a supported torch and Triton the short path is taken; elsewhere it may not be."""
    assert fast_path.AVAILABLE and triton_private.plain()


@rungs
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bits_of_tritons_own_launch(kernel, size, monkeypatch):
    a, b = of(kernel, *size)
    c, own = (torch.full((size[0], size[1]), torch.nan, dtype=a.dtype, device="cuda") for _ in "ab")
    problem = Problem.of(a, b, c)
    reason = kernel.why_not(problem)
    if reason:
        pytest.skip(reason)
    configs = kernel.configs(problem)
    for config in {configs[0]: None, configs[-1]: None}:
        c.fill_(torch.nan)
        calls = plan.run(kernel, problem, config, a, b, c)
        assert calls and None not in calls, f"{config}: not by the short path"
        with monkeypatch.context() as patch:
            patch.setattr(triton_private, "plain", lambda: False)
            assert plan.run(kernel, problem, config, a, b, own) == [None]
        assert torch.equal(c, own), config
        assert_right(c, a, b)


@rungs
def test_second_call_is_short(kernel, monkeypatch):
    a, b = of(kernel, 256, 512, 384)
    first = tritemm.matmul(a, b, kernel=kernel.name)
    count = calls_of(monkeypatch)
    for call in range(1, 4):
        assert torch.equal(tritemm.matmul(a, b, kernel=kernel.name), first)
        out = torch.empty_like(first)
        tritemm.matmul(a, b, kernel=kernel.name, out=out)
        assert torch.equal(out, first)
        assert len(count) == 2 * call


@rungs
def test_factors_are_given_at_each_launch(kernel, monkeypatch):
    """Those of another call are no other kind, and none of what was prepared."""
    a, b = of(kernel, 256, 512, 384)
    residual = operand(256, 512, a.dtype)
    fields = {"residual": residual, "alpha": True, "beta": True}
    if reason := kernel.why_not(Problem.of(a, b, torch.empty_like(residual), **fields)):
        pytest.skip(reason)
    for alpha, beta in ((2, 3), (0.5, -1), (-4.0, 0.25)):
        more = {"kernel": kernel.name, "residual": residual, "alpha": alpha, "beta": beta}
        got = tritemm.matmul(a, b, **more)
        with monkeypatch.context() as patch:
            patch.setattr(triton_private, "plain", lambda: False)
            assert torch.equal(got, tritemm.matmul(a, b, **more))
    assert len(fast_path.KNOWN) == 1


@rungs
def test_streams(kernel):
    """Launches go to the stream that is current, one that waits for its operands."""
    a, b = of(kernel, 512, 640, 768)
    want = tritemm.matmul(a, b, kernel=kernel.name)
    tritemm.matmul(a, b, kernel=kernel.name)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for stream in streams * 2:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            late = a * 1  # not there before the sleep is over
            results.append(tritemm.matmul(late, b, kernel=kernel.name))
    torch.cuda.synchronize()
    assert all(torch.equal(c, want) for c in results)


@rungs
def test_threads(kernel):
    """Each thread has a stream and shapes of its own; products are made and used at once."""
    tritemm.matmul(*of(kernel, 64, 256, 512), kernel=kernel.name)
    fast_path.KNOWN.clear()

    def work(seed):
        torch.cuda.set_device(0)
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(30):
                a, b = of(kernel, 64 * (1 + (step + seed) % 5), 256, 512)
                c = tritemm.matmul(a, b, kernel=kernel.name)
                torch.cuda.current_stream().synchronize()
                assert_right(c, a, b)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


@rungs
def test_graph_with_other_work_between(kernel):
    """A graph keeps its addresses and counters while eager calls come and go."""
    a, b = of(kernel, 300, 320, 256)
    out = tritemm.matmul(a, b, kernel=kernel.name)
    others = [of(kernel, *size) for size in SIZES]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            tritemm.matmul(a, b, kernel=kernel.name, out=out)
        inner = tritemm.matmul(a, b, kernel=kernel.name)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        out.fill_(torch.nan)
        graph.replay()
        for x, y in others:
            assert_right(tritemm.matmul(x, y, kernel=kernel.name), x, y)
        assert_right(out, a, b)
        assert torch.equal(inner, out)


@rungs
def test_memory_that_is_freed_and_reused(kernel):
    """The same addresses come back with other shapes, strides and alignments."""
    arena = torch.empty(3 * 2**20, dtype=typed(kernel, torch.bfloat16), device="cuda")
    for offset in (0, 8, 1, 0):
        for M, N, K in ((256, 512, 384), (512, 256, 384), (384, 512, 256), (300, 264, 200)):
            a = arena[offset : offset + M * K].view(M, K)
            b = arena[2**20 + offset : 2**20 + offset + K * N].view(K, N)
            c = arena[2**21 + offset : 2**21 + offset + M * N].view(M, N)
            a.normal_()
            b.normal_()
            c.fill_(torch.nan)
            if kernel.why_not(Problem.of(a, b, c)):
                continue
            for _ in range(2):
                assert_right(tritemm.matmul(a, b, kernel=kernel.name, out=c), a, b)


@rungs
def test_a_name_that_moved(kernel, monkeypatch):
    """Without a private name of Triton's, its own launch is used, with the same result."""
    a, b = of(kernel, 256, 512, 384)
    want = tritemm.matmul(a, b, kernel=kernel.name)
    binding._CALLS.clear()
    binding._LOADED.clear()
    fast_path.KNOWN.clear()
    monkeypatch.setattr(triton_private, "_c_function", lambda launch: launch.no_such_name)
    count = calls_of(monkeypatch)
    for _ in range(2):
        assert torch.equal(tritemm.matmul(a, b, kernel=kernel.name), want)
    assert not count


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("pack", ["", "a", "b", "ab"])
def test_packed_and_swapped(pack, swap, monkeypatch):
    a = operand(200, 501 if "a" in pack else 504, torch.bfloat16)[:, :496]
    b = operand(496, 333 if "b" in pack else 336, torch.bfloat16)[:, :328]
    config = tritemm.Config(64, 64, 64, num_stages=3, ORDER="grouped", SWAP=swap, PACK=pack)
    options = {"kernel": "tma", "config": config}
    first = tritemm.matmul(a, b, **options)
    assert_right(first, a, b)
    count = calls_of(monkeypatch)
    for call in range(1, 4):
        a.copy_(torch.randn_like(a))
        assert_right(tritemm.matmul(a, b, **options), a, b)
        assert len(count) >= call


@rungs
def test_a_result_on_another_address(kernel):
    """The alignment of `out` alone differs from call to call; what lies around it stays."""
    a, b = of(kernel, 200, 256, 192)
    storage = torch.empty(200 * 256 + 32, dtype=a.dtype, device="cuda")
    for offset in (8, 9, 8, 12, 16, 1):
        for _ in range(2):
            storage.fill_(torch.nan)
            out = storage[offset : offset + 200 * 256].view(200, 256)
            tritemm.matmul(a, b, kernel=kernel.name, out=out)
            assert_right(out, a, b)
            assert storage[:offset].isnan().all() and storage[offset + out.numel() :].isnan().all()


@pytest.mark.parametrize("recorded", [False, True])
def test_accumulators_are_kinds(recorded):
    """Steps of 16 terms add 1 to 2048, which fp16 can't hold."""
    row = torch.zeros(16 * 65, dtype=torch.float16, device="cuda")
    row[:16], row[16::16] = 128, 1
    a, b = row.expand(128, -1).contiguous(), torch.ones(row.numel(), 128, device="cuda").half()
    a.requires_grad_(recorded)
    kinds = [torch.float16, None, torch.float16, torch.float32]
    found = [tritemm.matmul(a, b, kernel="tma", accumulate=kind) for kind in kinds]
    for kind, c in zip(kinds, found, strict=True):
        assert (c != 2048 + 64).any() == (kind == torch.float16), kind


def test_captures_do_not_share_their_counters():
    """Two graphs that one stream captured run at once, each replay beside the other's."""
    a, b = operands(64, 256, 16384)
    want = tritemm.matmul(a, b, kernel="split_k")
    torch.cuda.synchronize()
    captured, streams = torch.cuda.Stream(), [torch.cuda.Stream() for _ in "ab"]
    graphs, sets = [], set()
    for _ in streams:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=captured):
            results = [tritemm.matmul(a, b, kernel="split_k") for _ in range(10)]
        graphs.append((graph, results))
        sets.add(workspace._captures[a.get_device(), captured.cuda_stream][1].data_ptr())
    assert len(sets) == len(graphs)
    for _ in range(20):
        for stream, (graph, results) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                for result in results:
                    result.fill_(torch.nan)
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(c, want) for _, results in graphs for c in results)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_gradients_are_as_precise_as_asked(precision):
    """Whatever torch's flag says, which is the opposite here."""
    torch.backends.cuda.matmul.fp32_precision = {"ieee": "tf32", "tf32": "ieee"}[precision]
    a, b = (t.requires_grad_() for t in operands(192, 256, 320, torch.float32))
    grad = torch.randn(192, 256, device="cuda")
    found = []
    for _ in range(4):  # the first by the operators, later ones prepared
        c = tritemm.matmul(a, b, precision=precision)
        found.append(torch.autograd.grad(c, (a, b), grad))
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    for call, gradients in enumerate(found):
        factors = (grad, b.detach().mT), (a.detach().mT, grad)
        for got, (x, y) in zip(gradients, factors, strict=True):
            assert budget.check(got, x, y).ok == (precision == "ieee"), call
            assert_right(got, x, y, precision=precision)


LAYOUTS = {
    "NN": ((192, 256), (256, 320), "NN"),
    "NT, as a linear layer": ((192, 256), (256, 320), "NT"),
    "TN": ((192, 256), (256, 320), "TN"),
    "a batch of rows": ((2, 96, 256), (256, 320), "NT"),
    "two batches": ((2, 96, 256), (2, 256, 320), "NN"),
    "odd pitches": ((65, 255), (255, 131), "NT"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_every_layout(layout, monkeypatch):
    """The first by the operators, later ones prepared; each laid out as its operand."""
    worked_out, gradient = [], derivatives._gradient
    monkeypatch.setattr(
        derivatives, "_gradient", lambda *args: worked_out.append(0) or gradient(*args)
    )
    a_shape, b_shape, stored = LAYOUTS[layout]

    def leaf(shape, how):
        values = torch.randint(-2, 3, shape, device="cuda").bfloat16()
        return (values.mT.contiguous().mT if how == "T" else values).requires_grad_()

    a, b = leaf(a_shape, stored[0]), leaf(b_shape, stored[1])
    for call in range(4):
        c = tritemm.matmul(a, b)
        grad = torch.randint(-2, 3, c.shape, device="cuda").bfloat16()
        got = torch.autograd.grad(c, (a, b), grad)
        x, y = (t.detach().double().requires_grad_() for t in (a, b))
        want = torch.autograd.grad(x @ y, (x, y), grad.double())
        for ours, exact, operand_ in zip(got, want, (a, b), strict=True):
            assert torch.equal(ours.double(), exact.bfloat16().double()), call
            assert ours.stride() == operand_.stride()
        if call == 1:
            worked_out.clear()
    assert not worked_out  # the last two calls only launch


def test_graph_trees():
    """mode="reduce-overhead": workspaces, packed operands and gradients in memory of its pool."""
    a, b = (
        torch.randint(-2, 3, shape, device="cuda").bfloat16() for shape in ((64, 4096), (4096, 64))
    )
    odd = torch.randint(-2, 3, (64, 77), device="cuda").bfloat16()
    w = torch.randint(-1, 2, (64, 64), device="cuda").bfloat16().requires_grad_()

    def function(x):
        y = tritemm.matmul(x, b, kernel="split_k") + tritemm.matmul(x[:1], b, kernel="gemv")
        return tritemm.matmul(y * 0 + 1, w) + tritemm.matmul(w, odd).sum()

    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    want = function(a)
    (want_w,) = torch.autograd.grad(want.sum(), w)
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(a)
        (got_w,) = torch.autograd.grad(got.sum(), w)
        assert torch.equal(got, want) and torch.equal(got_w, want_w)


def test_a_callers_pool_keeps_nothing():
    a, b = operands(64, 256, 8192)
    want = tritemm.matmul(a, b, kernel="split_k")
    workspace._streams.clear()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        got = tritemm.matmul(a, b, kernel="split_k")
    assert torch.equal(got, want)
    del got
    torch.cuda.synchronize()
    blocks = [block for segment in pool.snapshot() for block in segment["blocks"]]
    assert not any(block["state"] == "active_allocated" for block in blocks)


@pytest.mark.devices(1)
def test_every_device_gets_its_own_launch():
    for index in list(range(torch.cuda.device_count())) * 2:
        a = torch.randn(128, 256, device=torch.device("cuda", index)).bfloat16()
        c = tritemm.matmul(a, a.mT)
        assert c.device == a.device
        assert_right(c, a, a.mT)
    assert torch.cuda.current_device() == 0


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x_ptr + at, mask=at < count) + tl.load(y_ptr + at, mask=at < count)
    tl.store(z_ptr + at, total, mask=at < count)


def test_launch_of_any_kernel():
    """One tensor for two arguments at first, others later."""
    x, y = (torch.randn(1000, device="cuda") for _ in "xy")
    for left, right in ((x, x), (x, y), (y, x), (y, y)):
        z = torch.full_like(x, torch.nan)
        tensors = {"x_ptr": left, "y_ptr": right, "z_ptr": z}
        binding.launch("sum", add_kernel, (4,), {"count": 1000, "BLOCK": 256}, {}, tensors)
        assert torch.equal(z, left + right)
    assert binding._CALLS[add_kernel, "sum", 0] is not None


def test_counters_are_zero_again():
    """After every rung that uses them, in some of its configs, eager and captured."""
    a, b = operands(64, 256, 8192)
    c = torch.empty(64, 256, dtype=a.dtype, device="cuda")
    problem = Problem.of(a, b, c)
    for kernel in RUNGS:
        if kernel.workspace is None or kernel.why_not(problem):
            continue
        for config in drawn(kernel.configs(problem), 3):
            plan.run(kernel, problem, config, a, b, c)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                plan.run(kernel, problem, config, a, b, c)
            graph.replay()
    torch.cuda.synchronize()
    used = [*workspace._streams.values(), *(slab._zeros for slab in workspace._slabs.values())]
    assert not any(t.any() for t in used)
