"""Problems for GPUs that are not here, and stand-ins for rungs that can't run here."""

from __future__ import annotations

import dataclasses

import torch

from tritemm import dispatch
from tritemm.arch.descriptors import tma_why_not
from tritemm.dispatch import candidates, explain, selection
from tritemm.dispatch.cost_model import constants, model
from tritemm.problem import GATED, Device, Problem, stored
from tritemm.rungs import RUNGS, find
from tritemm.spec import Config, Kernel, Limits

H200 = Device("NVIDIA H200", (9, 0), 132, 232448)
H100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 132, 232448)
#: Of Hopper too, and nothing of it was measured.
GH200 = Device("NVIDIA GH200 480GB", (9, 0), 132, 232448)
A100 = Device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 166912)
L40S = Device("NVIDIA L40S", (8, 9), 142, 101376)
B200 = Device("NVIDIA B200", (10, 0), 148, 232448)


def matrix(rows, cols, layout, dtype, batch=()):
    return stored(torch.empty, *batch, rows, cols, layout=layout, dtype=dtype, device="meta")


def problem(M, N, K, layout="NT", dtype=torch.bfloat16, device=H200, batch=(), **options):
    """Of contiguous operands on a GPU that need not be here."""
    a, b = matrix(M, K, layout[0], dtype, batch), matrix(K, N, layout[1], dtype, batch)
    out = torch.int32 if dtype == torch.int8 else dtype
    columns = N // 2 if options.get("activation") in GATED else N
    return Problem.of(a, b, matrix(M, columns, "N", out, batch), device=device, **options)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Standin(Kernel):
    """A rung of which only the choice is asked for."""

    doc: str = "standin: a rung that is chosen and not run."
    place: int
    word: str

    @property
    def number(self):
        return self.place

    @property
    def name(self):
        return self.word


def tiles(*sizes, stages=4, warps=8, splits=(1,)):
    configs = tuple(
        Config(m, n, 64, num_warps=warps, num_stages=stages, ORDER="grouped", SPLIT_K=split)
        for m, n in sizes
        for split in splits
    )
    return lambda problem: configs


LARGE = tiles((128, 256), (128, 192), (128, 128))
SMALL = tiles((128, 8), (128, 16), (128, 64), (64, 64), (128, 128), splits=(1, 2, 4, 8, 16))


def hopper_rungs():
    """The pointer and TMA rungs that are here, and stand-ins for those of Hopper above them."""
    below = [rung for rung in RUNGS if rung.number < 10]
    above = [
        _standin("pingpong", LARGE, tma_why_not),
        _standin("split_k", SMALL, tma_why_not),
        _standin("gemv", tiles((1, 128), (8, 128), stages=1, splits=(1, 4, 16))),
    ]
    return (*below, *above)


def _standin(word, configs, *needs):
    rung = find(word)
    return Standin(place=rung.number, word=word, cost=rung.cost, limits=Limits(configs, needs))


def refusing(rung, sentence):
    """The rung, which refuses all problems with this sentence."""
    limits = dataclasses.replace(rung.limits, needs=(lambda problem: sentence,))
    return dataclasses.replace(rung, limits=limits)


def measured_parts(view, kernel, configs, **changed):
    """What is predicted by the constants of a GPU of which nothing was measured but these."""
    numbers = dataclasses.replace(constants.analytic(view.device), **changed)
    return [model.breakdown(kernel, view, config, numbers) for config in configs]


def known_rung(kernel, **fields):
    """The constants that say this of a rung, and else what is taken of one that was not timed."""
    return {"rungs": {kernel.name: constants.analytic(H200).rung(kernel)._replace(**fields)}}


def put_rungs(monkeypatch, rungs):
    """Make `rungs` the ladder that is chosen from."""
    for module in (candidates, explain, selection):
        monkeypatch.setattr(module, "RUNGS", tuple(rungs))
    dispatch.forget()
