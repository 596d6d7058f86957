"""What the measuring tool records, what it chooses from it, and what it draws and prints."""

import dataclasses
import json

import pytest

from perf import report, rows, select
from perf.machine import slug
from perf.plots import figures
from perf.plots import ladder as plot
from perf.plots.live import Live
from perf.rows import NULL, REFERENCE
from tritemm.rungs import RUNGS

from .perf_fakes import ENVIRONMENT, by_name, fake, kept, measure, spoil_one, synthetic

pytestmark = pytest.mark.host


@pytest.fixture
def recorded():
    """A ladder of three rungs, one of them red, with an extra config."""
    kernels = [fake("k01_simt"), fake("k02_red", spoil_one), fake("k09_fast")]
    return kept(measure(kernels, {"simt": 0.2, "fast": 0.95e-3}, configs="all"))


def test_rows_survive_the_round_trip(recorded, tmp_path):
    path = tmp_path / "results" / "x.jsonl"
    rows.append(path, recorded)
    assert rows.read(path) == recorded
    heading, race = map(json.loads, path.read_text().splitlines())
    assert heading["schema"] == 2 and len(race["rows"]) == len(recorded)
    assert {row.competitor for row in recorded} >= {"fast", "fast[1]", REFERENCE, NULL}


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
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]

    rows.append(path, recorded[2:])
    assert path.read_text().startswith(before)
    assert rows.read(path) == recorded


def test_a_torn_last_line_is_warned_of_and_swallows_nothing(recorded, tmp_path):
    path = tmp_path / "x.jsonl"
    for part in (recorded[:1], recorded[1:2]):
        rows.append(path, part)
    path.write_text(path.read_text()[:-20])
    with pytest.warns(UserWarning, match=r"line 3: .*left out"):
        assert rows.read(path) == recorded[:1]
    rows.append(path, recorded[2:])
    with pytest.warns(UserWarning, match="line 3"):
        assert rows.read(path) == [recorded[0], *recorded[2:]]


def test_rows_of_another_schema_are_warned_of(recorded, tmp_path):
    path = tmp_path / "x.jsonl"
    heading, race = rows.lines(recorded)
    path.write_text(f"{heading.replace('2', '99', 1)}\n{race}\n")
    with pytest.warns(UserWarning, match="this reads schema 2"):
        assert rows.read(path) == []


def test_the_latest_ladder_is_the_newest_row_of_each_rung(recorded):
    def dated(row, time, **fields):
        return dataclasses.replace(row, time=time, **fields)

    names = by_name(recorded)
    newer = dated(names["fast"], "2026-02-01T00:00:00+00:00", rounds=7)
    reference = dated(names["cublas"], newer.time)
    alone = dated(names["fast"], "2026-03-01T00:00:00+00:00", rounds=1)  # a race of one rung
    skipped = dated(names["simt"], "2026-02-01T00:00:00+00:00", outcome="skipped", us=None)
    elsewhere = dataclasses.replace(
        names["fast"], time="2026-01-01T00:00:00+00:00",
        environment=dataclasses.replace(ENVIRONMENT, gpu="NVIDIA A100"),
    )  # fmt: skip
    every = [newer, reference, alone, *recorded, skipped, elsewhere]
    found = select.latest_ladder(every, size=(48, 40, 32), layout="NT", dtype="fp32")
    assert [row.competitor for row in found] == ["simt", "red", "fast", "cublas"]
    assert found[2:] == [newer, reference]
    assert found[0] == names["simt"]
    assert found[1].outcome == "wrong"
    other = select.latest_ladder(every, "NVIDIA A100", size=(48, 40, 32), dtype="fp32")
    assert other == [elsewhere]
    assert select.latest_ladder(every, size=4096) == []


def test_gpu_names_become_file_names():
    assert slug("NVIDIA H200") == "nvidia-h200"


# Pictures


def test_the_ladder_is_drawn(tmp_path):
    path = tmp_path / "ladder.png"
    plot.plot_ladder(synthetic(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no measured row"):
        plot.plot_ladder([], tmp_path / "ladder.png")


def test_the_markdown_table_has_a_line_per_rung():
    found = synthetic()
    lines = report.markdown_table(found).splitlines()
    assert len(lines) == 2 + len(found)
    assert all(line.count("|") == 6 for line in lines)
    assert f"| {RUNGS[0].number:02d} {RUNGS[0].name} |" in lines[2]
    assert "wrong: 7 of 9" in lines[5]
    assert lines[4].endswith("| 1.10 |")
    assert lines[6].endswith(f"| 1.10 ({RUNGS[2].name}) |")
    assert lines[-1].startswith("| cuBLAS | 212")
    caption = report.caption(found)
    assert "4096 x 4096 x 4096 NT, bf16" in caption
    assert "NVIDIA H200" in caption
    assert "aaaaaaa" in caption


def test_the_text_table_names_ties_refusals_and_noise():
    text = report.text_table(synthetic())
    assert text.splitlines()[0].startswith("4096 x 4096 x 4096 NT, bf16 on NVIDIA H200, sustained")
    assert "wrong: 7 of 9" in text
    assert "a tie with cuBLAS" in text


def test_a_process_of_its_own_draws_meanwhile(tmp_path):
    live = Live(plot.draw, tmp_path)
    live.show(synthetic())
    [path] = live.last.result()
    assert path.name == "ladder-4096x4096x4096-NT-bf16.png"
    drawn = figures.drawn_from(path)
    assert drawn == figures.digest(select.newest(synthetic(), synthetic()[0].case), plot.LADDER)
    path.unlink()
    assert live.close(synthetic()) == [path] and figures.drawn_from(path) == drawn
