"""The map of docs/concepts/map.md: each concept of the tensor-core ladder, and where it is here.

Places are those of `docs.techniques`, where there is a technique of the name, so that they stand
once; `tests/test_concepts.py` holds that files, pages and tests exist.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from .techniques import TECHNIQUES, Place, cuda, rung

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "concepts"


@dataclasses.dataclass(frozen=True)
class Concept:
    """`technique`: of docs.techniques, whose places are meant where none are given.

    `page`: from docs/concepts/, and `test`: as pytest is given it.
    """

    name: str
    page: str
    test: str
    technique: str = ""
    cuda: tuple[Place, ...] = ()
    triton: tuple[Place, ...] = ()

    def places(self, side: str) -> tuple[Place, ...]:
        """On one side: "cuda" or "triton"."""
        if own := getattr(self, side):
            return own
        found = [each for each in TECHNIQUES if each.name == self.technique]
        return getattr(found[0], side) if found else ()


def _classic(name: str, page: str, test: str, technique: str = "") -> Concept:
    return Concept(name, page, test, technique or name)


CONCEPTS = (
    Concept(
        "One element per thread", "../tutorial/01_simt.md",
        "tests/test_cuda_reference.py::test_shapes",
        cuda=(cuda("simt_naive.cu", "simt_naive_kernel"),),
        triton=(rung("k01_simt", "def simt_kernel"),),
    ),
    Concept(
        "wmma: fragments as objects", "fragments.md",
        "tests/test_cuda_fragments.py::test_a_device_s_fragments",
        cuda=(cuda("wmma_naive.cu", "wmma::mma_sync(acc, a, b, acc)"),),
        triton=(rung("k02_naive", "def naive_kernel"),),
    ),
    Concept(
        "mma: fragments in registers", "fragments.md",
        "tests/test_cuda_fragments.py::test_the_isa_s_words_for_m16n8k16",
        cuda=(cuda("include/ptx.cuh", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
              cuda("types/one_mma.cuh", "struct Fragments")),
        triton=(Place("docs/types/fragments.py", "class Fragment"),
                Place("docs/types/mma_sync.py", "def mma_sync_kernel")),
    ),
    _classic("ldmatrix", "fragments.md", "tests/test_cuda_fragments.py::"
             "test_b_by_columns_is_what_ldmatrix_loads_and_by_rows_what_trans_loads"),
    _classic("Block tile", "one_tile.md", "tests/test_correspondence.py::"
             "test_a_technique_stands_where_the_page_says"),
    _classic("Warp tile", "one_tile.md", "tests/test_correspondence.py::"
             "test_a_technique_stands_where_the_page_says"),
    _classic("Coalesced copies of 16 bytes", "shared_memory.md",
             "tests/test_cuda_reference.py::test_rows_far_apart", "Vectorised copies"),
    _classic("Block swizzle, the order of tiles", "raster.md",
             "tests/test_kernels.py::test_raster_orders", "Tile order"),
    Concept(
        "Right, left, right, left", "one_tile.md", "tests/test_cuda_emulated.py::test_edges",
        cuda=(cuda("include/mma_tile.cuh", "i % 2 ? WN / 8 - 1 - n : n"),),
    ),
    _classic("Padding", "shared_memory.md",
             "tests/test_mma_sync.py::test_only_plain_tiles_have_bank_conflicts"),
    _classic("Permuted shared memory", "shared_memory.md",
             "tests/test_mma_sync.py::test_only_plain_tiles_have_bank_conflicts", "Permutation"),
    Concept(
        "C staged through shared memory", "shared_memory.md",
        "tests/test_cuda_reference.py::test_stores_stay_inside_a_row",
        cuda=(cuda("include/mma_tile.cuh", "inline void store_tile("),),
        triton=(rung("device/tile", "def store_tile("),),
    ),
    _classic("cp.async", "../correspondence.md#cpasync", "tests/test_signs.py::test_signs"),
    Concept(
        "pg2s: the next step's copies in flight", "../tutorial/07_async_pg2s.md",
        "tests/test_mma_sync.py::test_a_rung_has_the_stages_that_it_says",
        cuda=(cuda("mma_async_pg2s.cu", "mma_async_pg2s_kernel("),),
        triton=(rung("k07_async_pg2s", "1 - now"),),
    ),
    _classic("ps2r: fragments loaded ahead", "../tutorial/07_async_pg2s_ps2r.md",
             "tests/test_correspondence.py::test_a_technique_stands_where_the_page_says",
             "Register prefetch"),
    _classic("Multi-stage rings", "../tutorial/07_async_stages.md",
             "tests/test_mma_sync.py::test_a_rung_has_the_stages_that_it_says", "Stages"),
    Concept(
        "fp16 accumulators", "../precision.md",
        "tests/test_cuda_reference.py::test_the_accumulator_is_the_one_asked_for",
        cuda=(cuda("include/ptx.cuh", "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"),),
        triton=(rung("device/tile", "input_precision=PRECISION, out_dtype"),),
    ),
    Concept(
        "The type table of wmma.mma", "../types.md",
        "tests/test_cuda_types.py::test_floats_are_exact_on_small_integers",
        cuda=(cuda("types/wmma_f16.cu", "FOR_SHAPES(X, f32, f32)"),
              cuda("types/table.py", "TABLE")),
        triton=(Place("docs/types/dot.py", "def dot_kernel"),
                Place("docs/types/gluon.py", "def mma_v2_kernel")),
    ),
    Concept(
        "WGMMA: core matrices and the descriptor", "shared_memory.md",
        "tests/test_cuda_fragments.py::test_every_element_is_somewhere", "WGMMA",
    ),
    Concept(
        "WGMMA: who holds the accumulator", "fragments.md",
        "tests/test_cuda_fragments.py::test_registers_hold_all_elements_once_or_are_repeated_alike",
        cuda=(cuda("include/wgmma.cuh", "void store_accumulator("),),
        triton=(rung("device/memory", "def mma_layout("),),
    ),
    Concept(
        "Swizzle modes", "shared_memory.md",
        "tests/test_pictures.py::test_every_swizzle_fills_all_banks",
        cuda=(cuda("types/one_wgmma.cuh", "struct Layout"),
              cuda("include/tma.cuh", "SWIZZLE_128B")),
        triton=(rung("device/memory", "def shared_layout("),),
    ),
    Concept(
        "The proxy fence", "../traps.md#what-wgmma-and-tma-see",
        "tests/test_cuda_traps.py::test_stores_are_fenced_before_wgmma_reads_them",
        cuda=(cuda("include/tma.cuh", "inline void proxy_fence()"),),
        triton=(Place("docs/types/wgmma.py", "fence_async_shared()"),),
    ),
    _classic("TMA", "../correspondence.md#tma-loads-and-stores", "tests/test_signs.py::test_signs",
             "TMA loads and stores"),
    _classic("mbarrier ring", "../correspondence.md#mbarrier-ring",
             "tests/test_signs.py::test_signs"),
    _classic("Warp specialisation", "../tutorial/10_warp_specialized.md",
             "tests/test_signs.py::test_signs"),
    _classic("Persistent programs", "../tutorial/09_persistent.md",
             "tests/test_signs.py::test_signs", "Persistent grid"),
    Concept("Split-K", "split_k.md", "tests/test_pictures.py::test_every_step_is_somebody_s",
            triton=(rung("k12_split_k", "Adds to"), rung("device/scheduler", "def share("))),
    Concept("Stream-K", "split_k.md", "tests/test_pictures.py::test_every_step_is_somebody_s",
            triton=(rung("k13_stream_k", "Adds to"), rung("device/stream_k", "def share_of("))),
    _classic("Clusters and multicast", "clusters.md",
             "tests/test_cluster.py::test_programs_stand_where_fewer_clusters_do"),
    Concept(
        "Sums exchanged within a cluster", "clusters.md",
        "tests/test_cluster_split_k.py::test_sums_go_from_registers_to_the_other_programs",
        triton=(rung("device/exchange", "st.async.weak.shared::cluster"),
                rung("k18_cluster_split_k", "Adds to")),
    ),
)  # fmt: skip


def table() -> str:
    """The map as Markdown: links from docs/concepts/."""
    lines = ["| concept | Triton | CUDA | page | test |", "|---|---|---|---|---|"]
    for concept in CONCEPTS:
        sides = (", ".join(map(_link, concept.places(side))) or "-" for side in ("triton", "cuda"))
        page = f"[{Path(concept.page.partition('#')[0]).stem}]({concept.page})"
        file, _, name = concept.test.partition("::")
        test = f"[{name.removeprefix('test_').replace('_', ' ')}](../../{file})"
        lines.append(f"| {concept.name} | {' | '.join(sides)} | {page} | {test} |")
    return "\n".join(lines)


def _link(place: Place) -> str:
    target = os.path.relpath(ROOT / place.file, PAGES)
    return f"[{Path(place.file).name}]({target})"
