"""What docs/correspondence.md speaks of: each technique's places, and what proves it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Place:
    """Where something is written: a file, from the repository's root, and text that it holds."""

    file: str
    text: str

    @property
    def link(self) -> str:
        return f"`{self.text}` in [{Path(self.file).name}](../{self.file})"


def cuda(file: str, text: str) -> Place:
    return Place(f"cuda_reference/{file}", text)


def rung(file: str, text: str) -> Place:
    return Place(f"tritemm/kernels/{file}.py", text)


def arch(file: str, text: str) -> Place:
    return Place(f"tritemm/arch/{file}.py", text)


@dataclasses.dataclass(frozen=True)
class Code:
    """A kernel to count in: a rung of either ladder; `word[2]` is a Triton rung's third config."""

    name: str
    sm: int

    @property
    def key(self) -> str:
        return f"{self.name} sm_{self.sm}"


@dataclasses.dataclass(frozen=True)
class Technique:
    """One section of the page.

    `by`: who does it on Triton's side. `codes` x `mnemonics` are the counts that prove it; with
    `order`, also the order of the loads and products of `codes`; with `layouts`, also the layouts
    of shared memory that Triton chose. `pairs` are (Triton rung, CUDA rung) whose speeds are
    compared. `conflicts` are rungs whose bank conflicts on a GPU are shown.
    """

    name: str
    cuda: tuple[Place, ...]
    triton: tuple[Place, ...]
    by: str
    codes: tuple[Code, ...]
    mnemonics: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    order: bool = False
    layouts: bool = False
    conflicts: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The anchor that GitHub gives the section's heading."""
        return re.sub(r"[^a-z0-9 -]", "", self.name.lower()).replace(" ", "-")


COMPILER, YOU = "the compiler", "you"

TECHNIQUES = (
    Technique(
        "Block tile",
        (cuda("include/tile.cuh", "BM = 256, BN = 128, BK = 32"),),
        (rung("k03_tiled", "BLOCK_M: tl.constexpr"),),
        f"{YOU} choose its size; {COMPILER} does the rest",
        (Code("mma_base", 80), Code("tiled", 80), Code("mma_base", 90), Code("tiled", 90)),
        ("HMMA", "HGMMA", "LDG.E.128", "STS.128", "BAR"),
        (("tiled", "mma_base"), ("tiled", "wmma_base")),
    ),
    Technique(
        "Warp tile",
        (cuda("include/tile.cuh", "WM = 64, WN = 64"), cuda("include/mma_tile.cuh", "WarpTile")),
        (arch("pointers", "num_warps=8"),),
        f"{COMPILER}; you only say how many warps",
        (Code("mma_base", 80), Code("tiled", 80)),
        ("HMMA.16816.F32", "LDSM.16.M88.4"),
        (("tiled", "mma_base"),),
    ),
    Technique(
        "Vectorised copies",
        (cuda("include/copy.cuh", "reinterpret_cast<const uint4*>(from[i])"),),
        (rung("k03_tiled", "tl.load(a_ptrs)"),),
        f"{COMPILER}, if the pitch is a multiple of 16",
        (Code("mma_base", 80), Code("tiled", 80), Code("simt_naive", 80), Code("simt", 80)),
        ("LDG.E.128", "LDG.E.U16", "STG.E.128", "STG.E.U16"),
        (("tiled", "mma_base"), ("simt", "simt_naive")),
    ),
    Technique(
        "Padding",
        (cuda("wmma_padding.cu", "AB_ROW = BK / CHUNK + 1"),),
        (
            rung("device/mma_sync", "PaddedSharedLayout"),
            rung("k05_permuted", "SHARED: gl.constexpr"),
        ),
        f"{YOU} choose the layout, in Gluon; {COMPILER} does the addresses",
        (
            Code("wmma_base", 80), Code("wmma_padding", 80), Code("permuted[2]", 80),
            Code("permuted[1]", 80),
        ),
        ("LDS", "LDSM", "STS", "HMMA"),
        (("permuted[1]", "wmma_padding"), ("permuted[2]", "wmma_base")),
        layouts=True,
        conflicts=("wmma_base", "wmma_padding", "permuted[2]", "permuted[1]"),
    ),
    Technique(
        "Permutation",
        (cuda("mma_permuted.cu", "(chunk + row / 2) % AB_ROW"),),
        (
            rung("device/mma_sync", "SwizzledSharedLayout"),
            rung("k05_permuted", "SHARED: gl.constexpr"),
        ),
        f"{YOU} choose the layout, in Gluon; {COMPILER} does it for `tl.dot`",
        (
            Code("mma_base", 80), Code("mma_permuted", 80), Code("permuted[2]", 80),
            Code("permuted", 80), Code("permuted", 90), Code("tiled", 80), Code("tiled", 90),
        ),
        ("LDSM", "STS", "HMMA", "HGMMA"),
        (("permuted", "mma_permuted"), ("permuted[2]", "mma_base")),
        layouts=True,
        conflicts=("mma_base", "mma_permuted", "permuted[2]", "permuted", "tiled"),
    ),
    Technique(
        "ldmatrix",
        (cuda("include/ptx.cuh", "ldmatrix.sync.aligned.m8n8.x4"),),
        (rung("device/tile", "tl.dot(a, b, acc"),),
        COMPILER,
        (Code("wmma_base", 80), Code("mma_base", 80), Code("tiled", 80), Code("tiled", 90)),
        ("LDSM", "LDS", "HMMA", "HGMMA"),
        (("naive", "mma_naive"), ("naive", "wmma_naive"), ("tiled", "mma_base")),
    ),
    Technique(
        "Tile order",
        (cuda("include/raster.cuh", "inline Tile raster("),),
        (rung("device/raster", "def raster("), rung("k04_swizzled", '"grouped", "serpentine"')),
        f"{YOU}, on both sides",
        (Code("tiled", 90), Code("swizzled", 90)),
        ("HGMMA", "LDG", "STG", "BAR"),
        (("swizzled", "mma_base"), ("swizzled", "wmma_base")),
    ),
    Technique(
        "cp.async",
        (cuda("include/ptx.cuh", "cp.async.cg.shared.global"), cuda("mma_async.cu", "copy_async")),
        (rung("k06_async", "copy_tile("), rung("k07_pipelined", "num_stages=STAGES")),
        f"{YOU}, in Gluon; {COMPILER}, once a loop has stages",
        (
            Code("mma_permuted", 80), Code("mma_async", 80), Code("permuted", 80),
            Code("async", 80), Code("pipelined", 80),
        ),
        ("LDGSTS", "LDGDEPBAR", "DEPBAR", "LDG", "STS"),
        (("async", "mma_async"), ("async", "wmma_async")),
    ),
    Technique(
        "Stages",
        (cuda("mma_async_stage3.cu", "STAGES = 3"), cuda("include/ptx.cuh", "cp.async.wait_group")),
        (
            rung("k07_async_pg2s", "1 - now"), rung("k07_async_stages", "STAGES: gl.constexpr"),
            rung("k07_pipelined", "num_stages=STAGES"),
        ),
        f"{YOU}, in Gluon; {COMPILER}, where you choose how many",
        (
            Code("mma_async_pg2s", 80), Code("async_pg2s", 80), Code("mma_async_stage2", 80),
            Code("mma_async_stage3", 80), Code("mma_async_stage4", 80), Code("async_stages[2]", 80),
            Code("async_stages[1]", 80), Code("async_stages", 80), Code("pipelined[3]", 80),
        ),
        ("LDGSTS", "LDGDEPBAR", "DEPBAR", "BAR", "HMMA"),
        (
            ("async_pg2s", "mma_async_pg2s"), ("async_stages[2]", "mma_async_stage2"),
            ("async_stages[1]", "mma_async_stage3"), ("async_stages", "mma_async_stage4"),
            ("async_stages[1]", "wmma_async_stage3"), ("pipelined", "mma_async_stage4"),
        ),
    ),
    Technique(
        "Register prefetch",
        (cuda("mma_async_pg2s_ps2r.cu", "fragments[(k + 1) % 2].load"),),
        (
            rung("k07_async_pg2s_ps2r", "next_a, next_b = mma.fragments("),
            rung("k07_async_stages", "first_a, first_b = mma.fragments("),
        ),
        f"{YOU}, in Gluon; within a step ptxas would order the loads, too",
        (
            Code("mma_async_pg2s", 80), Code("mma_async_pg2s_ps2r", 80),
            Code("mma_async_stage3", 80), Code("async_pg2s", 80), Code("async_pg2s_ps2r", 80),
            Code("async_stages[1]", 80), Code("pipelined[3]", 80),
        ),
        ("LDSM", "HMMA", "BAR"),
        (("async_pg2s_ps2r", "mma_async_pg2s_ps2r"), ("async_pg2s_ps2r", "wmma_async_pg2s_ps2r")),
        order=True,
    ),
    Technique(
        "WGMMA",
        (cuda("include/wgmma.cuh", "matrix_descriptor"), cuda("wgmma_m64n8k16.cu", "a_place")),
        (rung("device/tile", "tl.dot(a, b, acc"),),
        COMPILER,
        (
            Code("wgmma_m64n8k16", 90), Code("wgmma_tma", 90), Code("naive", 90),
            Code("tiled", 90), Code("tma", 90),
        ),
        ("HGMMA", "WARPGROUP", "LDSM", "HMMA"),
        (("naive", "wgmma_m64n8k16"), ("tma", "wgmma_tma")),
    ),
    Technique(
        "TMA loads and stores",
        (cuda("include/tma.cuh", "tma_load("), cuda("include/tma.cuh", "cuTensorMapEncodeTiled")),
        (
            arch("lines", "TensorDescriptor("), rung("device/tile", "desc.load("),
            rung("device/tile", "c_desc.store("),
        ),
        f"{YOU} ask for it; {COMPILER} does the rest",
        (
            Code("wgmma_tma", 90), Code("wgmma_persistent", 90), Code("tiled", 90),
            Code("tma", 90),
        ),
        ("UTMALDG", "UTMASTG", "LDG", "STG"),
        (("tma", "wgmma_tma"),),
        layouts=True,
    ),
    Technique(
        "mbarrier ring",
        (cuda("include/mbarrier.cuh", "struct Ring"), cuda("wgmma_pipelined.cu", "barrier_expect")),
        (rung("k08_tma", "num_stages=STAGES"),),
        COMPILER,
        (Code("wgmma_tma", 90), Code("wgmma_pipelined", 90), Code("tma", 90)),
        ("SYNCS", "UTMALDG", "BAR"),
        (("tma", "wgmma_pipelined"),),
    ),
    Technique(
        "Warp specialisation",
        (
            cuda("include/roles.cuh", "setmaxnreg.inc.sync"),
            cuda("wgmma_warp_specialized.cu", "give_registers"),
        ),
        (rung("k10_warp_specialized", "gl.warp_specialize("),),
        f"{YOU} write roles and barriers, in Gluon; {COMPILER} deals out the registers",
        (
            Code("wgmma_warp_specialized", 90),
            Code("warp_specialized", 90),
            Code("pingpong", 90),
            Code("persistent", 90),
        ),
        ("USETMAXREG", "HGMMA", "UTMALDG", "SYNCS"),
        (
            ("warp_specialized", "wgmma_warp_specialized"),
            ("persistent", "wgmma_persistent"),
        ),
    ),
    Technique(
        "Persistent grid",
        (cuda("wgmma_persistent.cu", "i += gridDim.x"),),
        (rung("k09_persistent", "tl.num_programs(0), flatten=True"),),
        f"{YOU} write the loop; {COMPILER} fuses it with the loop over K",
        (Code("wgmma_persistent", 90), Code("persistent", 90), Code("tma", 90)),
        ("UTMALDG", "UTMASTG", "UTMACMDFLUSH", "SYNCS", "BAR"),
        (("persistent", "wgmma_persistent"),),
    ),
    Technique(
        "Clusters and multicast",
        (
            cuda("include/tma.cuh", ".multicast::cluster"),
            cuda("wgmma_cluster.cu", "__cluster_dims__"),
        ),
        (
            rung("device/ptx", ".multicast::cluster"),
            rung("k15_cluster", "cluster_sync()"),
        ),
        f"{YOU}, in PTX: Triton 3.6 has no multicast",
        (
            Code("wgmma_cluster", 90), Code("wgmma_persistent", 90), Code("cluster", 90),
            Code("persistent", 90),
        ),
        ("UTMALDG.2D.MULTICAST", "UTMALDG", "UCGABAR_ARV"),
        (("cluster", "wgmma_cluster"),),
    ),
    Technique(
        "stmatrix epilogue",
        (
            cuda("wgmma_cluster.cu", "stmatrix.sync.aligned"),
            cuda("include/mma_tile.cuh", "store_tile"),
        ),
        (rung("device/tile", "def store_tile("),),
        COMPILER,
        (
            Code("mma_permuted", 90), Code("wgmma_persistent", 90), Code("wgmma_cluster", 90),
            Code("pipelined", 90), Code("persistent", 90),
        ),
        ("STSM", "STS", "LDS", "LDSM", "UTMASTG", "STG"),
        (("persistent", "wgmma_persistent"),),
    ),
)  # fmt: skip
