"""Pictures of docs/concepts/, drawn from what the tests hold; `docs.generate` writes them."""

from collections.abc import Callable
from pathlib import Path

from . import (
    access,
    banks,
    blackwell,
    clusters,
    energy,
    fragments,
    machine,
    masked,
    one_tile,
    overlap,
    raster,
    residues,
    roofline,
    split,
    swizzle,
    timelines,
    triangle,
    waves,
    words,
)

FOLDER = Path(__file__).resolve().parents[1] / "figures" / "concepts"
#: What draws each picture; the file is FOLDER / NAME.svg.
PICTURES: dict[str, Callable[[], str]] = {
    "fragments-wmma": fragments.wmma,
    "fragments-mma": fragments.mma,
    "fragments-ldmatrix": fragments.loads,
    "fragments-wgmma": fragments.wgmma,
    "core-matrices": swizzle.core_matrices,
    "swizzle-modes": swizzle.modes,
    "bank-conflicts": banks.ldmatrix,
    "raster-orders": raster.orders,
    "raster-traffic": raster.traffic,
    "split-schedules": split.schedules,
    "split-efficiency": split.efficiency,
    "cluster-pair": clusters.pair,
    "cluster-traffic": clusters.traffic,
    "blackwell-pair": blackwell.pair,
    "energy-rungs": energy.rungs,
    "energy-time": energy.over_time,
    "energy-levels": energy.levels,
    "energy-tiles": energy.tiles,
    "one-tile": one_tile.ways,
    **timelines.PICTURES,
    "buffers": overlap.buffers,
    "skewed-words": words.skewed,
    "folded-triangle": triangle.folded,
    "residues": residues.theorem,
    "machine": machine.machine,
    "memories": machine.memories,
    "warp-loads": access.warp,
    "roofline": roofline.roof,
    "waves": waves.tail,
    "ragged-tile": masked.ragged,
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.svg"
