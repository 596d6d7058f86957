"""The tutorial: a page for each rung with all its parts, and exercises that check what they ask."""

import json
import math
import re
import shlex
import subprocess

import numpy as np
import pytest

from docs import code, excerpt, exercises, races, record
from docs.cards import TUNED
from docs.exercises import write
from docs.exercises.__main__ import main
from docs.lessons import instructions, lessons, measured, page_of, pages, whole, wins
from docs.lessons.pages import PARTS, parts
from perf.__main__ import parser as perf_parser
from perf.machine import Environment
from perf.rows import recorded
from perf.views import newest_suite
from tests.docs import wrong_answers
from tritemm.__main__ import main as tritemm_main
from tritemm.compile.asm import own_type
from tritemm.rungs import RUNGS, find

pytestmark = pytest.mark.host

rungs = pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)
asked = pytest.mark.parametrize("rung", exercises.every())


def test_lessons_follow_the_ladder():
    places = {kernel.name: place for place, kernel in enumerate(RUNGS)}
    assert list(lessons()) == exercises.every() == list(places)
    for lesson in lessons().values():
        assert lesson.below is None or places[lesson.below] < places[lesson.rung]
        assert set(lesson.counters) <= set(measured.LABELS)
        assert (lesson.below is None) == (lesson.rung == "simt"), "its page asks for nothing"


@rungs
def test_a_page_has_every_part(kernel):
    text = page_of(kernel).read_text()
    assert text.startswith(f"# {kernel.number:02} {kernel.name}")
    for part in PARTS:
        assert text.count(f"<!-- begin: {part} -->") == 1


def test_a_rung_without_records_has_a_page(monkeypatch):
    """So a new rung costs two files, and its page says what to run."""
    monkeypatch.setattr(code, "load", dict)
    monkeypatch.setattr(exercises, "every", list)
    monkeypatch.setattr(write, "every", list)
    text = "\n".join(parts(RUNGS[1], races.raced([], bool)).values())
    assert "Not yet recorded" in text and "Not yet measured." in text and "None yet." in text


def test_what_is_measured_is_added_to_what_is_known(monkeypatch):
    known = {"counters": {"old": {}}, "joules": {"tma": {"joules": 9}, "simt": {"joules": 1}}}
    monkeypatch.setattr(measured, "load", lambda: known)
    monkeypatch.setattr(measured, "environment", lambda: Environment("a GPU", *[None] * 7))
    monkeypatch.setattr(measured, "weighed", lambda name: {"joules": 2})
    (found,) = measured.measure("joules", ["tma"])
    assert found["joules"] == {"tma": {"joules": 2}, "simt": {"joules": 1}}
    assert known["joules"]["tma"] == {"joules": 9} and found["environment"]["gpu"] == "a GPU"
    cases = {lesson.case for lesson in lessons().values() if "gemv" in (lesson.below, lesson.rung)}
    monkeypatch.setattr(measured, "counters", lambda name, case: {"of": name})
    *_, found = measured.measure("counters", ["gemv"])
    gemv = {measured.key("gemv", case): {"of": "gemv"} for case in cases}
    assert found["counters"] == {"old": {}, **gemv}
    monkeypatch.setattr(measured, "counters", lambda name, case: None)  # as where ncu can't
    assert list(measured.measure("counters")) == []


@pytest.mark.parametrize("lesson", lessons().values(), ids=lambda lesson: lesson.rung)
def test_off_cubes_the_config_is_the_dispatchers(lesson, monkeypatch):
    asked = []

    def run(words, **how):
        asked.extend(words)
        return subprocess.CompletedProcess(words, 1, "", "no counters\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert measured.counters(lesson.rung, lesson.case) is None
    args = perf_parser().parse_args(asked[asked.index("profile") :])
    assert args.size == (lesson.case.M, lesson.case.N, lesson.case.K)
    assert (args.rung, args.layout, args.dtype) == (
        lesson.rung, lesson.case.layout, lesson.case.dtype,
    )  # fmt: skip
    assert args.chosen == (len(set(args.size)) > 1)


def test_what_needs_a_gpu_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for what in record.MEASURED:
        assert record.main([what]) == 2
        assert f"{what} need a GPU" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        record.main(["joules", "--check"])


def test_a_record_that_differs_is_told(monkeypatch, capsys):
    old = code.load()
    monkeypatch.setattr(code, "record", lambda: old)
    assert record.main(["code", "--check"]) == 0
    monkeypatch.setattr(code, "record", lambda: old | {"new sm_90": old["tiled sm_90"]})
    assert record.main(["code", "--check"]) == 1
    assert "run `python -m docs.record code`" in capsys.readouterr().out


def test_instructions_are_of_these_sources():
    assert code.stale() == [], "run `python -m docs.record code`"


def test_of_a_cuda_rung_bf16_by_columns_is_counted():
    """And of those of wmma, which have no bf16, fp16 that is summed in fp32."""
    for key, entry in code.load().items():
        if entry["compiler"].startswith("nvcc") and "simt" not in key:
            assert not re.search(r"__half|true", entry["kernel"])
            assert ("bfloat16" in entry["kernel"]) == (not key.startswith("wmma_"))


def test_the_command_of_a_page_shows_the_table_s_numbers(capsys):
    entry = code.load()["tiled sm_90"]
    if entry["compiler"] != code.compiler():
        pytest.skip(f"the page has what {entry['compiler']} makes of it")
    line = next(line for line in pages.commands(find("tiled")).splitlines() if "--sm 90" in line)
    _, python, m, module, *words = shlex.split(line)
    assert (python, m, module) == ("python", "-m", "tritemm")
    assert tritemm_main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    for name in instructions.SHOWN:
        assert said["mix"].get(name, 0) == code.count(entry, name)
    assert [said[name] for name in ("registers", "config")] == [entry["registers"], entry["kernel"]]


@pytest.mark.parametrize("name", ["sgemm", "dgemm", *races.EMULATED])
def test_what_is_on_no_ladder_shows_the_newest_race(name):
    """Rungs and ways to multiply; in every row and in what is said of all."""
    text = races.raced(recorded(), lambda row: name in (row.rung, row.case.precision))
    ratios = [float(each) for each in re.findall(r"\| ([\d.]+) \([\d.]+-[\d.]+\)", text)]
    said = re.search(r"^([\d.]+) times .* at least ([\d.]+) times", text, re.MULTILINE)
    mean, least = map(float, said.groups())
    assert len(ratios) > (2 if name in races.EMULATED else 8) and least == min(ratios)
    assert mean == pytest.approx(math.exp(sum(map(math.log, ratios)) / len(ratios)), abs=0.001)
    assert races.raced([], bool) == "Not yet measured."


def test_each_way_that_is_no_rung_has_its_table_on_one_page():
    paths = (excerpt.ROOT / "docs").rglob("*.md")
    names = [name for path in paths for name in excerpt.asked(path.read_text())]
    assert [names.count(name) for name in races.EMULATED] == [1] * len(races.EMULATED)


def test_a_figure_says_the_share_of_the_roof():
    """The roof is that of the newest full suite, on the same GPU and of the same type."""
    rows = recorded()
    suite, ladders = newest_suite(rows, TUNED), pages.newest(rows)
    text = pages.figure(find("pipelined"), suite, ladders)
    shares = re.findall(r"^\| \d+³ \w\w \| [\d.]+ \| ([\d.]+) \| ([\d.]+)% \|", text, re.M)
    top, _ = re.search(r"The roof is (\d+) TFLOP/s and (\d+) GB/s", text).groups()
    assert shares
    for tflops, share in shares:  # of large products, which arithmetic bounds
        assert float(share) == pytest.approx(100 * float(tflops) / int(top), rel=0.01)
    others = [row for row in suite if row.case.kind != "bf16"]
    for without in ([], others):
        assert "The roof is" not in pages.figure(find("pipelined"), without, ladders)


def test_a_figure_compares_with_the_rung_that_is_added_to():
    """Also of several rungs of one number, of which a race compares with the fastest alone."""
    ladders, compared = pages.newest(recorded()), set()
    for kernel in RUNGS:
        wanted = kernel.header["Adds to"].partition(":")[0]
        text = pages.figure(kernel, [], ladders)
        for size, layout, name in re.findall(r"^\| (\d+)³ (\w\w) .* \((\w+)\) \|$", text, re.M):
            timed = ladders[int(size), layout].get(wanted)
            assert name == wanted or not (timed and timed.us)
            compared.add(kernel.name)
    assert {"async_pg2s", "async_pg2s_ps2r", "async_stages", "pipelined", "tma"} <= compared


@rungs
def test_the_signs_are_among_the_instructions(kernel):
    entry = code.load()[f"{kernel.name} sm_90"]
    present, absent = kernel.signs.get(90, kernel.signs[max(kernel.signs)])
    for sign in present:
        assert any(line.startswith(sign) for line in entry["lines"])
    assert not any(code.count(entry, name) for name in absent)


@rungs
def test_the_caption_says_how_each_kernel_was_compiled(kernel):
    """Its type, which pages of fp32 and fp64 have two of, and its config."""
    below = lessons()[kernel.name].below
    caption = next(
        line for line in instructions.table(kernel, below).splitlines() if line.startswith("Instr")
    )
    for name in filter(None, (below, kernel.name)):
        config = code.load()[f"{name} sm_{code.ARCH}"]["kernel"]
        dtype = own_type(find(name))
        own = (f"{name} of {dtype} in {config}", f"{name} in {config}", f"both in {config}")
        assert any(words in caption for words in own)
        assert own[0] in caption or f"{code.LAYOUT}, {dtype}: " in caption


def told(rung, function):
    try:
        exercises.check(rung, function)
    except exercises.Wrong as wrong:
        return str(wrong)
    return "Right."


@asked
def test_a_wrong_answer_is_told(rung):
    said = [told(rung, function) for function in wrong_answers.of(rung)]
    assert said.count("Right.") == wrong_answers.RIGHT.get(rung, 0)
    assert all(re.search(r"^Right\.$|\w+ .*\.$", each) for each in said)


def written(value, sequence, number):
    """The value with other sequences and other numbers, at every depth."""
    if isinstance(value, tuple | list):
        return sequence(written(each, sequence, number) for each in value)
    return number(value)


@asked
@pytest.mark.parametrize(
    ("sequence", "number"), [(list, int), (tuple, np.int64), (list, float)],
    ids=("lists", "numpy", "floats"),
)  # fmt: skip
def test_types_that_mean_the_same_are_right(rung, sequence, number):
    answer = exercises.find(rung).answer
    if rung == "gemv":  # whose numbers have 64 bits
        number = np.uint64 if number is np.int64 else int
    exercises.check(rung, lambda *given: written(answer(*given), sequence, number))


def test_arrays_ranges_and_parameters_of_other_names_are_right():
    exercises.check("naive", lambda i, j: np.array([i % 8 * 4 + j // 2, i // 8 * 2 + j % 2]))
    exercises.check("cluster_split_k", lambda m, n, c, p, r: (
        range(r * c, n, p * c), 4 * m * (n - c * len(range(r * c, n, p * c)))
    ))  # fmt: skip


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
    listed = re.findall(r"^(?:write )?\w+", capsys.readouterr().out, re.M)
    assert listed == [*exercises.every(), *(f"write {rung}" for rung in write.every())]
    assert main(["tiled"]) == 0
    assert "answer(sums" in capsys.readouterr().out
    assert main(["tiled", str(tmp_path / "none.py")]) == 2
    (tmp_path / "empty.py").write_text("")
    assert main(["tiled", str(tmp_path / "empty.py")]) == 2
    assert "has no function `answer`" in capsys.readouterr().err


GIVEN = "answer(M=16, N=16, K=8)"


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (1, "def answer(M, N): ...", "answer takes 3 arguments: M, N, K."),
        (1, "def answer(M, N, K): return 1 // 0",
         f"{GIVEN} raised ZeroDivisionError: integer division or modulo by zero."),
        (1, "def answer(M, N, K): exit()", f"{GIVEN} raised SystemExit: None."),
        (1, "def answer(M, N, K): ...",
         f"{GIVEN} is None, as of a function without `return`; it should be 256, an int."),
        (1, "def answer(M, N, K): return 3.5",
         f"{GIVEN} is 3.5, a float; it should be 256, an int."),
        (1, "def answer(M, N, K): return [3, 4.0]",
         f"{GIVEN} is (3, 4), a sequence of int; it should be 256, an int."),
        (2, "def answer(M, N, K):\n    a = 1\n    return a +\n", ", line 3: invalid syntax"),
        (2, "\nimport no_such_module\n",
         ", line 2: ModuleNotFoundError: No module named 'no_such_module'"),
        (2, "open('/no/such/file')",
         ", line 1: FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"),
        (2, "exit(0)", ", line 1: SystemExit: 0"),
        (2, "answer = 3",
         " has no function `answer`: write answer(M: int, N: int, K: int) -> int"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said(status, body, sentence, tmp_path, capsys):
    """In a function on stdout; in a file, which then has no answer, on stderr."""
    file = tmp_path / "answer.py"
    file.write_text(body)
    assert main(["simt", str(file)]) == status
    said = {1: (f"Not yet. {sentence}\n", ""), 2: ("", f"{file}{sentence}\n")}
    assert tuple(capsys.readouterr()) == said[status]


@rungs
def test_the_whole_kernel_is_on_its_page(kernel):
    """And each part that it takes from another file has a sentence, and a link that leads there."""
    text, path = whole.kernel(kernel), whole.KERNELS / f"{kernel.module.rpartition('.')[2]}.py"
    assert path.read_text().rstrip() in text
    named = set(re.findall(r"^- (?:`\w+` of )?\[(.+?)\]\((.+?)\): \S.*\.$", text, re.M))
    assert {name for name, _ in named} and all(
        (page_of(kernel).parent / link).resolve() == whole.KERNELS / name for name, link in named
    )


def test_what_a_rung_wins_is_of_the_suite(monkeypatch):
    """The best shapes first, those with odd sizes last, and nothing of a rung that none takes."""
    suite = newest_suite(recorded(), TUNED)
    shown = {kernel.name: wins.taken(suite, kernel.name) for kernel in RUNGS}
    assert sum(map(len, shown.values())) == len({row.id for row in suite})
    for name, own in shown.items():
        plain = [r.ratio.p50 for r in own if not wins.odd(r.ours)]
        assert plain == sorted(plain, reverse=True)
        assert [r.ratio.p50 for r in own][: len(plain)] == plain
        assert wins.best(suite, name).startswith(f"{plain[0]:.2f}: " if plain else "")
        assert bool(wins.table(suite, name)) == bool(own)
