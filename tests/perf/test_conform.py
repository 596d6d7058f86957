"""The hunt for wrong results: what it draws, that it finds them, and what it says."""

import contextlib
import dataclasses
import functools
import itertools
import json
import sys
from concurrent.futures import Executor, Future
from types import SimpleNamespace

import pytest
import torch

import tritemm
from perf.__main__ import main
from perf.experiments import conform, conform_bits, conform_groups, conform_law
from perf.experiments.conform import Finding, Found, Hunt, Place, drawn, line, told
from perf.experiments.conform_groups import GroupHunt, Grouping, ends
from perf.machine import Environment

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLACE = Place(3, 5, "NT", "fp16", "fp32", 0, 0)


@pytest.fixture
def hunt(monkeypatch):
    """On small matrices, in the interpreter where there is no GPU."""
    monkeypatch.setattr(conform, "LARGEST", 4)
    monkeypatch.setattr(conform, "DEEPEST", 8)
    return Hunt(0, DEVICE)


def test_as_many_problems_as_asked_for_of_every_kind():
    places = drawn(60_000, 0)
    assert sum(len(depths) for _, depths in places) == 60_000
    assert {place.layout for place, _ in places} == {"NN", "NT", "TN", "TT"}
    assert {(place.dtype, place.output) for place, _ in places} == set(conform.TYPES)
    assert {bool(place.shift) for place, _ in places} == {True, False}
    assert drawn(60_000, 0) == places != drawn(60_000, 1)


@pytest.mark.parametrize("data", conform.DATA)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("shift", "pad"), [(0, 0), (1, 8), (8, 1)])
def test_the_exact_result_is_that_of_the_operands(hunt, data, layout, shift, pad):
    place = Place(5, 7, layout, "fp16", "fp32", shift, pad)
    a, b = hunt.operands(place, 11, data)
    assert a.storage_offset() == shift and (a.stride(1) == 1) == (layout[0] == "N")
    assert max(a.stride()) == (11 if layout[0] == "N" else 5) + pad
    want = hunt.exact(place, 11, data)
    assert want.dtype == torch.float32 and torch.equal(want.double(), a.double() @ b.double())
    assert torch.all(want == 11) == (data == "ones")


@pytest.mark.parametrize(
    ("dtype", "output"),
    [("fp16", "fp32"), ("bf16", "bf16"), ("tf32", "fp32"), ("fp32", "fp32"), ("fp64", "fp64")],
)
def test_nothing_is_found_where_nothing_is_wrong(hunt, dtype, output):
    found = hunt.multiply(Place(3, 9, "TN", dtype, output, 1, 1), [1, 7, 40])
    assert found.findings == [] and found.problems == 3
    assert found.products["ours"] == 6


def cublas(fault, a, b, out, place):
    """With a dropped tail, as cuBLAS drops the last 8 of K = 11528; lazy; or refusing."""
    if fault == "refuses":
        raise RuntimeError("not supported")
    kept = a.shape[1] // 8 * 8 if fault == "drops" else a.shape[1]
    torch.mm(a[:, :kept].float(), b[:kept].float(), out=out)
    if fault == "lazy":
        out[-1, -1] = conform.POISON


@pytest.mark.parametrize("fault", ["drops", "lazy", "refuses"])
def test_what_is_wrong_is_found_with_either_data_and_a_refusal_is_counted(hunt, monkeypatch, fault):
    planted = functools.wraps(cublas)(functools.partial(cublas, fault))
    monkeypatch.setattr(conform, "cublas", planted)
    found = hunt.multiply(PLACE, [24, 28])
    ones = Finding("cublas", PLACE, 28, "ones", 15, 24.0, 28.0)
    if fault == "drops":
        assert {(f.K, f.data) for f in found.findings} == {(28, "ones"), (28, "signs")}
        assert ones in found.findings
    elif fault == "lazy":
        assert [f.wrong for f in found.findings] == [1] * 4
    else:
        assert not found.findings and not found.products["cublas"]
        assert found.refused["cublas"] == 4


@pytest.mark.parametrize(
    ("name", "error"), [("ours", RuntimeError), ("cublas", torch.OutOfMemoryError)]
)
def test_a_failure_is_no_refusal(hunt, monkeypatch, name, error):
    def failing(a, b, out, place):
        raise error("a launch failed")

    failing.__name__ = name
    monkeypatch.setattr(conform, name, failing)
    with pytest.raises(error, match="a launch failed"):
        hunt.multiply(PLACE, [16])


def test_the_line_shows_the_finding():
    """It is pasted into Python; here, on a CPU."""
    finding = Finding("cublas", PLACE, 28, "ones", 15, 24.0, 28.0)
    said = line(finding).replace(', device="cuda"', "").replace(", out_dtype=torch.float32", "")
    assert torch.equal(eval(said), torch.full((3, 5), 28, dtype=torch.float16))
    assert "out_dtype=torch.float32" in line(finding)
    assert line(Finding("cublas", PLACE, 28, "signs", 15, 24.0, 28.0)) == ""


def test_what_was_found_is_told_by_place(monkeypatch):
    monkeypatch.setattr(conform, "environment", lambda: Environment("a GPU", *[None] * 7))
    found = Found(2)
    found.products.update(cublas=8, ours=8)
    found.findings += [Finding("cublas", PLACE, K, "ones", 15, 24.0, float(K)) for K in (28, 60)]
    text = told(found, 3.2)
    assert "cublas: 2 of 8 products wrong" in text and "ours: 0 of 8 products wrong" in text
    assert "2, with K from 28 to 60" in text and "one 24 for 28" in text
    assert text.endswith("2 problems in 3 s")
    assert json.loads(json.dumps(conform.as_json(found, 0, 3.2)))["problems"] == 2


class Inline(Executor):
    """A pool whose work is done in this process."""

    def __init__(self, workers, context, begin, arguments):
        begin(*arguments[:2], DEVICE)

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(conform, "unable", lambda command: None)
    monkeypatch.setattr(conform, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(conform, "environment", lambda: Environment("a GPU", *[None] * 7))


def test_the_command_writes_what_it_found(hunt, inline, tmp_path, capsys):
    file = tmp_path / "found.json"
    assert main(["conform", "--n", "5", "--seed", "3", "--out", str(file)]) == 0
    assert "ours: 0 of 10 products wrong" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert (found["problems"], found["findings"]) == (5, [])


#: Groups of 20 rows, columns or terms, four of which are behind the last.
GROUPING = Grouping(20, 9, "NN", "bf16", "fp32", 0, 0, "m", 6, "even", 16, 1)


def of(cut: str, **changes) -> tuple[Grouping, int]:
    """This grouping, of what is cut, and its K."""
    M, N, K = {"m": (20, 9, 12), "n": (9, 20, 12), "k": (12, 9, 20)}[cut]
    return dataclasses.replace(GROUPING, M=M, N=N, cut=cut, **changes), K


def lengths(place: Grouping, K: int) -> list[int]:
    return [end - begin for begin, end in itertools.pairwise((0, *ends(place, K)))]


def test_as_many_groupings_as_asked_for_of_every_kind():
    jobs = conform_groups.drawn(2000, 0)
    cases = [(place, K) for job in jobs for place, (K,) in job]
    places = [place for place, _ in cases]
    assert len(places) == 2000 and jobs == conform_groups.drawn(2000, 0)
    assert {place.cut for place in places} == set("mnk")
    assert {place.sizes for place in places} == set(conform_groups.SIZES)
    assert {(place.dtype, place.output) for place in places} == set(conform.TYPES)
    assert sum(place.count > 512 for place in places) > 50 < sum(p.count == 1 for p in places)
    assert any(place.count > 1024 for place in places)
    for place, K in cases:
        sizes, whole = lengths(place, K), {"m": place.M, "n": place.N, "k": K}[place.cut]
        assert len(sizes) == place.count and min(sizes) >= 0
        assert sum(sizes) <= place.covered <= whole < 2**16
        assert place.sizes != "one" or max(sizes) == place.covered
        assert place.sizes != "single" or max(sizes) <= 1


@pytest.mark.parametrize("cut", "mnk")
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("shift", "pad"), [(0, 0), (1, 8)])
def test_the_exact_result_is_that_of_the_groups(cut, layout, shift, pad):
    place, K = of(cut, layout=layout, shift=shift, pad=pad)
    a, b = GroupHunt(0, DEVICE).operands(place, K, "signs")
    assert a.storage_offset() == b.storage_offset() == shift
    assert (a.stride(-1) == 1, b.stride(-1) == 1) == (layout[0] == "N", layout[1] == "N")
    assert a.dim() + b.dim() == (4 if cut == "k" else 5)
    a, b = a.double(), b.double()
    want = a.new_zeros((place.count, place.M, place.N) if cut == "k" else (place.M, place.N))
    for g, (begin, end) in enumerate(itertools.pairwise((0, *ends(place, K)))):
        if cut == "m":
            want[begin:end] = a[begin:end] @ b[g]
        elif cut == "n":
            want[:, begin:end] = a[g] @ b[:, begin:end]
        else:
            want[g] = a[:, begin:end] @ b[begin:end]
    assert torch.equal(GroupHunt(0, DEVICE).exact(place, K, "signs").double(), want)


@pytest.mark.parametrize("cut", "mnk")
@pytest.mark.parametrize(
    ("types", "sizes", "count"),
    [
        (("bf16", "bf16"), "even", 6),
        (("fp16", "fp16"), "sparse", 33),
        (("tf32", "fp32"), "one", 5),
        (("int8", "int32"), "single", 9),
        (("fp64", "fp64"), "skewed", 1),
    ],
)
def test_nothing_is_found_where_no_group_is_wrong(cut, types, sizes, count):
    place, K = of(cut, dtype=types[0], output=types[1], sizes=sizes, count=count, layout="TN")
    found = GroupHunt(0, DEVICE).multiply(place, [K])
    assert found.findings == [] and (found.problems, found.products["ours"]) == (1, 2)


def planted(fault: str, right, calls: list, a, b, *, offs, out, **options):
    """A product of groups with a fault."""
    calls.append(fault)
    if fault == "refuses":
        raise NotImplementedError("no such groups")
    if fault == "fails":
        raise RuntimeError("a launch failed")
    if fault == "boundary":
        first = int((offs.diff(prepend=offs.new_zeros(1)) > 0).nonzero()[0])
        offs = offs.clone()
        offs[first] -= 1
    right(a, b.abs() if fault == "sign" else b, offs=offs, out=out, **options)
    if fault == "unsteady" and len(calls) == 2:
        out.view(-1)[3] += 1
    if fault == "rest":
        out[..., int(offs[-1]) :] = conform.POISON
    if fault == "empty":
        out[offs.diff(prepend=offs.new_zeros(1)) == 0] = conform.POISON
    if fault == "zero":
        out[out == 0] = -0.0


@pytest.fixture
def plant(monkeypatch):
    def planting(fault: str) -> None:
        faulty = functools.partial(planted, fault, tritemm.grouped_mm, [])
        monkeypatch.setattr(tritemm, "grouped_mm", faulty)

    return planting


@pytest.mark.parametrize(
    ("cut", "fault", "times"),
    [
        *[(cut, fault, 2) for cut in "mnk" for fault in ("boundary", "sign")],
        ("m", "unsteady", 1), ("n", "rest", 2), ("k", "empty", 2), ("m", "zero", 2),
    ],
)  # fmt: skip
def test_a_group_that_is_wrong_is_found(plant, cut, fault, times):
    plant(fault)
    place, K = of(cut, count=12)
    found = GroupHunt(0, DEVICE).multiply(place, [K])
    assert [(f.by, f.place, f.K) for f in found.findings] == [("ours", place, K)] * times
    assert all(f.wrong > 0 for f in found.findings) or fault == "unsteady"
    assert repr(place) in told(found, 1)


def test_groups_that_are_refused_are_counted_with_the_words_and_a_failure_is_no_refusal(plant):
    place, K = of("m")
    plant("refuses")
    found = GroupHunt(0, DEVICE).multiply(place, [K])
    assert found.refused["ours"] == 2 and not found.products and not found.findings
    text = told(found, 1)
    assert "ours: 0 of 0 products wrong, 2 refused\n" in text
    assert "  2 refused by ours: no such groups\n" in text
    plant("fails")
    with pytest.raises(RuntimeError, match="a launch failed"):
        GroupHunt(0, DEVICE).multiply(place, [K])


def test_the_command_hunts_in_groups(inline, monkeypatch, capsys):
    for name, log in (("LARGEST", 3), ("LONGEST", 4), ("GROUPS", 2)):
        monkeypatch.setattr(conform_groups, name, log)
    assert main(["conform", "--groups", "--n", "5"]) == 0
    assert "ours: 0 of 10 products wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "parts", "K", "lost"),
    [
        (66, 9, 64 * 198 + 8, True), (66, 9, 64 * 198 + 9, False), (66, 9, 64 * 199 + 8, False),
        (66, 9, 64 * 198, False), (65, 9, 64 * 198 + 8, False), (66, 1, 64 * 198 + 8, False),
    ],
)  # fmt: skip
def test_the_law_of_the_lost_tail(algorithm, parts, K, lost):
    assert conform_law.Plan(algorithm, parts).loses(K) == lost


def planning(monkeypatch, plan, multiply):
    """nvmath in a test: this plan, and this product of the operands as they are."""

    @contextlib.contextmanager
    def planned(a, b, out):
        yield SimpleNamespace(execute=lambda: multiply(a, b, out)), plan

    monkeypatch.setattr(conform_law, "planned", planned)
    monkeypatch.setattr(conform_bits, "planned", planned)


def short(a, b, out, *rest):
    """Without the terms behind the last whole step."""
    kept = a.shape[1] // conform_law.STEP * conform_law.STEP
    torch.mm(a[:, :kept].float(), b[:kept].float(), out=out)


def whole(a, b, out, *rest):
    torch.mm(a.float(), b.float(), out=out)


@pytest.mark.parametrize(
    ("parts", "multiply", "said"),
    [(8, short, "lost | lost"), (2, short, "kept | lost"), (8, whole, "lost | kept"),
     (1, lambda a, b, out: out.fill_(1), "kept | otherwise wrong")],
)  # fmt: skip
def test_what_the_law_says_is_counted_beside_what_came_out(
    hunt, monkeypatch, parts, multiply, said
):
    planning(monkeypatch, conform_law.Plan(66, parts), multiply)
    monkeypatch.setattr(conform_law, "cublas", functools.wraps(conform.cublas)(whole))
    monkeypatch.setattr(conform, "DEEPEST", 10)
    law = conform_law.LawHunt(0, DEVICE)
    a, b = law.operands(PLACE, 64 * 8 + 2, "tail")
    assert torch.equal(a @ b, law.exact(PLACE, 64 * 8 + 2, "tail").half())
    found = law.multiply(PLACE, [64 * 8 + 2])
    assert found.tallies == {f"cublaslt | {said}": 1, f"torch.mm | {said.split()[0]} | kept": 1}
    assert f"cublaslt | {said}: 1" in told(found, 1)


def test_equal_bits_are_counted_by_who_cuts_k(monkeypatch):
    planning(monkeypatch, conform_law.Plan(66, 3), None)
    monkeypatch.setattr(conform_bits, "LARGEST", 4)
    monkeypatch.setattr(conform_bits, "DEEPEST", 8)
    hunt = conform_bits.BitsHunt(0, DEVICE)

    def off_by_a_bit(a, b, out, place):
        tritemm.matmul(a, b, out=out, **conform.options(place))
        if a.shape[1] == 40:
            out[0, 0] = torch.nextafter(out[0, 0], out.new_tensor(9e9))

    monkeypatch.setattr(conform_bits, "cublas", off_by_a_bit)
    found = hunt.multiply(PLACE, [24, 40])
    (key,) = {words.rpartition(" | ")[0] for words in found.tallies}
    assert key.startswith("nvjet, in parts | ")
    counts = {words.rpartition(" | ")[2]: count for words, count in found.tallies.items()}
    assert counts == {"products": 2, "equal": 1, "elements": 30, "equal elements": 29}


@pytest.mark.parametrize("module", [conform_bits, conform_law], ids=["bits", "law"])
def test_the_other_hunts_draw_as_many_problems_as_asked_for(module):
    jobs = module.drawn(20_000, 0)
    cases = [(place, K) for job in jobs for place, depths in job for K in depths]
    assert len(cases) == 20_000 and jobs == module.drawn(20_000, 0)
    assert {place.layout for place, _ in cases} == {"NN", "NT", "TN", "TT"}
    if module is conform_law:
        assert all(K % 64 and (place.M % 8 == 0 or place.N % 8 == 0) for place, K in cases)


def test_without_nvmath_the_hunts_that_need_it_are_refused(inline, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nvmath", None)
    conform_law.unable.cache_clear()
    assert main(["conform", "--law"]) == 2
    assert "pip install .[peers]" in capsys.readouterr().err
    conform_law.unable.cache_clear()
