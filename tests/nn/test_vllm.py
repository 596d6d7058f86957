"""The plugin for vLLM, which can't be installed here.

The stand-in below has names, signatures and calls as vLLM 0.33.0's wheel has them: vllm/envs.py,
vllm/platforms, vllm/model_executor/parameter.py and layers/{utils,linear,vocab_parallel_embedding}.
"""

import functools
import importlib.metadata
import os
import re
import sys
import types

import pytest
import torch
from torch import nn

from perf.machine import ROOT
from tests.harness import DEVICE
from tritemm import vllm_plugin

pytestmark = pytest.mark.once


class ModelWeightParameter(nn.Parameter):
    """As BasevLLMParameter: a subclass whose __torch_function__ is a method of its own."""

    def __new__(cls, data, **kwargs):
        return super().__new__(cls, data=data, requires_grad=False)

    def __init__(self, data, weight_loader):
        self._weight_loader = weight_loader

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def module(name, **names):
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


@pytest.fixture
def vllm(monkeypatch):
    """vLLM, as far as it is asked, and what ran there of its own: `ran`."""
    ran = []
    envs = module("vllm.envs", VLLM_BATCH_INVARIANT=False, environment_variables={})
    platforms = module("vllm.platforms", current_platform=types.SimpleNamespace())
    platforms.current_platform.is_cuda = lambda: True
    utils = module("vllm.model_executor.layers.utils")
    linear = module("vllm.model_executor.layers.linear")
    head = module("vllm.model_executor.layers.vocab_parallel_embedding")

    def default_unquantized_gemm(layer, x, weight, bias=None):
        ran.append("default_unquantized_gemm")
        return nn.functional.linear(x, weight, bias)

    def flashinfer(layer, x, weight, bias=None, *, vllm_backend, pdl):
        ran.append(vllm_backend)
        return nn.functional.linear(x, weight, bias)

    def dispatch_unquantized_gemm(linear_backend="auto"):
        if linear_backend == "flashinfer_cutedsl":
            return functools.partial(flashinfer, vllm_backend=linear_backend, pdl=False)
        return utils.default_unquantized_gemm

    def linear_batch_invariant(input, weight, bias=None):
        ran.append("linear_batch_invariant")
        return nn.functional.linear(input, weight, bias)

    class UnquantizedLinearMethod:
        def __init__(self, linear_backend="auto"):  # which vLLM finds in its config
            self._gemm_impl = dispatch_unquantized_gemm(linear_backend)

        def apply(self, layer, x, bias=None):
            if envs.VLLM_BATCH_INVARIANT:
                return linear.linear_batch_invariant(x, layer.weight, bias)
            return self._gemm_impl(layer, x, layer.weight, bias)

    class UnquantizedEmbeddingMethod:
        def apply(self, layer, x, bias=None):
            if envs.VLLM_BATCH_INVARIANT:
                return head.linear_batch_invariant(x, layer.weight, bias)
            return dispatch_unquantized_gemm()(layer, x, layer.weight, bias)

    utils.default_unquantized_gemm = default_unquantized_gemm
    utils.dispatch_unquantized_gemm = dispatch_unquantized_gemm
    for each in (linear, head):
        each.linear_batch_invariant = linear_batch_invariant
    linear.UnquantizedLinearMethod = UnquantizedLinearMethod
    head.UnquantizedEmbeddingMethod = UnquantizedEmbeddingMethod
    layers = module(
        "vllm.model_executor.layers", utils=utils, linear=linear, vocab_parallel_embedding=head
    )
    top = module("vllm", envs=envs, platforms=platforms, ran=ran, utils=utils, layers=layers)
    for each in (top, envs, platforms, module("vllm.model_executor"), layers, utils, linear, head):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setenv("TRITEMM_VLLM", "1")
    return top


def methods(vllm):
    layers = vllm.layers
    made = layers.linear.UnquantizedLinearMethod, layers.vocab_parallel_embedding
    return made[0](), made[1].UnquantizedEmbeddingMethod()


def layer_of(dtype=torch.float32, kind=ModelWeightParameter):
    layer = nn.Module()
    weight = torch.randn(24, 32, device=DEVICE, dtype=dtype)
    layer.weight = kind(weight, weight_loader=None) if kind is ModelWeightParameter else weight
    return layer


def test_the_entry_point_is_the_function():
    heading = r'\[project.entry-points."vllm.general_plugins"\]\n(\w+) = "(.*)"\n'
    (told,) = re.findall(heading, (ROOT / "pyproject.toml").read_text())
    point = importlib.metadata.EntryPoint(*told, "vllm.general_plugins")
    assert (point.name, point.load()) == ("tritemm", vllm_plugin.register)


@pytest.mark.parametrize(
    ("own", "plugins", "wanted"),
    [
        (None, None, False), ("0", None, False), ("", None, False), ("1", None, True),
        (None, "", False), (None, "other", False), (None, "other,tritemm", True),
        ("0", "tritemm", False), ("1", "other", True), ("", "tritemm", True),
    ],
)  # fmt: skip
def test_who_does_not_ask_gets_nothing(vllm, monkeypatch, own, plugins, wanted):
    for name, value in (("TRITEMM_VLLM", own), ("VLLM_PLUGINS", plugins)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    before = vllm.utils.default_unquantized_gemm
    assert vllm_plugin.asked(os.environ) is wanted
    vllm_plugin.register()
    assert (vllm.utils.default_unquantized_gemm is not before) is wanted
    assert list(vllm.envs.environment_variables) == ["TRITEMM_VLLM"] * wanted


def test_layers_and_the_head_multiply_by_tritemm(vllm, monkeypatch):
    given = []
    real = vllm_plugin.linear

    def spy(x, weight, bias=None, **options):
        given.append((type(weight), options))
        return real(x, weight, bias, **options)

    monkeypatch.setattr(vllm_plugin, "linear", spy)
    vllm_plugin.register()
    vllm_plugin.register()  # vLLM may load a plugin more than once
    layer, x = layer_of(), torch.randn(5, 32, device=DEVICE)
    for bias in (None, torch.randn(24, device=DEVICE)):
        want = nn.functional.linear(x, layer.weight.data, bias)
        for invariant in (False, True):
            monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", invariant)
            for method in methods(vllm):
                torch.testing.assert_close(method.apply(layer, x, bias), want)
                options = {"batch_invariant": True} if invariant else {}
                assert given.pop() == (torch.Tensor, options) and not given
    assert vllm.ran == []


def test_rows_are_the_same_in_any_batch(vllm, monkeypatch):
    vllm_plugin.register()
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    layer, x = layer_of(torch.bfloat16), torch.randn(40, 32, device=DEVICE, dtype=torch.bfloat16)
    for method in methods(vllm):
        whole = method.apply(layer, x)
        assert torch.equal(method.apply(layer, x[7:8]), whole[7:8])
    assert vllm.ran == []


def test_in_one_graph(vllm):
    """vLLM compiles a model whole, with any number of rows."""
    vllm_plugin.register()
    layer, (method, _) = layer_of(), methods(vllm)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with torch.no_grad():
        compiled = torch.compile(
            lambda x: method.apply(layer, x), fullgraph=True, dynamic=True, backend=backend
        )
        for rows in (5, 9):
            x = torch.randn(rows, 32, device=DEVICE)
            want = nn.functional.linear(x, layer.weight.data)
            torch.testing.assert_close(compiled(x), want)
    (graph,) = graphs
    assert "torch.ops.tritemm." in graph.print_readable(print_output=False)
    assert vllm.ran == []


def test_what_stays_with_vllm(vllm, monkeypatch):
    """A backend that the user names, types without a kernel, and other classes of weights."""
    vllm_plugin.register()
    x = torch.randn(5, 32, device=DEVICE)
    method = vllm.layers.linear.UnquantizedLinearMethod("flashinfer_cutedsl")
    method.apply(layer_of(), x)
    assert vllm.ran == ["flashinfer_cutedsl"]
    for invariant in (False, True):
        monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", invariant)
        for method in methods(vllm):
            method.apply(layer_of(torch.complex64), x.to(torch.complex64))
            method.apply(layer_of().to("meta"), x.to("meta"))
    assert vllm.ran[1:] == ["default_unquantized_gemm"] * 4 + ["linear_batch_invariant"] * 4


@pytest.mark.parametrize("moved", ["gone", "other parameters", "no CUDA"])
def test_another_vllm_is_left_alone(vllm, monkeypatch, caplog, moved):
    if moved == "gone":
        monkeypatch.delattr(vllm.layers.linear, "linear_batch_invariant")
    elif moved == "other parameters":
        other = lambda x, layer, bias=None: None  # noqa: E731
        monkeypatch.setattr(vllm.utils, "default_unquantized_gemm", other)
    else:
        vllm.platforms.current_platform.is_cuda = lambda: False
    before = [dict(vars(each)) for each in vars(vllm.layers).values() if hasattr(each, "__name__")]
    vllm_plugin.register()
    after = [dict(vars(each)) for each in vars(vllm.layers).values() if hasattr(each, "__name__")]
    assert before == after and vllm.envs.environment_variables == {}
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "stay as they are" in record.getMessage()
