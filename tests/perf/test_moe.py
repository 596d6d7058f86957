"""`python -m perf moe | experts` on the CPU: products of groups, and layers, of a tiny model."""

import functools

import pytest
import torch

import tritemm
from docs import generate
from perf import __main__, calls
from perf.calls import OURS
from perf.engine import Plan, Sample
from perf.experiments import experts, moe, show
from perf.experiments.experts import BATCHED
from perf.groups import EMPTY, MODELS, ZIPF, Model, routed
from perf.rows import AUTO_FAST, DENSE, NULL, REFERENCE
from perf.stats import geomean
from perf.views import Selection
from tests.perf.fakes import by_name, flat, kept, on_cpu, ran, row
from tritemm.problem import INTERPRETED

pytestmark = [pytest.mark.host, pytest.mark.once]
interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")
TORCH_MM, MATMUL = DENSE + REFERENCE, DENSE + OURS


@pytest.fixture
def timed(monkeypatch):
    monkeypatch.setitem(MODELS, "tiny", Model("Tiny", 4, 2, 32, 16))
    return on_cpu(monkeypatch)


def test_the_problems_are_all_combinations_and_groups_hold_what_they_share_out():
    every = moe.problems()
    assert len({problem.id for problem in every}) == len(every) == 360
    for problem in every:
        case, (*_, tokens, sizes) = problem.case, problem.id.split("/")
        if int(tokens) <= 512:
            ends = case.groups.ends(case.total)
            assert ends[-1] == case.total == int(tokens) * case.groups.top
            assert len(ends) == case.groups.count and sorted(ends) == list(ends)
            used = case.groups.used(case.total)
            assert used <= case.groups.count / (2 if sizes == EMPTY else 1)
    cases = {problem.id: problem.case for problem in every}
    up = [cases[f"qwen3-30b-a3b/up/{product}/512/balanced"] for product in moe.PRODUCTS]
    assert [(c.M, c.N, c.K, c.layout) for c in up] == [
        (4096, 1536, 2048, "NT"), (4096, 2048, 1536, "NN"), (1536, 2048, 4096, "TN"),
    ]  # fmt: skip
    assert len({c.flops for c in up}) == 1 and len({c.bytes for c in up}) == 1
    assert str(up[2]) == "1536 x 2048 x 4096 TN, bf16, 128 groups of K, balanced"


def test_tokens_choose_different_experts_and_the_same_ones_each_time():
    found = routed(128, 8, ZIPF, 4096)
    assert (found == routed(128, 8, ZIPF, 4096)).all()
    assert all(len(set(row)) == 8 for row in found[:99].tolist())
    # Recorded rows are of these: another numpy must not draw others.
    assert [sorted(row) for row in routed(8, 2, ZIPF, 3).tolist()] == [[0, 6], [3, 6], [1, 6]]
    ends = moe.case("mixtral-8x7b", "up", "forward", 4096, ZIPF).groups.ends(8192)
    sizes = sorted(b - a for a, b in zip((0, *ends), ends, strict=False))
    assert sizes[-1] > 4 * sizes[0]


def test_what_is_asked_for_is_drawn_by_the_seed(timed, capsys):
    def asked(*words):
        args = __main__.parser().parse_args(["moe", "--model", "mixtral-8x7b", *words])
        return [problem.id for problem in moe.drawn(args)]

    every = asked()
    assert len(every) == 72 and asked("--limit", "9") == every[:9] != asked("--seed", "1")[:9]
    words = ("--tokens", "8,512", "--sizes", "zipf", "--product", "weight", "--layer", "up")
    assert sorted(asked(*words)) == [f"mixtral-8x7b/up/weight/{n}/zipf" for n in (512, 8)]
    with pytest.raises(SystemExit):
        asked("--help")
    assert "some of balanced,zipf,empty" in capsys.readouterr().out


WORDS = ("moe", "--model", "tiny", "--layer", "up", "--tokens", "12", "--rounds", "3")


def test_groups_race_torchs_and_equal_ones_dense_products_too(timed, tmp_path, capsys):
    timed |= {OURS: 0.8e-3, TORCH_MM: 0.4e-3, MATMUL: 0.4e-3}
    status, found = ran(tmp_path / "x.jsonl", *WORDS)
    assert status == 0 and {r.outcome for r in found} == {"measured"}
    assert len({r.id for r in found}) == 9 and all(r.case.groups.count == 4 for r in found)
    for ours in (r for r in found if r.competitor == OURS):
        assert ours.ratio.p50 == pytest.approx(1.25, rel=0.03) and ours.rung and ours.null
        dense = {TORCH_MM, MATMUL} if ours.id.endswith("balanced") else set()
        assert set(ours.versus or {}) == dense
        assert all(of.p50 == pytest.approx(0.5, rel=0.03) for of in (ours.versus or {}).values())
    told = capsys.readouterr().out
    assert "torch against itself" in told and "the worst" in told


@interpreted
def test_groups_of_fp8_race_dense_products_where_torch_has_none(timed, tmp_path, monkeypatch):
    timed |= {OURS: 0.8e-3, AUTO_FAST: 0.6e-3, TORCH_MM: 0.4e-3, MATMUL: 0.4e-3}
    words = (*WORDS, "--sizes", "balanced,zipf", "--scaling", "row,block", "--product", "weight")

    def torchs(a, b, of_a, of_b, offs, *, out_dtype, use_fast_accum):
        assert out_dtype == torch.bfloat16 and of_a.dim() == 1
        return tritemm.scaled_grouped_mm(a, b, of_a, "row", of_b, "row", offs=offs)

    monkeypatch.setattr(torch, "_scaled_grouped_mm", torchs)
    status, found = ran(tmp_path / "x.jsonl", *words)
    assert status == 0 and {r.experiment for r in found} == {"scaled moe"}
    assert len({r.id for r in found}) == 4
    for ours in (r for r in found if r.competitor == OURS):
        word = ours.id.rpartition("/")[2]
        assert ours.outcome == "measured" and ours.case.scaling == word
        assert (ours.ratio is None) is (word == "block")
        assert (MATMUL in (ours.versus or {})) is ("/zipf/row" not in ours.id)
    table = show.VIEWS["scaled moe"].table(found, Selection())
    assert "weight" in table and "nan" not in table


@interpreted
@pytest.mark.parametrize("product", moe.PRODUCTS)
def test_one_wrong_element_of_one_group_is_not_timed(timed, tmp_path, monkeypatch, product):
    right = tritemm.grouped_mm

    def spoilt(a, b, *, offs, out):
        right(a, b, offs=offs, out=out)[..., -1, -1] += 1

    monkeypatch.setattr(tritemm, "grouped_mm", spoilt)
    words = (*WORDS, "--product", product, "--sizes", "empty")
    status, found = ran(tmp_path / "x.jsonl", *words)
    ours = by_name(found)[OURS]
    assert status == 1 and (ours.outcome, ours.us) == ("wrong", None)
    assert by_name(found)[REFERENCE].outcome == "measured"


def made(ratio=lambda place: 1.1, versus=()):
    """Rows of torch and ours for each problem; ratios by its place."""
    found = []
    for place, problem in enumerate(moe.problems()):
        shared = {"experiment": "moe", "case": problem.case, "title": problem.name}
        ours = {"us": flat(2.0), "versus": {k: flat(v) for k, v in dict(versus).items()} or None}
        given = problem.id, problem.group
        found.append(row(*given, ratio(place), rung="grouped", **ours, **shared))
        found.append(row(*given, 1.0, REFERENCE, us=flat(2.2), **shared))
        found.append(row(*given, 1.0, "quack", us=flat(2.1), **shared))
    return found


def test_the_table_has_a_line_for_product_and_tokens_sizes_and_all(tmp_path):
    ratios = [0.9 if place == 0 else 1.1 for place in range(360)]
    found = kept(made(ratios.__getitem__, {"quack": 1.05, TORCH_MM: 0.8, MATMUL: 0.75}))
    view = show.VIEWS["moe"]
    table, worst, *_ = moe.parts(view.chosen(found, Selection()))
    first, every = table.body[0], table.body[-1]
    assert [line[:2] for line in (first, table.body[-4], every)] == [
        ["forward", "32"], ["all", "balanced"], ["all", ""],
    ]  # fmt: skip
    assert len(table.body) == 3 * (4 + 1) + 3 + 1 and first[2] == "30" and every[2] == "360"
    assert first[3:5] == [f"{geomean([0.9] + 29 * [1.1]):.3f}", f"0.900 ({found[0].id})"]
    assert first[7:] == ["0.800", "0.750", "30", "1.050", f"1.050 ({found[0].id})"]
    assert worst.body[0][0] == found[0].id
    assert "in proportion to 1 / r" in view.table(view.chosen(found, Selection()), Selection())
    view.draw(found, tmp_path / "x.png", Selection())
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_a_number_of_tokens_counts_alike_however_much_of_it_was_raced():
    given = {"m/up/data/32/zipf": 4.0, "m/down/data/32/zipf": 4.0, "m/up/data/512/zipf": 1.0}
    assert moe.alike(given) == pytest.approx(2.0)
    assert moe.alike({**given, "m/up/weight/32/zipf": 1.0, "m/up/weight/512/zipf": None}) == (
        pytest.approx(geomean([4.0, 1.0, 1.0]))
    )


def test_pages_have_a_section_only_where_something_was_measured(monkeypatch):
    assert generate.section("moe", "Groups", []) == generate.section("experts", "Layers", []) == ""
    text = generate.section("moe", "Groups", made())
    assert text.startswith("## Groups\n\n| product |") and "![Groups](figures/moe.png)" in text


# Whole layers


def way(name):
    """transformers' are stand-ins, of which one copies the weights of each token."""
    if name != BATCHED:
        return experts.one_by_one if name == REFERENCE else OURS_BEFORE(name)

    def batched(module, hidden, index, weight):
        up = torch.einsum("th,tknh->tkn", hidden, module.gate_up_proj[index])
        down = module.down_proj[index]
        made = torch.einsum("tkn,tkhn->tkh", module._apply_gate(up), down)
        return (made * weight[..., None]).sum(1)

    return batched


OURS_BEFORE = experts.way


@pytest.fixture
def layers(timed, monkeypatch):
    """Nothing is captured; calls take no time."""
    monkeypatch.setattr(experts, "captured", lambda steps: (steps, steps()))
    monkeypatch.setattr(calls, "by_events", lambda call, count, probe: Sample(2.0))
    monkeypatch.setattr(experts, "SETS", 2)
    monkeypatch.setattr(experts, "PLAN", Plan(settle=0, longest=2))
    monkeypatch.setattr(experts.LayerBench, "first", 1)
    monkeypatch.setattr(experts, "way", way)
    monkeypatch.setattr(experts, "missing", lambda: None)
    bench = functools.partial(experts.LayerBench, device="cpu")
    monkeypatch.setattr(experts, "LayerBench", bench)
    monkeypatch.setattr(experts, "LAYERS", ("tiny",))
    monkeypatch.setitem(MODELS, "tiny", Model("Tiny", 3, 2, 16, 8))


LAYERS = ("experts", "--tokens", "3", "--rounds", "3")


@interpreted
def test_layers_race_and_are_shown(layers, tmp_path, capsys):
    status, found = ran(tmp_path / "x.jsonl", *LAYERS)
    names = (REFERENCE, NULL, BATCHED, OURS)
    wanted = [(f"tiny/{work}/3", name) for work in experts.WORK for name in names]
    assert status == 0 and [(r.id, r.competitor) for r in found] == wanted
    assert all(r.us.p50 == pytest.approx(1e6) and r.mode == "layer" for r in found)
    forward, train = found[3], found[7]
    assert forward.case.flops == 2 * (3 * 2) * (3 * 8) * 16 == train.case.flops / 3
    assert set(train.versus) == {BATCHED} and 0 < train.worst < 1
    assert "Tiny train" in capsys.readouterr().out
    text = show.VIEWS["experts"].table(found, Selection())
    assert "| Tiny forward | 3 | 1000000 | 1000000 | 1000000 |" in text


@interpreted
def test_a_layer_that_loses_a_gradient_is_not_timed(layers, monkeypatch, tmp_path):
    right = tritemm.moe
    monkeypatch.setattr(
        tritemm, "moe", lambda hidden, up, down, index, weight: right(
            hidden.detach() + 0 * hidden, up, down, index, weight
        ),
    )  # fmt: skip
    status, found = ran(tmp_path / "x.jsonl", *LAYERS, "--work", "train")
    ours = by_name(found)[OURS]
    assert (status, ours.outcome) == (1, "wrong") and "gradient of hidden" in ours.reason
