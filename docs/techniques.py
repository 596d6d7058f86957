"""What docs/correspondence.md counts and compares, technique by technique.

Where each stands, and who does it in Triton, is the page's own table.
"""

from __future__ import annotations

import dataclasses
import re


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

    `codes` x `mnemonics` are the counts that prove it; with `order`, also the order of the loads
    and products of `codes`; with `layouts`, also the layouts of shared memory that Triton chose.
    `pairs` are (Triton rung, CUDA rung) whose speeds are compared. `conflicts` are rungs whose bank
    conflicts on a GPU are shown.
    """

    name: str
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


def on(sm: int, *names: str) -> tuple[Code, ...]:
    """These rungs, compiled for one architecture."""
    return tuple(Code(name, sm) for name in names)


TECHNIQUES = (
    Technique(
        "Block tile",
        on(80, "mma_base", "tiled") + on(90, "mma_base", "tiled"),
        ("HMMA", "HGMMA", "LDG.E.128", "STS.128", "BAR"),
        (("tiled", "mma_base"), ("tiled", "wmma_base")),
    ),
    Technique(
        "Warp tile",
        on(80, "mma_base", "tiled"),
        ("HMMA.16816.F32", "LDSM.16.M88.4"),
        (("tiled", "mma_base"),),
    ),
    Technique(
        "Vectorised copies",
        on(80, "mma_base", "tiled", "simt_naive", "simt"),
        ("LDG.E.128", "LDG.E.U16", "STG.E.128", "STG.E.U16"),
        (("tiled", "mma_base"), ("simt", "simt_naive")),
    ),
    Technique(
        "Padding",
        on(80, "wmma_base", "wmma_padding", "permuted[2]", "permuted[1]"),
        ("LDS", "LDSM", "STS", "HMMA"),
        (("permuted[1]", "wmma_padding"), ("permuted[2]", "wmma_base")),
        layouts=True,
        conflicts=("wmma_base", "wmma_padding", "permuted[2]", "permuted[1]"),
    ),
    Technique(
        "Permutation",
        on(80, "mma_base", "mma_permuted", "permuted[2]", "permuted")
        + on(90, "permuted")
        + on(80, "tiled")
        + on(90, "tiled"),
        ("LDSM", "STS", "HMMA", "HGMMA"),
        (("permuted", "mma_permuted"), ("permuted[2]", "mma_base")),
        layouts=True,
        conflicts=("mma_base", "mma_permuted", "permuted[2]", "permuted", "tiled"),
    ),
    Technique(
        "ldmatrix",
        on(80, "wmma_base", "mma_base", "tiled") + on(90, "tiled"),
        ("LDSM", "LDS", "HMMA", "HGMMA"),
        (("naive", "mma_naive"), ("naive", "wmma_naive"), ("tiled", "mma_base")),
    ),
    Technique(
        "Tile order",
        on(90, "tiled", "swizzled"),
        ("HGMMA", "LDG", "STG", "BAR"),
        (("swizzled", "mma_base"), ("swizzled", "wmma_base")),
    ),
    Technique(
        "cp.async",
        on(80, "mma_permuted", "mma_async", "permuted", "async", "pipelined"),
        ("LDGSTS", "LDGDEPBAR", "DEPBAR", "LDG", "STS"),
        (("async", "mma_async"), ("async", "wmma_async")),
    ),
    Technique(
        "Stages",
        on(
            80,
            "mma_async_pg2s",
            "async_pg2s",
            "mma_async_stage2",
            "mma_async_stage3",
            "mma_async_stage4",
            "async_stages[2]",
            "async_stages[1]",
            "async_stages",
            "pipelined[3]",
        ),
        ("LDGSTS", "LDGDEPBAR", "DEPBAR", "BAR", "HMMA"),
        (
            ("async_pg2s", "mma_async_pg2s"),
            ("async_stages[2]", "mma_async_stage2"),
            ("async_stages[1]", "mma_async_stage3"),
            ("async_stages", "mma_async_stage4"),
            ("async_stages[1]", "wmma_async_stage3"),
            ("pipelined", "mma_async_stage4"),
        ),
    ),
    Technique(
        "Register prefetch",
        on(
            80,
            "mma_async_pg2s",
            "mma_async_pg2s_ps2r",
            "mma_async_stage3",
            "async_pg2s",
            "async_pg2s_ps2r",
            "async_stages[1]",
            "pipelined[3]",
        ),
        ("LDSM", "HMMA", "BAR"),
        (("async_pg2s_ps2r", "mma_async_pg2s_ps2r"), ("async_pg2s_ps2r", "wmma_async_pg2s_ps2r")),
        order=True,
    ),
    Technique(
        "WGMMA",
        on(90, "wgmma_m64n8k16", "wgmma_tma", "naive", "tiled", "tma"),
        ("HGMMA", "WARPGROUP", "LDSM", "HMMA"),
        (("naive", "wgmma_m64n8k16"), ("tma", "wgmma_tma")),
    ),
    Technique(
        "TMA loads and stores",
        on(90, "wgmma_tma", "wgmma_persistent", "tiled", "tma"),
        ("UTMALDG", "UTMASTG", "LDG", "STG"),
        (("tma", "wgmma_tma"),),
        layouts=True,
    ),
    Technique(
        "mbarrier ring",
        on(90, "wgmma_tma", "wgmma_pipelined", "tma"),
        ("SYNCS", "UTMALDG", "BAR"),
        (("tma", "wgmma_pipelined"),),
    ),
    Technique(
        "Warp specialisation",
        on(90, "wgmma_warp_specialized", "warp_specialized", "pingpong", "persistent"),
        ("USETMAXREG", "HGMMA", "UTMALDG", "SYNCS"),
        (("warp_specialized", "wgmma_warp_specialized"), ("persistent", "wgmma_persistent")),
    ),
    Technique(
        "Persistent grid",
        on(90, "wgmma_persistent", "persistent", "tma"),
        ("UTMALDG", "UTMASTG", "UTMACMDFLUSH", "SYNCS", "BAR"),
        (("persistent", "wgmma_persistent"),),
    ),
    Technique(
        "Clusters and multicast",
        on(90, "wgmma_cluster", "wgmma_persistent", "cluster", "persistent"),
        ("UTMALDG.2D.MULTICAST", "UTMALDG", "UCGABAR_ARV"),
        (("cluster", "wgmma_cluster"),),
    ),
    Technique(
        "stmatrix epilogue",
        on(90, "mma_permuted", "wgmma_persistent", "wgmma_cluster", "pipelined", "persistent"),
        ("STSM", "STS", "LDS", "LDSM", "UTMASTG", "STG"),
        (("persistent", "wgmma_persistent"),),
    ),
)
