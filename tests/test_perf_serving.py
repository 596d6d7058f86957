"""`python -m perf serving` on the CPU: which problems, how long, and what the rows say."""

import dataclasses
import itertools
import math
import os
from concurrent.futures import Future

import pytest

from docs import generate
from perf import __main__, bench, engine, machine, roof, rows, serving, serving_report, views
from perf import session as sessions
from perf.case import Case
from perf.commands import serving as command
from perf.commands import suite
from perf.machine import State
from perf.plots import figures
from perf.plots import serving as plot
from perf.rows import NULL, REFERENCE, Row
from perf.stats import Quantiles, geomean
from tritemm.problem import INTERPRETED, Device

from .perf_fakes import ENVIRONMENT, FakeBench, four_gpus, heading, parsed_by

pytestmark = pytest.mark.host

ROOFS = roof.Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), mhz=1500.0, gbs=4250.0)

#: Of the models' configs, as their makers publish them.
LLAMA_8B = {"hidden": 4096, "heads": 32, "kv": 8, "head": 128, "ffn": 14336, "gpus": 1}
LLAMA_70B = {"hidden": 8192, "heads": 64, "kv": 8, "head": 128, "ffn": 28672, "gpus": 8}
QWEN = {"hidden": 3584, "heads": 28, "kv": 4, "head": 128, "ffn": 18944, "gpus": 1}


def dense(hidden, heads, kv, head, ffn, gpus):
    return {
        "qkv": ((heads + 2 * kv) * head // gpus, hidden),
        "o": (hidden, heads * head // gpus),
        "gate_up": (2 * ffn // gpus, hidden),
        "down": (hidden, ffn // gpus),
    }


def deepseek():
    hidden, heads, ffn, expert, experts = 7168, 128, 18432, 2048, 256
    q_lora, kv_lora, nope, rope, v = 1536, 512, 128, 64, 128
    return {
        "q_kv_a": (q_lora + kv_lora + rope, hidden),
        "q_b": (heads * (nope + rope), q_lora),
        "kv_b": (heads * (nope + v), kv_lora),
        "o": (hidden, heads * v),
        "dense_gate_up": (2 * ffn, hidden),
        "dense_down": (hidden, ffn),
        "shared_gate_up": (2 * expert, hidden),
        "shared_down": (hidden, expert),
        "router": (experts, hidden),
    }


# The problems


def test_the_layers_are_those_of_the_models_configs():
    found = {}
    for layer in serving.known():
        found.setdefault(layer.model, {})[layer.name] = (layer.N, layer.K)
    assert found == {
        "Llama-3-8B": dense(**LLAMA_8B),
        "Llama-3-70B TP8": dense(**LLAMA_70B),
        "Qwen2.5-7B": dense(**QWEN),
        "Mixtral-8x7B": {"router": (8, 4096)},
        "DeepSeek-V3": deepseek(),
    }
    assert found["DeepSeek-V3"]["q_kv_a"] == (2112, 7168) and len(serving.known()) == 22


def test_rows_are_quarters_of_octaves_and_odd_ones():
    found = serving.ROWS
    assert (found[0], found[-1], len(found)) == (1, 4096, 53)
    assert list(found) == sorted(set(found))
    assert {2**bit for bit in range(13)} <= set(found)
    assert {3, 5, 7, 12, 20, 28, 320, 448, 1536, 2560, 3584, 17, 333, 1001, 2047} <= set(found)
    assert not {9, 11, 4095, 5120} & set(found)
    # Every M has a neighbour within a third of it, but for the least.
    assert all(b / a <= 4 / 3 for a, b in itertools.pairwise(found[2:]))


def test_a_problem_has_a_stable_id_and_a_linear_layers_layout():
    found = serving.problems()
    known = {problem.id: problem for problem in found}
    assert len(known) == len(found) == 22 * 53
    one = known["llama-3-8b/qkv/48"]
    assert one.case == Case(48, 6144, 4096, "NT", "bf16")
    assert one.to_json() == {"id": "llama-3-8b/qkv/48", "class": "Llama-3-8B", "name": "qkv"}
    assert "llama-3-70b-tp8/o/1" in known and "qwen2.5-7b/down/4096" in known
    layers = [problem.id.rpartition("/")[0] for problem in found]
    assert layers == sorted(layers, key=layers.index)  # layer by layer
    assert [problem.case.M for problem in found[:53]] == list(serving.ROWS)


def test_models_layers_and_rows_are_chosen():
    found = serving.problems(["deepseek-v3", "mixtral-8x7b"], ["router"], [100, 1, 100])
    assert [problem.id for problem in found] == [
        "mixtral-8x7b/router/1", "mixtral-8x7b/router/100",
        "deepseek-v3/router/1", "deepseek-v3/router/100",
    ]  # fmt: skip


@pytest.mark.parametrize("of", [1, 2, 3, 4, 7, 16])
def test_parts_share_the_problems_out_fairly(of):
    every = serving.problems()
    parts = [every[serving.part(f"{index + 1}/{of}")] for index in range(of)]
    assert sorted(p.id for own in parts for p in own) == sorted(p.id for p in every)
    assert sum(map(len, parts)) == len(every)
    for own in parts:
        assert abs(len(own) - len(every) / of) < 1
        for layer in serving.known():
            mine = [p for p in own if (p.group, p.name) == (layer.model, layer.name)]
            assert abs(len(mine) - 53 / of) < 1
        mean = geomean(p.case.M for p in own) / geomean(p.case.M for p in every)
        assert 0.9 < mean < 1.1
    # Of one M no part has all layers, as it had if layers were as long as a multiple of the parts.
    if of > 1:
        assert max(sum(p.case.M == 64 for p in own) for own in parts) <= math.ceil(22 / of)


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "1/0", "a/b", "-1/4", ""])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ValueError, match="a part is 1/4"):
        serving.part(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "llama"], "no model is called 'llama'; there are llama-3-8b, llama-3-70b-tp8"),
        (["--layer", "qkv,up"], "no layer is called 'up'; there are qkv, o, gate_up, down, router"),
        (["--model", "mixtral-8x7b", "--layer", "o"], "no layer is called 'o'; there are router\n"),
        (["--rows", "1,2", "--model", "mixtral-8x7b", "--part", "3/3"], "only 2 problems"),
    ],
)
def test_words_that_name_nothing_are_refused(words, message, capsys):
    assert __main__.main(["serving", *words]) == 2
    told = capsys.readouterr()
    assert message in told.err and not told.out


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--rows", "0"], "a count is 1 or more, not '0'"), (["--part", "5/4"], "a part is 1/4")],
)
def test_words_that_mean_nothing_are_refused(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        __main__.main(["serving", *words])
    assert error.value.code == 2 and message in capsys.readouterr().err


# How long


@pytest.mark.parametrize(
    ("M", "layer", "hungry"),
    [(1, (6144, 4096), False), (32, (28672, 4096), False), (128, (4096, 4096), True),
     (4096, (4096, 14336), True), (4096, (8, 4096), False), (32, (256, 7168), False)],
)  # fmt: skip
def test_only_what_may_draw_much_power_has_a_long_lead(M, layer, hungry):
    case = Case(M, *layer, "NT")
    assert command.hungry(case, ROOFS.of(case)) is hungry
    assert command.hungry(case, None)


# A run, with made-up times


@pytest.fixture
def timed(monkeypatch):
    """The command on the CPU: rungs are interpreted; what was compiled, and who raced how long."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    there = Watched()
    layers = (serving.Layer("Small A1", "up", 24, 40), serving.Layer("Small A1", "down", 40, 24))
    layers += (serving.Layer("Large B", "up", 48, 32),)
    monkeypatch.setattr(serving, "known", lambda: layers)
    monkeypatch.setattr(command, "unable", lambda name: None)
    monkeypatch.setattr(command, "Compilers", there.compilers)
    monkeypatch.setattr(command, "chosen", lambda case: case)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0))
    monkeypatch.setattr(roof, "measure", lambda probe: ROOFS)
    monkeypatch.setattr(bench, "BENCHES", {"sustained": there.bench})
    return there


class Watched:
    """In place of the compilers and of the bench."""

    def __init__(self):
        self.items, self.plans, self.waited, self.closed = [], [], [], False
        self.seconds = {"auto": 1e-3 / 1.05}

    def compilers(self, workers):
        self.workers = workers
        return self

    def submit(self, item):
        there = self

        class Waited(Future):
            def result(self, timeout=None):
                there.waited.append(item)
                return super().result(timeout)

        self.items.append(item)
        future = Waited()
        future.set_result(None)
        return future

    def bench(self, case, plan, probe):
        self.plans.append((case, plan, list(self.items)))
        return FakeBench(case, self.seconds)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.closed = True


def test_the_layers_race_and_are_recorded(timed, tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    words = ["serving", "--rows", "1,3,17", "--rounds", "12", "--out", str(path)]
    assert __main__.main(words) == 0
    told, found = capsys.readouterr(), rows.read(path)
    ids = [f"{layer}/{M}" for layer in ("small-a1/up", "small-a1/down", "large-b/up")
           for M in (1, 3, 17)]  # fmt: skip
    assert [(r.problem["id"], r.competitor) for r in found] == [
        (key, name) for key in ids for name in ("auto", REFERENCE)
    ]
    assert {row.experiment for row in found} == {"serving"}
    assert {(row.case.layout, row.case.dtype) for row in found} == {("NT", "bf16")}
    assert all(row.null.p50 == pytest.approx(1, abs=0.01) for row in found)
    ours = [row for row in found if row.competitor == "auto"]
    assert all(row.ratio.p50 == pytest.approx(1.05, abs=0.01) and row.rung for row in ours)
    assert "[9/9] large-b/up/17 up: 17 x 48 x 32 NT, bf16" in told.err
    assert "9 of 9, 100 %" in told.out and "cuBLAS against itself" in told.out

    assert __main__.main([*words, "--model", "large-b", "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4 and all('"class":"Large B"' in line for line in printed[1:])


def test_all_is_compiled_ahead_and_each_race_waits_for_its_own(timed, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    hungry = lambda case, roof: case.N == 48  # noqa: E731
    monkeypatch.setattr(command, "hungry", hungry)
    assert __main__.main(["serving", "--rows", "1,3", "--out", str(path)]) == 0
    cases = [case for case, _, _ in timed.plans]
    assert timed.items == timed.waited == cases and len(cases) == 6
    assert all(items == cases for _, _, items in timed.plans)  # before the first race
    assert timed.closed and timed.workers is None
    assert [plan.lead for _, plan, _ in timed.plans] == [0.02] * 4 + [0.1] * 2
    assert [plan.settle for _, plan, _ in timed.plans] == [2.5] + [0] * 5
    for _, plan, _ in timed.plans:
        assert (plan.rounds, plan.most, plan.error) == (5, 9, 0.006)
        assert 0.01 <= plan.replay <= 0.02


def test_the_plan_of_a_task_is_its_own(timed, tmp_path):
    args = parsed_by(command, "serving", "--out", str(tmp_path / "x.jsonl"))
    made, own = sessions.Session(args, "serving"), engine.Plan(rounds=2, settle=0, lead=0.3)
    problem = serving.problems(rows=[1])[0]
    tasks = [suite.task(problem, ["auto"]) for _ in range(3)]
    tasks[1] = dataclasses.replace(tasks[1], plan=own)
    made.measure(tasks, engine.Plan(rounds=3, settle=0))
    assert [race[0].rounds for race in made.races] == [3, 2, 3]
    assert [plan.lead for _, plan, _ in timed.plans] == [0.1, 0.3, 0.1]


def test_a_wrong_product_is_refused_and_a_failure_is_a_row(timed, tmp_path, monkeypatch):
    import tritemm

    def spoilt(a, b, *, out, **options):
        if a.shape[0] == 3:
            raise RuntimeError("it did not compile")
        out.copy_(a @ b)
        out[-1, -1] += 9
        return out

    monkeypatch.setattr(tritemm, "matmul", spoilt)
    path = tmp_path / "x.jsonl"
    words = ["serving", "--model", "large-b", "--rows", "1,3", "--out", str(path)]
    assert __main__.main(words) == 1
    outcomes = {(r.case.M, r.outcome) for r in rows.read(path) if r.competitor == "auto"}
    assert outcomes == {(1, "wrong"), (3, "failed")}


def test_parts_and_gpus_share_one_list(timed, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    four_gpus(monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    words = ["serving", "--rows", "1,3,17", "--rounds", "3", "--out", str(path), "--gpus", "2"]
    every = [problem.id for problem in serving.problems(rows=[1, 3, 17])]
    assert __main__.main([*words, "--part", "2/2"]) == 0
    assert [r.problem["id"] for r in rows.read(path)[::2]] == every[1::2]
    assert timed.workers == 6  # of each process: together as many as cores
    assert __main__.main([*words, "--part", "1/2"]) == 0
    found = rows.read(path)
    assert sorted({r.problem["id"] for r in found}) == sorted(every)
    assert {r.command.split(" --out")[0] for r in found} == {
        "python -m perf serving --rows 1,3,17 --rounds 3"
    }
    # Two sittings are shown as one list, in the order of the problems.
    (shown,) = views.VIEWS["serving"].chosen(found, views.Selection())
    assert [row.problem["id"] for row in shown[::2]] == every


# What the rows say


def made(problem, ratio, us=10.0, theirs=10.0, null=1.0, run="2026-01-02T00:00:00"):
    """Rows of "auto" and of cuBLAS; without a ratio, a refusal."""
    shared = vars(heading(problem.case, experiment="serving", problem=problem.to_json(), run=run))
    none = {"number": None, "config": None}
    one, again = Quantiles(1, 1, 1), Quantiles(null, null, null)
    measured = {
        "outcome": "measured", "rung": "split_k", "ladder": "triton",
        "us": Quantiles(us, us, us), "null": again, "ratio": ratio and Quantiles(*[ratio] * 3),
    } if ratio else {"outcome": "refused", "rung": "split_k", "reason": "no"}  # fmt: skip
    reference = {"outcome": "measured", "rung": None, "us": Quantiles(*[theirs] * 3), "ratio": one}
    return [
        Row(**shared | none | measured, competitor="auto"),
        Row(**shared | none | reference, null=again, competitor=REFERENCE),
    ]


def of(*ids):
    known = {problem.id: problem for problem in serving.problems()}
    return [known[key] for key in ids]


def some():
    ids = ("llama-3-8b/qkv/1", "llama-3-8b/qkv/48", "llama-3-8b/qkv/64", "llama-3-8b/o/16",
           "deepseek-v3/router/2", "deepseek-v3/router/4", "deepseek-v3/router/8")  # fmt: skip
    ratios = (1.21, 0.9, 0.98, 1.1, 0.97, 1.5, None)
    found = [
        row
        for place, (problem, ratio) in enumerate(zip(of(*ids), ratios, strict=True))
        for row in made(problem, ratio, us=20.0 + place, theirs=30.0 + place)
    ]
    found[2], found[3] = (
        dataclasses.replace(row, null=Quantiles(1.01, 1.01, 1.01)) for row in found[2:4]
    )
    return found


def test_every_layer_has_a_line_and_all_have_one():
    qkv, o, router, every = serving_report.lines(some())
    mean = geomean([1.21, 0.9, 0.98])
    assert qkv == (
        "Llama-3-8B", "qkv", "6144 x 4096", "3", f"{mean:.3f}", "0.900 (M = 48)", "2 of 3, 67 %",
    )  # fmt: skip
    assert o == (
        "Llama-3-8B", "o", "4096 x 4096", "1", "1.100", "1.100 (M = 16)", "1 of 1, 100 %",
    )  # fmt: skip
    assert router[3:] == ("2 of 3", f"{geomean([0.97, 1.5]):.3f}", "0.970 (M = 2)", "1 of 2, 50 %")
    mean = geomean([1.21, 0.9, 0.98, 1.1, 0.97, 1.5])
    least = "0.900 (llama-3-8b/qkv/48)"
    assert every == ("all", "", "", "6 of 7", f"{mean:.3f}", least, "4 of 6, 67 %")
    (only, _) = serving_report.lines(some()[-2:])
    assert only[3:] == ("0 of 1", "", "", "")


def test_peers_have_columns_where_they_raced():
    found = some()
    for place, ratio in ((0, 1.1), (2, 0.8)):  # of M = 1 and 48, their time over ours
        ours = found[place]
        them = dataclasses.replace(
            ours, competitor="cublaslt", rung=None, us=Quantiles(*[ours.us.p50 * ratio] * 3)
        )
        found[place] = dataclasses.replace(ours, versus={"cublaslt": Quantiles(*[ratio] * 3)})
        found.append(them)
    assert serving_report.head(found)[-3:] == ("with peers", "x best peer", "least")
    assert serving_report.head(some()) == serving_report.HEAD
    qkv, o, *_, every = serving_report.lines(found)
    mean = f"{geomean([1.1, 0.8]):.3f}"
    assert qkv[-3:] == ("2", mean, "0.800 (M = 48)") and o[-3:] == ("0", "", "")
    assert every[-3:] == ("2", mean, "0.800 (llama-3-8b/qkv/48)")
    assert qkv[:-3] == serving_report.lines(some())[0]
    assert "x best peer" in serving_report.text(found)
    assert "| x best peer |" in serving_report.markdown(found)


def test_the_worst_are_named_with_their_kernel_and_times():
    text = serving_report.text(some())
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("the worst"))
    worst = [line.split()[0] for line in lines[begin + 1 : begin + 6]]
    assert worst == [
        "llama-3-8b/qkv/48", "deepseek-v3/router/2", "llama-3-8b/qkv/64", "llama-3-8b/o/16",
        "llama-3-8b/qkv/1",
    ]  # fmt: skip
    assert lines[begin + 6] == ""  # and no sixth
    assert all(word in lines[begin + 1] for word in ("split_k", "21.0", "31.0", "0.900"))
    assert "deepseek-v3/router/8 refused: no." in text
    assert "farthest from 1 1.0100 (llama-3-8b/qkv/48)" in text
    assert serving_report.text([]) == "nothing was measured"


def test_the_markdown_is_whole():
    table = serving_report.markdown(some())
    parts = table.split("\n\n")
    for part in parts[:2]:
        assert len({line.count("|") for line in part.splitlines()}) == 1
    assert "| Llama-3-8B | qkv | 6144 x 4096 | 3 | 1.022 | 0.900 (M = 48) | 2 of 3, 67 % |" in table
    assert "nan" not in table and ".." not in table.replace(" ... ", "")
    assert "refused: no." in parts[2] and parts[3].startswith("cuBLAS against itself")


def test_each_problems_newest_race_is_shown():
    earlier, later = some(), []
    for problem in of("llama-3-8b/qkv/48"):
        later = made(problem, 1.3, run="2026-02-02T00:00:00")
    (shown,) = views.VIEWS["serving"].chosen([*later, *earlier], views.Selection())
    assert [row for row in shown if row.problem["id"] == "llama-3-8b/qkv/48"] == later
    order = [problem.id for problem in serving.problems()]
    places = [order.index(row.problem["id"]) for row in shown]
    assert places == sorted(places) and len(shown) == len(earlier)
    assert views.VIEWS["suite"].chosen(earlier, views.Selection()) is None
    own = made(serving.known()[0].problem(100), 1.2, run="2026-03-03T00:00:00")
    (with_others,) = views.VIEWS["serving"].chosen([*earlier, *own], views.Selection())
    assert with_others == views.VIEWS["serving"].chosen(earlier, views.Selection())[0]


def test_the_page_has_its_place_with_and_without_rows():
    assert generate.pictured("serving", "Layers", []) == "Not yet measured."
    told = generate.pictured("serving", "Layers", some())
    assert "| Llama-3-8B | qkv |" in told and told.endswith("![Layers](figures/serving.png)")
    page = (generate.ROOT / "docs" / "performance.md").read_text()
    assert generate.fill(page, {"serving": "PLANTED"}).count("PLANTED") == 1


# The picture


def test_labels_are_moved_apart_and_no_further_than_it_takes():
    assert figures.apart([], 1, 0, 9) == []
    assert figures.apart([7, 1, 4], 2, 0, 9) == [7, 1, 4]
    assert figures.apart([5, 5], 2, 0, 9) == [4, 6]
    assert figures.apart([5, 5.5, 5.2, 1], 2, 0, 9) == pytest.approx(
        [3.233, 7.233, 5.233, 1], abs=0.01
    )
    assert figures.apart([9, 9, 9], 2, 0, 9) == [5, 7, 9]
    assert figures.apart([0.5, 0, 8], 2, 0, 9) == [2, 0, 8]


def walk(problem):
    """A ratio that depends on the layer and on M, and two beyond the axes."""
    planted = {"mixtral-8x7b/router/4": 4.0, "deepseek-v3/kv_b/6": 0.3}
    return planted.get(problem.id, math.exp(0.1 * math.sin(problem.case.M + len(problem.name))))


def test_the_layers_are_drawn_and_bear_the_digest_of_their_rows(tmp_path):
    pytest.importorskip("matplotlib")
    found = [row for p in serving.problems() for row in made(p, walk(p))]
    view, path = views.PICTURES["serving"], tmp_path / "serving.png"
    lists = view.chosen(found, views.Selection())
    view.draw(*lists, path, views.Selection())
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 40_000
    assert figures.drawn_from(path) == view.digest(lists)
    with pytest.raises(ValueError, match="there is no measured row to plot"):
        plot.plot_serving([row for row in found if row.competitor == REFERENCE], path)


def test_no_two_labels_lie_on_one_another_and_none_is_cut_off(monkeypatch):
    Text = pytest.importorskip("matplotlib.text").Text
    drawn = []
    monkeypatch.setattr(plot, "save", lambda figure, *rest: drawn.append(figure))
    found = [row for p in serving.problems() for row in made(p, walk(p))]
    plot.plot_serving(found, None)
    (figure,) = drawn
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(
        dict.fromkeys(layer.model for layer in serving.known())
    )
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    texts = [text for axes in figure.axes for text in axes.texts]
    boxes = [Text.get_window_extent(text) for text in texts]  # of the words, without their line
    assert len(boxes) == 22
    for place, own in enumerate(boxes):
        assert own.count_overlaps(boxes[place + 1 :]) == 0
        assert figure.bbox.x0 <= own.x0 and own.x1 <= figure.bbox.x1


def test_a_race_of_one_m_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    found = [row for p in serving.problems(["llama-3-8b"], rows=[16]) for row in made(p, 1.02)]
    plot.plot_serving(found, tmp_path / "x.png")
    assert figures.drawn_from(tmp_path / "x.png") == figures.digest(found, plot.DRAWING)


def test_the_null_test_is_not_recorded_as_a_row_of_its_own(timed, tmp_path):
    path = tmp_path / "x.jsonl"
    assert __main__.main(["serving", "--rows", "1", "--rounds", "3", "--out", str(path)]) == 0
    assert NULL not in {row.competitor for row in rows.read(path)}
