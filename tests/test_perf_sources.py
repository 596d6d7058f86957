"""What makes recorded rows old: other code of their rung, and nothing else."""

import dataclasses

import pytest

from perf import report, sources
from perf.plots import figures
from perf.plots import ladder as plot
from perf.rows import CUDA, TRITON
from tritemm.rungs import RUNGS

from .perf_fakes import synthetic

pytestmark = pytest.mark.host

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


def test_the_sources_of_a_rung_are_what_it_imports(folder):
    names = [path.stem for path in sources.files_of(folder / "k01_toy.py")]
    assert names == ["k01_toy", "_tile", "ptx"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("k01_toy", KERNEL.replace("raster(a)", "raster(a + 1)")),
        ("_tile", "from .common.ptx import wait\nEPI_N = 64\n"),
        ("common/ptx", "x = 2\n"),
    ],
)
def test_other_code_is_another_hash(folder, name, text):
    before = hashed(folder)
    (folder / f"{name}.py").write_text(text)
    assert hashed(folder) != before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("k01_toy", '"""toy: a header."""\n\n' + KERNEL.replace("(a):", "(a):\n    # why\n")),
        ("k01_toy", KERNEL.replace("import triton\n", "import triton\nimport torch\n")),
        ("other", "y = 2\n"),
    ],
)
def test_words_and_other_files_are_not(folder, name, text):
    before = hashed(folder)
    (folder / f"{name}.py").write_text(text)
    assert hashed(folder) == before


def test_every_rung_of_both_ladders_has_a_hash_of_its_own():
    found = sources.hashes()
    assert {(TRITON, kernel.name) for kernel in RUNGS} < set(found)
    assert {ladder for ladder, _ in found} == {TRITON, CUDA}
    assert len(set(found.values())) == len(found)


def test_captions_say_what_is_known_of_the_kernels(tmp_path, monkeypatch):
    """Rows of these kernels, then of one that has changed, then from before rows had a hash."""
    fresh = [dataclasses.replace(row, code=sources.hash_of(row)) for row in synthetic()]
    assert fresh[-1].code is None  # cuBLAS's
    assert sources.note(fresh) == ""
    assert report.origin(fresh).endswith(", 2026-01-02")

    path = tmp_path / "ladder.png"
    plot.plot_ladder(fresh, path)
    assert figures.drawn_from(path) == figures.digest(fresh, plot.LADDER)
    key = (TRITON, fresh[2].rung)
    monkeypatch.setattr(sources, "hashes", lambda: {(TRITON, k.name): "other" for k in RUNGS})
    changed = report.origin(fresh)
    assert changed.endswith(", 2026-01-02; the kernels have changed since")
    assert figures.drawn_from(path) != figures.digest(fresh, plot.LADDER)

    monkeypatch.undo()
    one = [dataclasses.replace(r, code="other" if r.rung == key[1] else r.code) for r in fresh]
    assert sources.note(one) == "; the kernels have changed since"
    assert sources.note([r for r in one if r.rung != key[1]]) == ""
    assert sources.note(synthetic()) == "; the kernels may have changed since"
    # Python's time of a call, and what was not timed, depend on no kernel.
    assert sources.note([dataclasses.replace(r, mode="host eager") for r in one]) == ""
    assert sources.note([dataclasses.replace(r, us=None) for r in one]) == ""
