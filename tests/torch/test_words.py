"""What callers are told: in the names of the function that they called, with what there is."""

import functools
import re
import typing

import pytest
import torch
from torch import nn

import tritemm
from tests.harness import DEVICE
from tritemm import dtypes, problem
from tritemm.api.arguments import Options
from tritemm.rungs import RUNGS

#: What functions call their tensors.
NAMES = {"input", "other", "weight", "mat1", "mat2", "batch1", "batch2", "vec", "residual", "bias"}


def ones(*shape, **options):
    return torch.ones(*shape, device=DEVICE, **options)


def calls():
    """Function, the names of two operands, their shapes, and a call of both."""
    two = (2, 3), (3, 4)
    equation = "mk,kn->mn"
    for name, sum_of in (("addmm", tritemm.addmm), ("baddbmm", tritemm.baddbmm)):
        names, shapes = ("mat1", "mat2"), two
        if name == "baddbmm":
            names, shapes = ("batch1", "batch2"), ((5, 2, 3), (5, 3, 4))
        for beta in (0, 1):
            call = functools.partial(sum_of, ones(2, 4), beta=beta)
            yield f"{name}, beta {beta}", (*names, "input"), shapes, call
    yield "matmul", ("input", "other"), two, tritemm.matmul
    yield "tune", ("input", "other"), two, tritemm.tune
    yield "explain", ("input", "other"), two, tritemm.explain
    yield "mv", ("input", "vec"), ((2, 3), (3,)), tritemm.mv
    yield "linear", ("input", "weight"), ((2, 3), (4, 3)), tritemm.linear
    biased = functools.partial(tritemm.linear, bias=ones(4))
    yield "linear with a bias", ("input", "weight", "bias"), ((2, 3), (4, 3)), biased
    sharded = functools.partial(tritemm.row_parallel_linear, parts=1)
    yield "row_parallel_linear", ("input", "weight"), ((2, 3), (4, 3)), sharded
    yield "einsum", ("a", "b"), two, functools.partial(tritemm.einsum, equation)


FAULTS = {
    "no tensor": lambda t: 3,
    "type": lambda t: t.half(),
    "device": lambda t: t.to("meta"),
    "layout": lambda t: t.to_sparse(),
    "no dimensions": lambda t: t.sum(),
    "terms": lambda t: ones(*(size + 7 * (size == 3) for size in t.shape)),
}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", [pytest.param(c[1:], id=c[0]) for c in calls()])
def test_only_names_that_the_function_has(call, fault, which):
    names, shapes, function = call
    tensors = [ones(*shape) for shape in shapes]
    tensors[which] = FAULTS[fault](tensors[which])
    with pytest.raises((RuntimeError, TypeError)) as error:  # NotImplementedError is the first
        function(*tensors)
    told = str(error.value)
    words = set(re.findall(r"[a-z_0-9]+", told))
    assert not words & (NAMES - set(names)), told
    of_shapes = "einsum" in told or "shape" in told  # in torch's words, by subscripts
    assert of_shapes or words & set(names[:2]), told


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: tritemm.linear(x, ones(5, 4)), r"input \(2, 3\) and weight \(5, 4\) cannot be"),
        (lambda x: tritemm.addmm(ones(7), x, x.mT), "input has shape .7., which can't be broadc"),
        (lambda x: tritemm.addmm(ones(2, 2).half().to("meta"), x, x.mT), "but input is on meta"),
        (lambda x: tritemm.linear(x, x, out=3), "^out must be Tensor, not int"),
        (lambda x: tritemm.mv(x, x[0], foo=3), r"^mv\(\) got an unexpected keyword argument 'foo'"),
        (lambda x: tritemm.addmm(x, x, x.mT, foo=3), r"^addmm\(\) got an unexpected keyword arg"),
        (lambda x: tritemm.einsum("mk,nk->mn", x, x, bias=x), r"^einsum\(\) got an unexpected key"),
        (lambda x: tritemm.einsum("mk,nk", x, None), r"'b' \(position 3\) must be Tensor, not Non"),
        (lambda x: tritemm.einsum("ii,ij->j", x[:1], x), "repeated"),
        (lambda x: tritemm.matmul(x, x.mT, batch_invariant="no"), "^batch_invariant must be True"),
        (lambda x: tritemm.enable(batch_invariant="no"), "^batch_invariant must be True or False"),
        (lambda x: tritemm.enable(precision="fast"), "precision='fast' is unknown"),
        (
            lambda x: tritemm.enabled(batch_invariant=2).__enter__(),
            "^batch_invariant must be True or",
        ),
        (
            lambda x: tritemm.set_batch_invariant_mode("yes").__enter__(),
            "^enabled must be True or Fa",
        ),
        (lambda x: tritemm.warmup(nn.Linear(4, 4)), "^warmup takes a list .*, not Linear$"),
        (lambda x: tritemm.warmup(x), "^warmup takes a list .*, not Tensor$"),
        (lambda x: tritemm.warmup((64, 64, 64)), "^64 is not a problem; warmup takes a list of"),
        (lambda x: tritemm.warmup("NT"), "^'N' is not a problem; warmup takes a list of"),
        (
            lambda x: tritemm.warmup([(4, 4, 4)], layout="nt"),
            "^layout='nt' is unknown; one of NN, ",
        ),
    ],
)
def test_words(call, told):
    with pytest.raises((RuntimeError, TypeError, ValueError), match=told):
        call(ones(2, 3))


@pytest.mark.parametrize("biased", [False, True])
def test_names_in_compiled_code(biased):
    bias = ones(5) if biased else None
    layer = torch.compile(lambda x, w: tritemm.linear(x, w, bias), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="cannot be multiplied") as error:  # one of Dynamo's
        layer(ones(2, 3), ones(5, 4))
    assert not re.search(r"\bother \(", str(error.value))


@pytest.mark.host
def test_options_are_told_to_type_checkers():
    """As the words that are accepted, each in one place."""
    activations = (*filter(None, problem.ACTIVATIONS), *problem.GATED)
    words = {
        "kernel": ("auto", *(rung.name for rung in RUNGS)),
        "precision": dtypes.PRECISIONS,
        "activation": activations,
    }
    by_name = tritemm.linear, tritemm.explain, tritemm.warmup
    for function in (tritemm.matmul, Options, tritemm.tune, *by_name):
        hints = typing.get_type_hints(function)
        for name in words.keys() & hints.keys():
            (literal,) = [t for t in typing.get_args(hints[name]) if typing.get_origin(t)]
            assert typing.get_origin(literal) is typing.Literal
            assert typing.get_args(literal) == words[name], (function, name)
    assert Options.__annotations__.keys() >= words.keys() - {"activation"} | {"batch_invariant"}
    sums = tritemm.addmm, tritemm.baddbmm, tritemm.mv, tritemm.einsum, tritemm.syrk
    for function in (*sums, *by_name):
        assert typing.get_args(typing.get_type_hints(function)["options"]) == (Options,)


@pytest.mark.host
def test_what_is_public():
    assert dir(tritemm) == sorted([*tritemm.__all__, "__version__"])
    assert all(hasattr(tritemm, name) for name in dir(tritemm))
