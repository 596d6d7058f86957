"""Problems for GPUs that are not here, and ladders that are not the real one."""

from __future__ import annotations

import dataclasses

import torch

from tritemm import dispatch
from tritemm.dispatch import candidates, explain, selection
from tritemm.dispatch.cost_model import constants, model
from tritemm.problem import GATED, Device, Problem, stored

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
    """A problem of contiguous operands on a GPU that need not be here."""
    a, b = matrix(M, K, layout[0], dtype, batch), matrix(K, N, layout[1], dtype, batch)
    out = torch.int32 if dtype == torch.int8 else dtype
    columns = N // 2 if options.get("activation") in GATED else N
    return Problem.of(a, b, matrix(M, columns, "N", out, batch), device=device, **options)


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
