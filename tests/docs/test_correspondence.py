"""The two ladders' correspondence: twins in the headers, and a page whose proofs are so."""

import copy
import dataclasses
import re

import pytest

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from docs import code, correspondence, generate
from docs.code import PAGE
from docs.correspondence import proofs
from docs.excerpt import ROOT
from perf import sources
from perf.case import Case
from perf.competitors import named, rivals, rung_of, twins
from perf.rows import Row
from perf.stats import Quantiles
from tests.dispatch import choosing
from tests.harness import needs_nvcc
from tests.perf.fakes import ENVIRONMENT
from tests.sweep import drawn
from tritemm.rungs import RUNGS
from tritemm.spec import find

pytestmark = pytest.mark.host


# Twins


@pytest.mark.parametrize("kernel", CUDA_RUNGS, ids=lambda kernel: kernel.name)
def test_every_cuda_rung_mirrors_a_triton_rung(kernel):
    """All words of the line are names: of rungs that exist, in configs that they have."""
    words = kernel.header["Mirrors"].split(", ")
    assert words == list(named(kernel, RUNGS))
    asked = choosing.problem(4096, 4096, 4096, "NT")
    for word in words:
        index = int(word.partition("[")[2].rstrip("]") or 0)
        assert index < len(find(rung_of(word), RUNGS).configs(asked))
    assert rivals(kernel, CUDA_RUNGS, RUNGS) == twins(kernel, RUNGS)


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)
def test_every_triton_rung_has_a_cuda_twin_or_says_nothing(kernel):
    assert twins(kernel, CUDA_RUNGS) or kernel.header["Mirrors"].startswith("nothing")


def test_no_name_stands_on_both_ladders():
    assert not {k.name for k in RUNGS} & {k.name for k in CUDA_RUNGS}


# The page


#: The table of techniques: what each is called, its anchor, and where it stands.
LISTED = re.findall(r"^\| \[([^\]]+)\]\(#([^)]+)\) (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("name", "slug", "line"), LISTED, ids=[slug for _, slug, _ in LISTED])
def test_a_technique_stands_where_the_page_says(name, slug, line):
    assert f"\n## {name}\n" in PAGE.read_text()
    places = re.findall(r"`([^`]+)` in \[[^\]]+\]\(\.\./([^)]+)\)", line)
    assert len({file.partition("/")[0] for _, file in places}) == 2, "a place on each side"
    for words, file in places:
        assert words in (ROOT / file).read_text(), file
    known = {kernel.name: kernel for kernel in (*RUNGS, *CUDA_RUNGS)}
    proof = proofs()[slug]
    assert {rung_of(key.partition(" sm_")[0]) for key in proof["in"]} <= set(known)
    for ratio in proof.get("ratios", ()):
        triton, cuda = ratio.split(" / ")
        assert triton in rivals(known[cuda], CUDA_RUNGS, RUNGS), "they are not compared"
    entries = [code.load()[key] for key in proof["in"]]
    for mnemonic in proof["count"]:
        assert any(code.count(entry, mnemonic) for entry in entries), mnemonic


def test_every_generated_part_has_its_place():
    assert {slug for _, slug, _ in LISTED} == set(proofs())
    text = PAGE.read_text()
    for name in (*correspondence.parts([]), "comparison"):
        assert text.count(f"<!-- begin: {name} -->") == 1, name
        assert text.count(f"<!-- end: {name} -->") == 1, name


def test_a_hand_edited_table_is_stale(monkeypatch):
    """The other pages, which take seconds, are left out."""
    monkeypatch.setattr(generate.tutorial, "pages", lambda rows: {})
    for other in (generate.cost_model, generate.types):
        monkeypatch.setattr(other, "parts", dict)
    found, read = generate.pages(), type(PAGE).read_text
    assert PAGE not in generate.stale_texts(found)

    def edited(path, *args, **kwargs):
        text = read(path, *args, **kwargs)
        return text.replace("| tiled (Triton", "| Tiled (Triton") if path == PAGE else text

    monkeypatch.setattr(type(PAGE), "read_text", edited)
    assert PAGE in generate.stale_texts(found)


# The recorded code


#: Of each ladder and architecture, and with each thing that is looked at.
SAMPLE = ("mma_permuted sm_80", "wmma_base sm_80", "wgmma_cluster sm_90", "permuted[2] sm_80",
          "async_pg2s_ps2r sm_80", "tma sm_90", "cluster sm_90")  # fmt: skip


def test_a_sample_of_the_recorded_code_is_what_the_compilers_make(monkeypatch):
    needs_nvcc()
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # which it sets
    assert set(SAMPLE) <= set(code.load())
    new = code.record(drawn(SAMPLE, 3))
    assert code.differences(code.load(), new) == []
    for key, entry in new.items():
        for proof in (each for each in proofs().values() if key in each["in"]):
            for name in proof["count"]:
                was = code.count(code.load()[key], name)
                assert bool(was) == bool(code.count(entry, name)), f"{key}: {was} {name} recorded"


def test_counts_must_agree_with_the_same_compiler():
    old, key = code.load(), "tiled sm_80"
    assert code.differences(old, old) == []
    more = copy.deepcopy(old)
    more[key]["variants"]["HMMA.16816.F32.BF16"] += 1
    compiler = more[key]["compiler"]
    assert code.differences(old, more) == [f"{key}: not what {compiler} makes of it"]
    more[key]["compiler"] = "Triton 9"
    assert code.differences(old, more) == []
    assert code.differences({}, {key: old[key]}) == [f"{key}: new"]


def test_the_order_of_loads_and_products():
    sass = "\n".join(
        f"        /*{16 * i:04x}*/                   {line} ;"
        for i, line in enumerate(
            ["LDSM.16.M88.4 R4, [R2]", "@!P0 LDSM.16.M88.4 R8, [R2]", "IADD3 R2, R2, 1",
             "HMMA.16816.F32 R4, R4, R8, R4", "BAR.SYNC.DEFER_BLOCKING 0x0",
             "HMMA.16816.F32 R4, R4, R8, R4", "LDSM.16.M88.4 R4, [R2]"]
        )
    )  # fmt: skip
    assert code.order(sass) == "2 LDSM, 1 HMMA, 1 BAR, 1 HMMA"


# Measured ratios


def measured_row(**fields):
    row = Row(
        time="2026-01-02T03:04:05+00:00", command="", mode="sustained", environment=ENVIRONMENT,
        case=Case(4096, 4096, 4096, "NT", "fp16"), competitor="mma_base", rung="mma_base",
        ladder="cuda", number=11, config={}, outcome="measured",
        versus={"tiled": Quantiles(0.78, 0.8, 0.82)},
    )  # fmt: skip
    return dataclasses.replace(row, **fields)


def test_the_newest_ratio_of_the_first_case_is_shown():
    pairs = ("tiled / mma_base", "tiled / wmma_base")
    older = measured_row(
        time="2025-01-01T00:00:00+00:00", versus={"tiled": Quantiles(0.1, 0.2, 0.3)}
    )
    half = measured_row(
        time="2027-01-01T00:00:00+00:00",
        case=Case(4096, 4096, 4096, "NT", "fp16", "fp16"),
        versus={"tiled": Quantiles(0.4, 0.5, 0.6)},
    )
    found = correspondence.measured(pairs, [measured_row(), older, half])
    assert found.splitlines() == [
        "Triton's speed over CUDA's, 4096 x 4096 x 4096 NT, fp16 on NVIDIA H200, 2026-01-02: "
        "tiled / mma_base 1.250 (1.220-1.282).",
        "Triton's speed over CUDA's, not yet measured: tiled / wmma_base.",
    ]
    timed = measured_row(us=Quantiles(1, 1, 1))
    twin = dataclasses.replace(timed, competitor="tiled", rung="tiled", ladder="triton", code="x")
    timed = dataclasses.replace(timed, code=sources.hash_of(timed))
    assert "have changed" not in correspondence.measured(pairs, [timed])
    told = correspondence.measured(pairs, [timed, twin])
    assert "H200, 2026-01-02; the kernels have changed since: tiled / mma_base 1.250" in told
    assert "2.000" in correspondence.measured(pairs, [half])
    assert correspondence.measured(pairs[:1], []).endswith("not yet measured: tiled / mma_base.")


def test_the_comparison_is_on_the_page_once_it_is_measured():
    assert generate.comparison([]) == "Not yet measured."
    measured = {
        "us": Quantiles(1e3, 1e3, 1e3), "ratio": Quantiles(0.2, 0.2, 0.2),
        "rounds": 15, "launches": 100,
    }  # fmt: skip
    text = generate.comparison([measured_row(**measured)])
    assert text.startswith("**4096 x 4096 x 4096 NT, fp16, sustained.")
    assert "| mma_base | 1000 | 137 | 0.200 (0.200-0.200) |  | tiled 1.25 |" in text
