"""`python -m perf joules` on the CPU: a simulated card with a meter that moves in steps."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import tritemm
from perf import __main__, energy, machine
from perf.bench import repeat
from perf.energy import InBursts, Reading, Settled, drawn
from perf.engine import Loop, Sample
from perf.experiments import joules, show
from perf.machine import State
from perf.rows import NULL, REFERENCE
from perf.views import Selection
from tests.perf.fakes import FakeBench, by_name, on_cpu, ran

pytestmark = [pytest.mark.host, pytest.mark.once]

#: Watts of a card that waits, that reads memory and that multiplies; joules of a step; MHz.
IDLE, READS, MULTIPLIES, STEP, MHZ = 110.0, 380.0, 640.0, 20.0, 1500.0


class Card:
    """A clock and a meter that whatever runs moves on; it is read each millisecond."""

    def __init__(self, monkeypatch):
        self.now, self.joules, self.readings = 5.0, 3.0, []
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=lambda s: self.draw(s, IDLE))
        monkeypatch.setattr(energy, "time", clock)
        monkeypatch.setattr(energy, "metered", self.metered)
        monkeypatch.setattr(torch.cuda, "Event", lambda **how: Event(self))

    def draw(self, seconds, watts):
        while seconds > 0:
            part = min(seconds, 0.001)
            self.now, self.joules, seconds = (
                self.now + part,
                self.joules + part * watts,
                seconds - part,
            )
            shown = self.joules // STEP * STEP
            self.readings.append(Reading(self.now, shown, MHZ))

    @contextlib.contextmanager
    def metered(self, meter):
        self.readings = readings = []
        yield readings
        self.readings = []


class Event:
    def __init__(self, card):
        self.card = card

    def record(self):
        self.at = self.card.now

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


@pytest.mark.parametrize("kind", [Settled, InBursts])
@pytest.mark.parametrize("us", [3.0, 700.0])
def test_watts_time_and_energy_are_those_of_the_product_alone(monkeypatch, kind, us):
    card, launches, repeats = Card(monkeypatch), round(700 / us), 2
    there = object.__new__(kind)
    there.meter, there.seconds, there.probe = None, 1, lambda: State(1.0, 2.0, 55.0)
    there.chill = lambda: card.draw(7e-5, READS)
    graph = SimpleNamespace(replay=lambda: card.draw(launches * us / 1e6, MULTIPLIES))
    begin = card.now
    sample = there._timer(graph, launches, repeats, 1)()
    assert sample.seconds * 1e6 == pytest.approx(us)
    assert sample.state.power_w == pytest.approx(MULTIPLIES, rel=0.015)
    assert sample.joules == pytest.approx(MULTIPLIES * us / 1e6, rel=0.015)
    assert (sample.state.sm_mhz, sample.state.temperature_c) == (MHZ, 55.0)
    expected = 2.0 if kind is InBursts else energy.LEAD + 1.0
    assert card.now - begin == pytest.approx(expected, abs=0.02)


def test_only_what_lies_between_two_steps_of_the_meter_counts():
    at = lambda *joules: [Reading(i / 10, j, 1000.0 + i) for i, j in enumerate(joules)]  # noqa: E731
    assert drawn([]) == (None, None) and drawn(at(5, 5, 25)) == (None, 1001.0)
    assert drawn(at(5, 5, 25, 25, 45, 65, 65)) == (pytest.approx(40 / 0.3), 1003.0)


def test_the_meter_is_read_by_a_thread_that_ends_with_the_block():
    before = threading.active_count()
    with energy.metered(lambda: (1.0, 2.0)) as readings:
        time.sleep(0.05)
    assert threading.active_count() == before and len(readings) > 2
    assert readings == sorted(readings) and readings[0][1:] == (1.0, 2.0)
    count = len(readings)
    time.sleep(0.01)
    assert len(readings) == count


def test_a_replay_is_kept_two_ahead_and_counted(monkeypatch):
    card, done = Card(monkeypatch), []
    graph = SimpleNamespace(replay=lambda: (done.append(1), card.draw(0.01, IDLE)))
    assert energy._keep(lambda: repeat(graph, 3), 0.3) == 10 and len(done) == 30


@pytest.mark.parametrize("nvml", [True, False])
def test_the_meter_reads_joules_and_mhz_or_is_none(monkeypatch, nvml):
    library = SimpleNamespace(
        NVMLError=ValueError, NVML_CLOCK_SM=1, nvmlDeviceGetClockInfo=lambda handle, which: 1980
    )
    if nvml:
        library.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 12_345_678
        monkeypatch.setattr(machine, "_nvml", lambda: (library, None))
        assert machine.meter()() == (12345.678, 1980)
    else:
        monkeypatch.setattr(machine, "_nvml", lambda: None)
        assert machine.meter() is None and machine.probe() is State


# The command


def made(kind):
    """A bench on the CPU whose samples have joules: of the regime, 2 ms, 3 J and 1 ms, 2 J."""

    class Bench(FakeBench):
        mode = kind.mode

        def __init__(self, case, plan, probe, meter, seconds):
            assert (meter(), seconds) == ((1.0, 2.0), 3)
            super().__init__(case, {})

        def loop(self, competitor):
            loop = super().loop(competitor)
            seconds = (2e-3 if kind is Settled else 1e-3) / (1.25 if competitor.rung else 1)
            sample = Sample(seconds, State(1500.0, 600.0, 60.0), 600.0 * seconds)
            return Loop(loop.launches, seconds, loop.replay, lambda: sample, loop.results)

    return Bench


@pytest.fixture
def timed(monkeypatch, tmp_path):
    (tmp_path / "mine.csv").write_text("id,name,M,N,K\nA,small,32,24,40\nB,other,48,24,40\n")
    monkeypatch.chdir(tmp_path)
    on_cpu(monkeypatch)
    monkeypatch.setattr(machine, "meter", lambda: lambda: (1.0, 2.0))
    monkeypatch.setattr(energy, "BENCHES", (made(Settled), made(InBursts)))


CONFIG = "tiled:BLOCK_M=16,BLOCK_N=16,BLOCK_K=16"
WORDS = ("joules", "--cases", "mine.csv", "--seconds", "3", "--rounds", "3", "--config", CONFIG)


def test_each_problem_has_both_regimes_in_one_table(timed, tmp_path, capsys, monkeypatch):
    asked, against = [], joules.against
    monkeypatch.setattr(joules, "against", lambda *given: asked.append(1) or against(*given))
    status, found = ran(tmp_path / "x.jsonl", *WORDS, "--peers", "lt,quack")
    told = capsys.readouterr().out
    assert status == 0 and len(asked) == 2  # once for both regimes of a problem
    names = ["tiled 16x16x16 w4 s1 linear", "auto", REFERENCE, NULL, "cublaslt", "quack"]
    modes = ["settled", "in bursts"]
    assert [(r.id, r.mode, r.competitor) for r in found] == [
        (key, mode, name) for key in "AB" for mode in modes for name in names
    ]
    settled, bursts = (by_name(r for r in found if r.id == "A" and r.mode == m) for m in modes)
    assert settled["auto"].mj.p50 == pytest.approx(960) and settled["auto"].ratio.p50 == 1.25
    assert bursts[REFERENCE].mj.p50 == pytest.approx(600) and settled["quack"].mj is None
    assert settled[names[0]].rung == "tiled" and settled[names[0]].config["BLOCK_N"] == 16
    title, _, head, *lines = told.splitlines()
    assert title == "A small: 32 x 24 x 40 NT, bf16" and "thousand cycles" in head
    (line,) = (text for text in lines[:15] if text.startswith("in bursts  cuBLAS again"))
    cells = "1000 600 1500 1500 600 (600-600) 1.000 (1.000-1.000), a tie"
    assert line.split()[4:] == cells.split()
    assert "quack: refused: the tensors are on the CPU" in told
    view, selection = show.VIEWS["joules"], Selection()
    table = view.table(view.chosen(found[::-1], selection), selection)
    assert table.count("| settled | auto |") == table.count("| in bursts | auto |") == 2


def test_what_is_wrong_is_not_timed(timed, tmp_path, monkeypatch):
    def spoilt(a, b, *, out, **options):
        torch.matmul(a, b, out=out)[-1, -1] += 1

    monkeypatch.setattr(tritemm, "matmul", spoilt)
    status, found = ran(tmp_path / "x.jsonl", *WORDS, "--id", "A")
    assert status == 1 and {r.outcome for r in found if r.rung} == {"wrong"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("joules --id P1", "the energy meter can't be read: pip install nvidia-ml-py"),
        ("joules --config nope:BLOCK_M=1", "a config is of one of simt, naive"),
        ("joules --config tiled:BLOCK_M=1,BLOCK=2", "a config is tiled:BLOCK_M=128,"),
        ("joules --config tiled", "BLOCK_K=64,..., not 'tiled'"),
        ("joules --config tiled:BLOCK_M=0,BLOCK_N=1,BLOCK_K=1", "a whole number, 1 or more"),
        ("joules --seconds 0.5", "a count is 1 or more, not '0.5'"),
    ],
)
def test_what_cannot_begin_is_refused(monkeypatch, capsys, words, message):
    on_cpu(monkeypatch)
    monkeypatch.setattr(machine, "meter", lambda: None)
    try:
        status = __main__.main(words.split())
    except SystemExit as error:
        status = error.code
    assert status == 2 and message in capsys.readouterr().err


def test_a_sample_without_steps_has_no_energy():
    there = object.__new__(Settled)
    there.probe = State
    assert there._sample(1e-3, None, 1500.0) == Sample(1e-3, State(sm_mhz=1500.0))
