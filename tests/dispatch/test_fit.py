"""The constants of the cost model: their file, and finding them again from measured times."""

import collections
import dataclasses
import gzip
import json
import math
import random

import pytest
import torch

from tests.dispatch.choosing import H100, H200, problem, put_rungs
from tools.fit import __main__ as command
from tools.fit.fit import fit, quality, to_json
from tools.fit.samples import Sample, read
from tools.fit.table import Table
from tritemm import dispatch
from tritemm.arch import gpus
from tritemm.dispatch import candidates, ranked
from tritemm.dispatch.cost_model import constants, model
from tritemm.dispatch.cost_model.columns import kind_of, tile_of
from tritemm.problem.config import changed
from tritemm.rungs import RUNGS

pytestmark = [pytest.mark.host, pytest.mark.once]


@pytest.fixture
def _hopper(monkeypatch):
    names = ("pingpong", "split_k", "gemv")
    put_rungs(monkeypatch, [rung for rung in RUNGS if rung.number < 10 or rung.name in names])
    monkeypatch.setattr("tools.fit.fit._STEPS", 100)
    yield
    dispatch.forget()


def shapes(count, seed):
    draw = random.Random(seed)

    def size(low, high):
        return round(2 ** draw.uniform(low, high) / 8) * 8

    return [(size(3, 13), size(8, 14), size(7, 14)) for _ in range(count)]


def measured(truth, shapes, noise=0.0, seed=0):
    """Samples of every candidate as `truth` predicts them."""
    draw = random.Random(seed)
    samples = []
    for shape in shapes:
        asked = problem(*shape)
        for _, kernel, config in dispatch.ranked(asked):
            seconds = model.breakdown(kernel, asked, config, truth).total
            seconds *= math.exp(draw.gauss(0, noise))
            samples.append(Sample(asked, kernel, config, seconds))
    return samples


def another_gpu(start):
    """Constants that differ from `start` by rung, as a real GPU's would."""
    kind, rungs = kind_of(problem(4096, 4096, 4096)), {}
    launches = {"persistent": 3.1e-6, "pingpong": 3.4e-6, "split_k": 2.1e-6}
    for kernel in candidates.RUNGS:
        draw = random.Random(kernel.name)  # the same whatever rungs there are beside it
        rung = start.rung(kernel)
        rungs[kernel.name] = rung._replace(
            launch=launches.get(kernel.name, rung.launch),
            ends=rung.ends * draw.uniform(0.7, 1.4),
            efficiency={kind.word(kernel): kernel.cost.efficiency * draw.uniform(0.6, 1.3)},
        )
    return dataclasses.replace(
        start, rungs=rungs, memory_rate=3.7e12, l2_rate=9e12, latency=1.1e-6, reduction=2.5e-6
    )


def test_tensors_are_predicted_as_numbers_are():
    """The shipped constants, those with what one GPU alone shows, and analytic ones; every rung,
    split, level, in clusters, packed, and with more of C than L2 keeps."""
    asked = [
        problem(*size, layout, **more)
        for size in ((1, 6144, 4096), (16, 4096, 14336), (129, 2112, 7168), (3000, 3000, 3001))
        for layout in ("NN", "NT", "TN")
        for more in ({}, {"batch": (3,)}, {"dtype": torch.float32, "precision": "tf32"})
    ] + [problem(*size) for size in ((4096, 4096, 4096), (8200, 9000, 64))]
    asked.append(problem(512, 512, 512, dtype=torch.int8))
    samples = [
        Sample(one, kernel, config, 1.0) for one in asked for _, kernel, config in ranked(one)
    ]
    assert {s.kernel.name for s in samples} > {"gemv", "stream_k", "cluster_split_k", "pipelined"}
    assert any(s.config.PACK for s in samples) and any(s.config.CLUSTER == 4 for s in samples)
    for numbers in (constants.of(H200), constants.of(H100), constants.analytic(H200)):
        table = Table(samples)
        found = table.seconds(table.numbers(numbers)).tolist()
        for sample, seconds in zip(samples, found, strict=True):
            one = model.breakdown(sample.kernel, sample.problem, sample.config, numbers).total
            assert seconds == pytest.approx(one, rel=1e-12), sample


@pytest.mark.usefixtures("_hopper")
class TestFit:
    def test_it_finds_known_constants(self):
        # Of small problems a launch is a share that what is left of other errors counts against.
        start = dataclasses.replace(constants.analytic(H200), launch=2e-6)
        truth = another_gpu(start)
        samples = measured(truth, shapes(16, seed=9))
        found = fit(samples, start)
        before, after = quality(samples, start), quality(samples, found)
        assert before.error > 0.08 > 0.02 > after.error
        assert quality(measured(truth, shapes(6, seed=10)), found).error < 0.03
        assert found.memory_rate == pytest.approx(truth.memory_rate, rel=0.1)
        assert found.launch == start.launch

    def test_one_wild_sample_counts_little(self):
        truth = another_gpu(constants.analytic(H200))
        samples = measured(truth, shapes(5, seed=5))
        wild = [
            dataclasses.replace(s, seconds=s.seconds * 20) if i == 40 else s
            for i, s in enumerate(samples)
        ]
        calm, shaken = (quality(samples, fit(some, truth)).error for some in (samples, wild))
        assert calm < 0.005 and shaken < 0.01

    @pytest.mark.parametrize(("times", "moves"), [(1.5, False), (1 / 1.5, True)])
    def test_of_a_scaled_time_only_predictions_below_it_are_errors(self, times, moves):
        """Every other one is scaled, and shorter than the truth, or longer."""
        truth = constants.analytic(H200)
        samples = [
            dataclasses.replace(s, scaled=i % 2 > 0, seconds=s.seconds / (times if i % 2 else 1))
            for i, s in enumerate(measured(truth, shapes(4, seed=5)))
        ]
        found = fit(samples, truth)
        assert (quality(samples, found).error > 0.01) == moves

    def test_times_of_two_searches_are_not_compared(self):
        truth = constants.analytic(H200)
        samples = measured(truth, shapes(5, seed=5))
        slow_card = [
            dataclasses.replace(s, seconds=s.seconds * 1.3, search=s.search + 1) for s in samples
        ]
        one, both = quality(samples, truth), quality(samples + slow_card, truth)
        assert one.regret == one.worst == both.regret == both.worst == 1
        assert (one.races, both.races) == (5, 10)

    def test_what_no_sample_speaks_of_stays(self):
        start = constants.analytic(H200)
        samples = [s for s in measured(start, shapes(4, seed=6)) if s.kernel.name == "pingpong"]
        found = fit(samples, start)
        assert set(found.rungs) == {"pingpong"}
        assert found.reduction == start.reduction

    def test_a_tile_has_factors_of_its_own(self):
        """If many samples say so; what says nothing is not written down."""
        sizes = [(4096 + 512 * i, 4096, 4096 + 512 * i) for i in range(24)]
        start = constants.analytic(H200)
        races = [measured(start, [size]) for size in sizes]
        best = (min(race, key=lambda sample: sample.seconds) for race in races)
        found = collections.Counter((s.kernel, tile_of(s.config.numbers)) for s in best)
        ((kernel, tile), _), *_ = found.most_common(1)
        word = kind_of(problem(*sizes[0])).word(kernel)
        slow = start.rung(kernel)._replace(tiles={word: {tile: (1.3, 1.0)}})
        truth = dataclasses.replace(start, rungs={kernel.name: slow})
        samples = measured(truth, sizes)
        found, held = fit(samples, start), fit(samples, truth, hold=("step",))
        assert held.rungs[kernel.name].tiles[word][tile][0] == 1.3
        assert 1.08 < found.rungs[kernel.name].tiles[word][tile][0] < 1.3  # drawn to 1
        written = to_json(found)["rungs"][kernel.name]["tiles"][word]
        assert "x".join(map(str, tile)) in written and len(written) < 4

    def test_what_is_held_stays(self):
        truth, start = another_gpu(constants.analytic(H200)), constants.analytic(H200)
        samples = measured(truth, shapes(3, seed=8))
        free, held = (fit(samples, start, hold=names) for names in ((), ("latency", "launch")))
        assert held.latency == start.latency != free.latency
        assert {r.launch for r in held.rungs.values()} == {start.launch}
        assert {r.launch for r in free.rungs.values()} != {start.launch}
        assert held.sm_rate != start.sm_rate

    def test_numbers_of_other_rungs_stay(self):
        truth, start = another_gpu(constants.analytic(H200)), constants.analytic(H200)
        samples = measured(truth, shapes(3, seed=8))
        found = fit(samples, start, rungs=("split_k",))
        moved = {name for name, rung in found.rungs.items() if rung.launch != start.launch}
        assert moved == {"split_k"}
        assert found.latency == start.latency and found.sm_rate == start.sm_rate


class TestFile:
    def test_there_and_back(self):
        rungs = {
            "tma": constants.Rung(2.75e-6, 1.5e-7, 1e-6, 0.4, {"16-bit": 1.25, "int8": 0.7}, {}),
            "gemv": constants.Rung(1e-6, 0.0, 0.0, 1.0, {}, {"16-bit/NT": [2.5e-11, 5e-10]}),
        }
        one = dataclasses.replace(constants.analytic(H200), rungs=rungs)
        again = constants.from_json(json.loads(gpus.text_of(to_json(one))), H200)
        assert again.rungs == one.rungs
        assert again.latency == one.latency and again.memory_rate == one.memory_rate

    def test_the_shipped_one_is_small_and_is_taken(self):
        path = gpus.path_of(H200.name)
        assert path.name == "nvidia-h200.json" and path.stat().st_size < 24_000
        fitted = json.loads(path.read_text())["fitted"]
        assert constants.of(H200) == constants.from_json(fitted, H200)


class TestCommand:
    @pytest.fixture
    def searched(self, tmp_path):
        """The file of a search, and its samples."""
        samples = measured(constants.analytic(H200), shapes(3, seed=7))
        path = tmp_path / "found.jsonl"
        rows = [
            {
                "M": s.problem.M, "N": s.problem.N, "K": s.problem.K, "batch": 1, "layout": "NT",
                "dtype": "bf16", "out": "bf16", "kernel": s.kernel.name,
                "config": changed(s.config), "us": 1e6 * s.seconds,
            }
            for s in samples
        ]  # fmt: skip
        others = [
            {"time": "now", "command": "search"},
            rows[0] | {"kernel": "cuBLAS", "config": {}},
            rows[0] | {"us": None, "error": "too large"},
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in others + rows))
        return path, samples

    def test_reading(self, searched):
        """As text, and compressed."""
        path, samples = searched
        got = read([path], H200)
        assert [(s.problem, s.kernel, s.config) for s in got] == [
            (s.problem, s.kernel, s.config) for s in samples
        ]
        assert len(got) > 1 and got[0].seconds == pytest.approx(samples[0].seconds)
        packed = path.with_suffix(".jsonl.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert read([packed], H200) == got
        for torn in (packed.read_bytes()[:-9], path.read_bytes()):
            packed.write_bytes(torn)
            with pytest.raises(ValueError, match=r"jsonl\.gz is no text"):
                read([packed], H200)

    def test_scaled_times_are_marked_and_of_no_quality(self, searched):
        path, samples = searched
        *_, last = path.read_text().splitlines()
        with path.open("a") as lines:
            lines.write(json.dumps(json.loads(last) | {"scaled": True, "us": 1e-3}) + "\n")
        got = read([path], H200)
        assert [sample.scaled for sample in got] == [False] * len(samples) + [True]
        known = constants.analytic(H200)
        assert quality(got, known) == quality(got[:-1], known)

    def test_a_broken_line_is_named(self, searched):
        path, _ = searched
        path.write_text(path.read_text() + "{")
        with pytest.raises(ValueError, match=r"found\.jsonl, line \d+"):
            read([path], H200)

    def test_types(self, tmp_path):
        row = {
            "M": 64, "N": 96, "K": 128, "batch": 3, "layout": "TN", "dtype": "fp32", "out": "fp32",
            "kernel": "tma", "config": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, "us": 5,
            "precision": "tf32",
        }  # fmt: skip
        path = tmp_path / "one.jsonl"
        path.write_text(json.dumps(row))
        (sample,) = read([path], H200)
        asked = problem(64, 96, 128, "TN", torch.float32, batch=(3,), precision="tf32")
        assert sample.problem == asked and sample.seconds == 5e-6

    def test_a_heading_begins_another_search(self, searched):
        path, _ = searched
        rows = path.read_text().splitlines()
        heading = json.dumps({"time": "2026-11-21", "command": "python -m perf search"})
        path.write_text("\n".join([heading, *rows, heading, *rows]))
        found = read([path, path], H200)
        assert len({s.search for s in found}) == 4
        assert len(read([path], H200)) * 2 == len(found)

    def test_fit_writes_a_file(self, searched, tmp_path, capsys):
        path, _ = searched
        out = tmp_path / "gpu.json"
        assert command.main(["fit", str(path), "--out", str(out)]) == 0
        data = json.loads(out.read_text())
        assert data["gpu"] == "NVIDIA H200" and constants.from_json(data["fitted"], H200).rungs
        assert data["physics"] == gpus.file_of("NVIDIA H200")["physics"]
        before, after, _ = capsys.readouterr().out.splitlines()
        assert "regret" in before and "regret" in after
        assert command.main(["quality", str(path)]) == 0
        assert capsys.readouterr().out.strip() == before

    def test_a_number_to_hold_is_one_of_the_constants(self, searched, capsys):
        path, _ = searched
        assert command.main(["fit", str(path), "--hold", "power,speed"]) == 2
        assert "there is no speed; the numbers are memory_rate, " in capsys.readouterr().err
        assert command.main(["fit", str(path), "--rung", "gemv,gemm"]) == 2
        assert "no rung is called 'gemm'; there are simt, naive, " in capsys.readouterr().err
