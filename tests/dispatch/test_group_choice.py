"""Which kernel and config groups get on an H200, of whose sizes the host knows the sum."""

import dataclasses

import pytest
import torch

from tests.dispatch.choosing import H100, H200
from tritemm import dispatch
from tritemm.arch.roles import config_of
from tritemm.dispatch.cost_model.model import predict
from tritemm.dispatch.request import why_not
from tritemm.problem import Problem
from tritemm.rungs import find

BF16, FP32, INT8 = torch.bfloat16, torch.float32, torch.int8
pytestmark = pytest.mark.host


@pytest.mark.parametrize("tokens", [1, 64, 4096, 32768])
@pytest.mark.parametrize("dtype", [BF16, FP32, INT8], ids=str)
def test_there_is_a_choice_for_every_layer(tokens, dtype):
    for experts, k, hidden, inner in ((8, 2, 4096, 14336), (384, 8, 7168, 2048), (1024, 4, 72, 40)):
        x = torch.empty(tokens * k, hidden, dtype=dtype, device="meta")
        w = torch.empty(experts, inner, hidden, dtype=dtype, device="meta").mT
        c = torch.empty(tokens * k, inner, dtype=dtype, device="meta")
        for a, b, out, form in ((x, w, c, "m"), (c, w.mT, x, "m"), (x.mT, c, w, "k")):
            out = out.to(torch.int32) if dtype == INT8 else out
            problem = Problem.of(a, b, out, groups=form, device=H200)
            choice = dispatch.choose(problem)
            view = choice.config.view(problem)
            assert choice.kernel.why_not(view) is None
            assert f"{experts} groups along {form.upper()}" in str(choice)
            assert dispatch.choose(problem, "auto/batch_invariant").config.SPLIT_K == 1


@pytest.mark.parametrize(
    ("K", "rung", "depth"),
    [(1, "pingpong", 16), (8, "pingpong", 16), (9, "pingpong", 32), (32, "pingpong", 32),
     (33, "pingpong", 64)],
)  # fmt: skip
def test_the_shorter_groups_are_the_shorter_is_a_step(K, rung, depth):
    choice = dispatch.choose(weights(2048, 768, K))
    assert (choice.kernel.name, choice.config.BLOCK_K) == (rung, depth)
    view = choice.config.view(choice.problem)
    assert why_not(choice.kernel, view, choice.config) is None
    wrong = dataclasses.replace(choice.config, BLOCK_K=8)
    reason = why_not(choice.kernel, view, wrong)
    assert reason == "BLOCK_K is 8; 16, 32, 64, 128, 256 are possible"


@pytest.mark.parametrize("K", [8, 32, 100])
@pytest.mark.parametrize("sizes", [(16, 4096), (2048, 64), (64, 64)], ids=str)
def test_short_groups_of_few_rows_or_columns_have_the_tiles_that_fit_these(sizes, K):
    config = dispatch.choose(weights(*sizes, K)).config
    assert min(config.BLOCK_M, config.BLOCK_N) == 64 == config.BLOCK_K


@pytest.mark.parametrize(("groups", "kinds"), [("", 1), ("m", 3)])
def test_a_number_is_compiled_of_groups_that_warps_count_and_not_of_batches(groups, kinds):
    shapes = set()
    for batch in (40, 70, 200):
        rows = (4096,) if groups else (batch, 4096)
        a, c = (torch.empty(*rows, n, dtype=BF16, device="meta") for n in (512, 256))
        b = torch.empty(batch, 512, 256, dtype=BF16, device="meta")
        problem = Problem.of(a, b, c, groups=groups, device=H200)
        tile = find("warp_specialized").limits.tile(problem, config_of(128, 256, 64, 8, 3))
        shapes.add(tile.shape)
    assert len(shapes) == kinds


def test_the_parts_of_k_are_no_parts_of_groups():
    asked = weights(2048, 768, 4096)
    config = dataclasses.replace(config_of(128, 128, 64, 8, 4), PARTS=4)
    reason = why_not(find("warp_specialized"), asked, config)
    assert reason == "PARTS is 4; with groups it must be 1, for each has its own K"


def test_a_wave_that_equal_groups_would_fill_is_not_what_groups_take():
    """Eight groups of 128 rows are 128 tiles of 128 x 256, for 132 SMs; of other sizes, more."""
    batch, rows = (8, 128), (8 * 128,)
    w = torch.empty(8, 4096, 14336, dtype=BF16, device="meta").mT
    took = {}
    for groups, lead in (("", batch), ("m", rows)):
        x, c = (torch.empty(*lead, n, dtype=BF16, device="meta") for n in (14336, 4096))
        problem = Problem.of(x, w, c, groups=groups, device=H200)
        for name, tile in (("wave", (128, 256, 64, 8, 3)), ("small", (64, 256, 64, 4, 4))):
            took[name, groups] = predict(find("warp_specialized"), problem, config_of(*tile))
    assert took["wave", ""] < took["small", ""]
    assert took["wave", "m"] > took["small", "m"]


@pytest.mark.parametrize("device", [H100, H200], ids=lambda device: device.name)
@pytest.mark.parametrize("shared", [False, True])
def test_more_groups_than_rows_take_no_absurd_time(device, shared):
    """No more weights are read than there are rows, so that more rows take no less."""
    problems = []
    for rows, count in ((1, 128), (4, 128), (64, 128), (64, 5000)):
        x, c = (torch.empty(rows, n, dtype=BF16, device="meta") for n in (2048, 768))
        w = torch.empty(count, 2048, 768, dtype=BF16, device="meta")
        w = w[:1].expand_as(w) if shared else w
        problems.append(Problem.of(x, w, c, groups="m", device=device))
    choices = [dispatch.choose(problem) for problem in problems]
    took = [choice.predicted for choice in choices]
    assert took == sorted(took) and took[3] < 5 * took[2]
    assert all(choice.roofline <= choice.predicted for choice in choices)
    read = problems[0].bytes - 2 * (2048 + 768)
    assert read == 2 * 2048 * 768  # one row, of one expert


def weights(M, N, K):
    """64 gradients of weights, of K tokens each, on an H200."""
    a = torch.empty(64 * K, M, dtype=BF16, device="meta").mT
    b = torch.empty(64 * K, N, dtype=BF16, device="meta")
    c = torch.empty(64, M, N, dtype=BF16, device="meta")
    return Problem.of(a, b, c, groups="k", device=H200)
