"""The tutorial: a page for each rung with all its parts, and exercises that check what they ask."""

import re

import pytest

from docs import exercises
from docs.exercises.__main__ import main
from docs.lessons import LESSONS, instructions, measured
from docs.lessons.pages import FOLDER, PARTS, address
from tritemm.rungs import RUNGS, STEPS

pytestmark = pytest.mark.host

rungs = pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)
asked = pytest.mark.parametrize("rung", exercises.every())


def test_lessons_follow_the_ladder():
    assert [lesson.rung for lesson in LESSONS] == [kernel.name for kernel in RUNGS]
    places = {kernel.name: place for place, kernel in enumerate(RUNGS)}
    for lesson in LESSONS:
        assert lesson.below is None or places[lesson.below] < places[lesson.rung]
        assert set(lesson.counters) <= set(measured.LABELS)


@rungs
def test_a_page_has_every_part(kernel):
    text = (FOLDER / f"{address(kernel)}.md").read_text()
    assert text.startswith(f"# {kernel.number:02} {kernel.name}")
    for part in PARTS:
        assert text.count(f"<!-- begin: {part} -->") == 1


def test_instructions_are_of_these_sources():
    assert instructions.stale() == [], "run `python -m docs.lessons instructions`"


@rungs
def test_the_signs_are_among_the_instructions(kernel):
    entry = instructions.load()[f"triton {kernel.name}"]
    present, absent = kernel.signs.get(90, kernel.signs[max(kernel.signs)])
    for sign in present:
        assert any(line.startswith(sign) for line in entry["lines"])
    assert not set(absent) & set(entry["counts"])


@asked
def test_a_solution_is_right(rung):
    exercises.find(rung).check(exercises.find(rung).answer)


@asked
def test_a_wrong_answer_is_told(rung):
    exercise = exercises.find(rung)
    assert exercise.WRONG
    for function in exercise.WRONG:
        with pytest.raises(exercises.Wrong, match=r"\w+ .*\.$"):
            exercise.check(function)


@asked
def test_the_page_says_the_question_and_what_to_write(rung):
    (kernel,) = (kernel for kernel in RUNGS if kernel.name == rung)
    text = (FOLDER / f"{address(kernel)}.md").read_text()
    assert exercises.question(rung).splitlines()[0] in text
    assert f"python -m docs.exercises {rung} answer.py" in text
    assert exercises.solution(rung) in text


@asked
def test_the_command_checks_a_file(rung, tmp_path, capsys):
    """As the page says: the solution is right when it is written down, and nothing else."""
    file = tmp_path / "answer.py"
    file.write_text(exercises.solution(rung))
    assert main([rung, str(file)]) == 0
    assert capsys.readouterr().out == "Right.\n"
    file.write_text(f"def {exercises.signature(rung)}:\n    ...\n")
    assert main([rung, str(file)]) == 1
    assert capsys.readouterr().out.startswith("Not yet. ")


def test_the_command_lists_asks_and_refuses(tmp_path, capsys):
    assert main([]) == 0
    assert re.findall(r"^\w+", capsys.readouterr().out, re.M) == exercises.every()
    assert main(["tiled"]) == 0
    assert "answer(M" in capsys.readouterr().out
    assert main(["tiled", str(tmp_path / "none.py")]) == 2
    (tmp_path / "empty.py").write_text("")
    assert main(["tiled", str(tmp_path / "empty.py")]) == 2
    assert "has no function `answer`" in capsys.readouterr().err


def test_every_step_has_an_exercise():
    assert exercises.every() == [kernel.name for kernel in RUNGS]
    assert len(STEPS) <= len(RUNGS)
