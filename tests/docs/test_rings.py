"""The tables of buffers on the pages of the rings, against the rungs' own loops."""

import pytest

from docs.exercises import loops
from docs.lessons import FOLDER

pytestmark = pytest.mark.host

STEPS = 12


def row(rung, stages, step):
    """| buffers | step | fills | multiplies | in flight when the step waits |"""
    clock = loops.run(rung, STEPS, 1300, 700, stages)
    ahead = stages - 1
    before = rung == "async_stages"  # a wait in front of the loop
    flying = clock.flying[step + before]
    words = f"of step{'s' * (len(flying) > 1)} {', '.join(map(str, flying))}"
    fills = f"{clock.filled[step + ahead]}, for step {step + ahead}"
    return f"| {stages} | {step} | {fills} | {clock.multiplied[step]} | {words} |"


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("step", [0, 1])
def test_the_ring(stages, step):
    page = (FOLDER / "07_async_stages.md").read_text()
    assert f"\n{row('async_stages', stages, step)}\n" in page


@pytest.mark.parametrize("step", [0, 1, 2])
def test_two_buffers(step):
    page = (FOLDER / "07_async_pg2s.md").read_text()
    assert f"\n{row('async_pg2s', 2, step)}\n" in page


@pytest.mark.parametrize("step", range(STEPS - 4))
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_step_multiplies_what_was_copied_for_it(stages, step):
    clock = loops.run("async_stages", STEPS, 1300, 700, stages)
    assert clock.filled[step] == clock.multiplied[step]
