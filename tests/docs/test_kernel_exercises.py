"""Exercises in which a kernel is written: solutions are right, mistakes are told, loops end."""

import re
import subprocess
import sys

import pytest

from docs import excerpt, exercises
from docs.exercises import write
from docs.exercises.__main__ import main
from docs.exercises.write import advice, ahead, command
from docs.lessons import pages
from tests.docs.wrong_kernels import LOOPS, MISTAKES, RIGHT
from tritemm.rungs import RUNGS, find

# One worker runs them all, for one process checks all files.
pytestmark = [
    pytest.mark.host, pytest.mark.latest, pytest.mark.xdist_group("kernel exercises"),
]  # fmt: skip

#: By name, a rung and the text of a file of it.
FILES = {
    **{f"{rung} solution": (rung, write.solution(rung)) for rung in write.every()},
    **{f"{rung} start": (rung, write.start(rung)) for rung in write.every()},
    **{f"{case.rung} mistake {nth}": (case.rung, case.text()) for nth, case in enumerate(MISTAKES)},
    **{f"{case.rung} right {nth}": (case.rung, case.text()) for nth, case in enumerate(RIGHT)},
    "naive empty": ("naive", ""),
    "naive torn": ("naive", write.solution("naive").replace("):  # fmt", ":  # fmt")),
    "naive leaves": ("naive", "raise SystemExit(3)"),
    "naive other arguments": ("naive", write.solution("naive").replace("    M, N, K,\n", "")),
    # The last one, for the process dies with it.
    "naive dies": ("naive", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"),
}
asked = pytest.mark.parametrize("rung", write.every())


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What is said of each of the files; None: it is right."""
    folder, pairs = tmp_path_factory.mktemp("files"), []
    for name, (rung, text) in FILES.items():
        file = folder / f"{name.replace(' ', '_')}.py"
        file.write_text(text)
        pairs.append((rung, str(file)))
    return dict(zip(FILES, command.checked(pairs), strict=True))


def test_there_are_eight_and_more():
    assert len(write.every()) >= 8
    ladder = [kernel.name for kernel in RUNGS if kernel.name in write.every()]
    assert write.every() == [write.PRIMER, *ladder] and set(ladder) <= set(exercises.every())
    for rung in write.every():
        assert sum(case.rung == rung for case in MISTAKES) >= 3


@asked
def test_the_solution_is_right_and_the_start_is_wrong(rung, said):
    assert said[f"{rung} solution"] is None
    assert re.search(r"\w+.*\.$", said[f"{rung} start"])


@pytest.mark.parametrize("nth", range(len(MISTAKES)), ids=lambda nth: f"{MISTAKES[nth].rung}-{nth}")
def test_a_mistake_is_told(nth, said):
    sentence = said[f"{MISTAKES[nth].rung} mistake {nth}"]
    assert MISTAKES[nth].said in (sentence or "Right.")
    assert sentence.endswith(".")


@pytest.mark.parametrize("nth", range(len(RIGHT)), ids=lambda nth: f"{RIGHT[nth].rung}-{nth}")
def test_there_are_other_solutions(nth, said):
    assert said[f"{RIGHT[nth].rung} right {nth}"] is None


def test_a_file_that_has_no_kernel_is_told(said):
    assert said["naive empty"].startswith("The file has no function `naive_kernel`")
    assert re.search(r"^Line \d+: .+\.$", said["naive torn"])
    assert said["naive leaves"] == "Line 1: SystemExit: 3."
    assert "argument" in said["naive other arguments"]
    assert "ended by signal SIGSEGV" in said["naive dies"]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.rung)
def test_a_loop_that_never_ends_is_ended(loop, tmp_path):
    file = tmp_path / "loop.py"
    file.write_text(loop.text())
    (sentence,) = command.checked([(loop.rung, str(file))], seconds=2)
    assert re.fullmatch(
        r"It ran longer than 2 s, and was then in line \d+, `.*`\. Does a loop never end\?",
        sentence,
    )
    number, line = re.search(r"line (\d+), `(.*)`", sentence).groups()
    assert loop.text().splitlines()[int(number) - 1].strip() == line


@asked
def test_solution_and_start_differ_in_the_marked_parts_alone(rung):
    part = re.compile(r"^ *# --- your part.*?# --- end of your part$", re.MULTILINE | re.DOTALL)
    texts = write.solution(rung), write.start(rung)
    assert part.sub("", texts[0]) == part.sub("", texts[1]) and texts[0] != texts[1]
    for text in texts:
        assert "#|" not in text and "from ." not in text and "HINT" not in text
        compile(text, rung, "exec")
    assert all(line.strip() in texts[0] for line in write.parts(rung).splitlines())


def test_the_command_writes_asks_and_checks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["write", "primer"]) == 0
    assert write.question("primer") in capsys.readouterr().out
    assert (tmp_path / "my_primer.py").read_text() == write.start("primer")
    assert main(["write", "primer"]) == 2
    assert "is there already" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(command, "checked", lambda pairs: [f"{pairs}."])
        assert main(["write", "primer", "my_primer.py"]) == 1
    assert capsys.readouterr().out == "Not yet. [('primer', 'my_primer.py')].\n"
    (tmp_path / "my_primer.py").write_text(write.solution("primer"))
    assert main(["write", "primer", "my_primer.py"]) == 0
    assert capsys.readouterr().out == "Right.\n"
    assert main(["write", "primer", "--hint"]) == 0
    assert capsys.readouterr().out == f"{write.hint('primer')}\n"
    assert main(["write", "primer", "none.py"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_what_the_text_tells_is_told_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "checked", None)
    file, text = tmp_path / "mine.py", write.solution("naive")
    file.write_text(text.replace("naive_kernel", "naive_kernl"))
    assert main(["write", "naive", str(file)]) == 1
    assert "no function `naive_kernel`" in (said := capsys.readouterr().out)
    assert said.endswith("It has `naive_kernl`.\n")
    file.write_text(text.replace("):  # fmt", ":  # fmt"))
    assert main(["write", "naive", str(file)]) == 1
    assert re.fullmatch(r"Not yet\. Line \d+: .+\.\n", capsys.readouterr().out)
    monkeypatch.setattr(command, "NEEDS", ("torch", "no_such_package"))
    assert main(["write", "naive", str(file)]) == 2
    assert "has no no_such_package. Run the command from the repo" in capsys.readouterr().err


def test_a_chain_of_comparisons_is_told(tmp_path):
    """Triton 3.9 computes `0 <= offs < n` as blocks; older ones take a part for a truth value."""
    file = tmp_path / "mine.py"
    file.write_text(write.solution("primer").replace("offs < n", "0 <= offs < n"))
    at = next(i for i, line in enumerate(file.read_text().splitlines(), 1) if "0 <=" in line)
    assert "Combine two comparisons with `&`" in advice.Line(str(file), at).truth()


@asked
def test_no_file_is_refused_whose_kernels_are_there(rung, tmp_path):
    file = tmp_path / "mine.py"
    for text in (write.solution(rung), write.start(rung), "from elsewhere import *"):
        file.write_text(text)
        assert ahead.refused(rung, str(file)) is None


def test_a_check_says_on_a_terminal_that_it_takes_seconds(tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.py"
    file.write_text(write.start("naive"))
    monkeypatch.setattr(command, "checked", lambda pairs: [None])
    line = "Checking; the interpreter takes some seconds ...\n"
    for terminal, said in ((True, line), (False, "")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert main(["write", "naive", str(file)]) == 0
        assert capsys.readouterr().err == said


def test_the_command_itself_imports_nothing_that_takes_seconds():
    code = "import sys, docs.exercises.__main__ as it; it.main(['write', 'naive', '--hint'])"
    slow = "print(sorted({'torch', 'triton', 'tritemm', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{code}; {slow}"], cwd=command.ROOT,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == f"{write.hint('naive')}\n[]\n"


def test_the_commands_say_where_they_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for argv in (["write", "naive"], ["naive"]):
        assert main(argv) == 0
        assert write.WHERE in capsys.readouterr().out
    assert write.WHERE in write.start("naive") and write.WHERE in pages.kernel_asked("naive")


def test_the_command_lists_them(capsys):
    assert main(["write"]) == 0
    listed = re.findall(r"^write (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert listed == write.every()


def test_a_page_shows_both_kinds_and_the_primer_its_own():
    both = pages.exercise(find("naive"))
    assert both.index("exercises naive answer.py") < both.index("exercises write naive my_naive.py")
    assert write.hint("naive") in both and write.parts("naive") in both
    assert "write" not in pages.exercise(find("scaled"))
    page = "<!-- begin: exercise -->\n<!-- end: exercise -->"
    filled = excerpt.filled(page, {"exercise": pages.kernel_asked(write.PRIMER)})
    assert write.question("primer").splitlines()[2] in filled
