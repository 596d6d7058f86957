"""What is recorded, which of it is shown, and whether it is of today's kernels."""

import dataclasses
import gzip
import itertools
import json

import pytest

from perf import figures, rows, rungs, select, sources, tables
from perf.case import Case
from perf.experiments import show, suite
from perf.machine import slug
from perf.rows import CUDA, NULL, REFERENCE, TRITON
from perf.views import Selection
from tests.perf.fakes import (
    ENVIRONMENT,
    NEW,
    OLD,
    by_name,
    fake,
    flat,
    heading,
    kept,
    measure,
    row,
    spoil_one,
)
from tritemm.rungs import RUNGS

pytestmark = [pytest.mark.host, pytest.mark.once]

LATER = "2026-03-02T03:04:05+00:00"


@pytest.fixture(scope="module")
def recorded():
    """A ladder of three rungs, one of them red, with an extra config."""
    kernels = [fake("k01_simt"), fake("k02_red", spoil_one), fake("k09_fast")]
    return kept(measure(kernels, {"simt": 0.2, "fast": 0.95e-3}, configs="all"))


# The files


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_rows_survive_the_round_trip(recorded, tmp_path, name):
    path = tmp_path / "results" / name
    model = row("llama train eager", "Llama", 1.1, agreement={"logits": None, "loss": 0.25})
    ending = row(
        "A", "one", 1.2, case=Case(8, 8, 8, "NT", ending="bias gelu"), versus={"x": flat(2)}
    )
    every = [*recorded, model, ending, *(r for r in [row("B", "two")])]
    for part in (every[:3], every[3:]):
        rows.append(path, part)
    assert rows.read(path) == every
    assert {r.competitor for r in recorded} >= {"fast", "fast[1]", REFERENCE, NULL}
    text = path.read_bytes()
    lines = (gzip.decompress(text) if name.endswith("gz") else text).decode().splitlines()
    headings = [line for line in map(json.loads, lines) if "environment" in line]
    assert [line["schema"] for line in headings] == [2, 2]  # of the ladder, and of the suite's run
    assert list(rows.lines(every)) == [*lines[:1], *rows.lines(every)][1:]


def test_append_keeps_old_rows_and_leaves_nothing_half_written(recorded, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    rows.append(path, recorded[:2])
    before = path.read_text()

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(rows.os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            rows.append(path, recorded[2:])
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]
    rows.append(path, recorded[2:])
    assert path.read_text().startswith(before) and rows.read(path) == recorded


def test_a_torn_last_line_is_warned_of_and_swallows_nothing(recorded, tmp_path):
    path = tmp_path / "x.jsonl"
    for part in (recorded[:1], recorded[1:2]):
        rows.append(path, part)
    path.write_text(path.read_text()[:-20])
    rows.append(path, recorded[2:])
    with pytest.warns(UserWarning, match=r"line 3: .*left out"):
        assert rows.read(path) == [recorded[0], *recorded[2:]]


def test_rows_of_another_schema_or_without_a_heading_are_warned_of(recorded, tmp_path):
    path = tmp_path / "x.jsonl"
    head, race = rows.lines(recorded)
    path.write_text(f"{head.replace('2', '99', 1)}\n{race}\n")
    with pytest.warns(UserWarning, match="this reads schema 2"):
        assert rows.read(path) == []


def test_the_repositorys_rows_are_read_without_a_warning(recwarn):
    found = rows.recorded()
    assert len(found) > 3000 and not recwarn.list
    assert {"suite", "random", "serving", "model", "ladder", "sweep"} <= {
        r.experiment for r in found
    }


# Which rows are shown


def test_the_latest_ladder_is_the_newest_row_of_each_rung(recorded):
    names = by_name(recorded)
    newer = dataclasses.replace(names["fast"], time=NEW, rounds=7)
    reference = dataclasses.replace(names["cublas"], time=NEW)
    alone = dataclasses.replace(names["fast"], time=LATER)  # a race of one rung
    skipped = dataclasses.replace(names["simt"], time=NEW, outcome="skipped", us=None)
    a100 = dataclasses.replace(ENVIRONMENT, gpu="NVIDIA A100")
    elsewhere = dataclasses.replace(names["fast"], time="2026-01-01T00:00:00", environment=a100)
    every = [newer, reference, alone, *recorded, skipped, elsewhere]
    asked = {"size": (48, 40, 32), "dtype": "fp32"}
    found = select.latest_ladder(every, **asked)
    assert [row.competitor for row in found] == ["simt", "red", "fast", "cublas"]
    assert found[2:] == [newer, reference] and found[0] == names["simt"]
    assert found[1].outcome == "wrong"
    assert select.latest_ladder(every, "NVIDIA A100", **asked) == [elsewhere]
    assert select.latest_ladder(every, size=4096) == []


ROWS = [
    row("A", "one", 1.25), row("A", "one", 1.0, REFERENCE),
    row("B", "one", 0.8, null=1.01), row("B", "one", 1.0, REFERENCE, null=1.01),
    row("C", "two", 1.004, null=1.005), row("C", "two", 1.0, REFERENCE, null=1.005),
    row("D", "two", None, dtype="fp8"), row("D", "two", 1.0, REFERENCE, dtype="fp8"),
]  # fmt: skip


def dated(found, run=NEW, **fields):
    return [dataclasses.replace(row, run=run, **fields) for row in found]


def test_a_partial_run_does_not_displace_a_full_one():
    own, later = [r for r in ROWS if r.competitor == "auto"], dated(ROWS)
    tma, burst = dated(own, competitor="tma"), dated(ROWS, mode="burst")
    for more, chosen, shown in (
        (later, {}, later),
        (later[:4], {}, ROWS),
        (later[:4], {"enough": 2}, later[:4]),
        (tma, {"competitor": "auto"}, ROWS),
        (tma, {"competitor": "tma"}, tma),
        (burst, {}, ROWS),
        (burst, {"mode": "burst"}, burst),
    ):
        asked = {"enough": 4, "competitor": "auto"} | chosen
        assert select.latest_run([*ROWS, *more], "suite", **asked) == shown
    every = [*later, *ROWS, *dated(ROWS[:2], LATER)]
    assert select.full_runs(every, "suite", "auto", 4) == [*ROWS, *later]


def test_each_problems_newest_race_is_shown_whichever_run_it_was_of():
    ids, few = ["A", "B", "C", "D"], dated(ROWS[:2])
    assert select.newest_races([*few, *ROWS], "suite", ids) == [*few, *ROWS[2:]]
    found = select.newest_races([*ROWS, *few], "suite", ids[::-1])
    assert [row.id for row in found[::2]] == ids[::-1] and found[-2:] == few
    assert select.newest_races([*few, *ROWS], "suite", ids[:1]) == few
    assert len(select.newest_races([*ROWS, *few], "suite", ["of another file"])) == len(ROWS)


def test_a_run_of_fewer_competitors_or_modes_does_not_displace_a_fuller_one():
    old, new, torn = (
        [row(None, "c", 1.0, name, run=run, mode=m) for m in modes for name in names]
        for run, modes, names in ((OLD, "ab", "xyz"), (NEW, "ab", "xy"), (LATER, "a", "xyz"))
    )
    shown = lambda **share: select.latest_run([*new, *old, *torn], "suite", mode=None, **share)  # noqa: E731
    assert shown() == old and shown(share=0.6) == new and shown(share=0.5) == torn


def test_what_was_not_measured_is_not_chosen_and_views_show_the_kernel_asked_for():
    assert all(view.chosen([], Selection()) == [] for view in show.VIEWS.values())
    tma = dated([r for r in ROWS if r.competitor == "auto"], competitor="tma")
    assert figures.called(tma) == "tritemm.matmul, kernel='tma'"
    known = [*ROWS, *tma, *dated(ROWS[1::2])]
    for name, selection in itertools.product(("suite", "problems"), ("auto", "tma")):
        view, asked = show.VIEWS[name], Selection(competitor=selection)
        chosen = view.chosen(known, asked)
        assert chosen == ROWS if selection == "auto" else {r.run for r in chosen} == {NEW}
        assert "A" in view.table(chosen, asked) and "nan" not in view.table(chosen, asked)


# What rows say together


def test_classes_and_all_are_summed_up():
    found = tables.against_cublas(ROWS)
    one, two, sixteen, every = tables.tallies(found)
    assert [t.name for t in (one, two, sixteen, every)] == ["one", "two", "all 16-bit", "all"]
    assert (one.count, one.mean, one.least_at(), one.share(), one.sides) == (
        "2", "1.000", "0.800 (B)", "1 of 2, 50 %", ("1", "0", "1")
    )  # fmt: skip
    assert (two.count, two.sides, sixteen.count, every.count) == (
        "1 of 2", ("0", "1", "0"), "3", "3 of 4"
    )  # fmt: skip
    assert every.geomean == pytest.approx((1.25 * 0.8 * 1.004) ** (1 / 3))
    assert tables.quiet(ROWS).endswith("geomean 1.0037, farthest from 1 1.0100 (B).")
    assert tables.quiet([]) == "" and tables.Tally("none", []).sides == ("", "", "")


def test_losses_are_printed_like_wins_and_refusals_are_named():
    text = suite.text(ROWS)
    assert "wins (1): A 1.250" in text and "losses (1): B 0.800" in text
    assert "refused: not implemented" in text and "1.004 (1.004-1.004), a tie" in text
    assert suite.text([]) == "nothing was measured"


@pytest.fixture(scope="module")
def ladder():
    return select.latest_ladder(rows.recorded())


def test_the_ladders_table_names_ties_twins_and_refusals(ladder):
    red = {"us": None, "outcome": "wrong", "reason": "7 of 9 elements are wrong"}
    alone = dataclasses.replace(ladder[4], below=ladder[2].competitor)
    found = [*ladder[:3], dataclasses.replace(ladder[3], **red), alone, *ladder[5:]]
    lines = tables.markdown([rungs.one_ladder(found)]).splitlines()
    assert len(lines) == 2 + len(found) and {line.count("|") for line in lines} == {6}
    assert f"| {RUNGS[0].number:02d} {RUNGS[0].name} |" in lines[2] and "wrong: 7 of 9" in lines[5]
    assert lines[6].endswith(f" ({RUNGS[2].name}) |") and lines[-1].startswith("| cuBLAS | ")
    assert rungs.text(found).startswith("4096 x 4096 x 4096 NT, bf16, sustained. NVIDIA H200")
    versus = {"x": rows.Quantiles(0.99, 1.001, 1.01)}
    assert "x 1.00 (tie)" in rungs.text([dataclasses.replace(found[2], ladder=CUDA, versus=versus)])
    assert slug("NVIDIA H200") == "nvidia-h200"


# Whether rows are of today's kernels

WHY = "\n    # why"
KERNEL = """import triton
from ._tile import raster

@triton.jit
def toy_kernel(a):
    return raster(a)
"""


@pytest.fixture
def folder(tmp_path):
    """A rung, what it imports, what that imports, and a file that nobody does."""
    for name, text in {
        "k01_toy": KERNEL, "_tile": "from .common.ptx import wait\n", "common/ptx": "x = 1\n",
        "other": "y = 1\n",
    }.items():  # fmt: skip
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def hashed(folder):
    sources._tree.cache_clear()
    sources._python.cache_clear()
    return sources._hash(map(sources._python, sources.files_of(folder / "k01_toy.py")))


OTHER = [
    ("k01_toy", KERNEL.replace("raster(a)", "raster(a + 1)"), True),
    ("_tile", "from .common.ptx import wait\nEPI_N = 64\n", True),
    ("common/ptx", "x = 2\n", True),
    ("k01_toy", f'"""toy: a header."""\n\n{KERNEL.replace("(a):", "(a):" + WHY)}', False),
    ("k01_toy", f"import torch\n{KERNEL}", False),
    ("other", "y = 2\n", False),
]


@pytest.mark.parametrize(("name", "text", "differs"), OTHER)
def test_other_code_is_another_hash_and_words_and_other_files_are_not(folder, name, text, differs):
    names = [path.stem for path in sources.files_of(folder / "k01_toy.py")]
    assert names == ["k01_toy", "_tile", "ptx"]
    before = hashed(folder)
    (folder / f"{name}.py").write_text(text)
    assert (hashed(folder) != before) is differs


def test_captions_leave_out_an_option_that_is_gone(ladder):
    typed = ("suite --gpus 2 --out x.jsonl", "suite --out x.jsonl --gpus 4")
    pair = zip(ladder, typed, strict=False)
    rows = [dataclasses.replace(row, command=words) for row, words in pair]
    assert tables.commands(rows).startswith("`suite --out x.jsonl`, sustained. ")


def test_captions_name_every_cublas_that_was_loaded_the_newest_rows_first(ladder):
    newer = dataclasses.replace(ENVIRONMENT, cublas="13.5.1 with Lt 13.5.2")
    later = [dataclasses.replace(r, time="2099-01-01", environment=newer) for r in ladder]
    assert "cuBLAS 13.5.1 with Lt 13.5.2 and 13.1.0, commit" in tables.origin([*ladder, *later])


def test_captions_tell_the_fewest_rounds_too(ladder):
    """Sittings with different --rounds stand in one table."""
    pair = zip(ladder, (5, 9), strict=False)
    rows = [dataclasses.replace(row, rounds=count, us=(1.0, 1.0, 1.0)) for row, count in pair]
    assert (tables.rounds(rows), tables.rounds(rows[:1]), tables.rounds([])) == ("5 to 9", "5", "0")


def test_captions_say_what_is_known_of_the_kernels(ladder, monkeypatch):
    """Rows of these kernels, then of one that has changed, then from before rows had a hash."""
    found = sources.hashes()
    assert {ladder for ladder, _ in found} == {TRITON, CUDA}
    assert len(set(found.values())) == len(found)
    fresh = [dataclasses.replace(row, code=sources.hash_of(row)) for row in ladder]
    assert fresh[-1].code is None and sources.note(fresh) == ""  # cuBLAS's
    assert tables.origin(fresh).endswith(f", {max(row.time for row in fresh)[:10]}")
    before = figures.digest(fresh, "x")
    one = [dataclasses.replace(r, code="other" if r.number == 3 else r.code) for r in fresh]
    assert sources.note(one) == "; the kernels have changed since"
    assert sources.note([r for r in one if r.number != 3]) == ""
    old = [dataclasses.replace(row, code=None) for row in ladder]
    assert sources.note(old) == "; the kernels may have changed since"
    # Python's time of a call, and what was not timed, depend on no kernel.
    assert sources.note([dataclasses.replace(r, mode="host eager") for r in one]) == ""
    assert sources.note([dataclasses.replace(r, us=None) for r in one]) == ""
    monkeypatch.setattr(sources, "hashes", lambda: {(TRITON, k.name): "other" for k in RUNGS})
    assert figures.digest(fresh, "x") != before
    assert heading().run is None
