"""Pictures of docs/concepts/, drawn from what the tests hold: `python -m docs.pictures`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import (
    banks,
    clusters,
    energy,
    fragments,
    one_tile,
    overlap,
    raster,
    split,
    swizzle,
    timelines,
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
    "energy-rungs": energy.rungs,
    "energy-time": energy.over_time,
    "energy-levels": energy.levels,
    "energy-tiles": energy.tiles,
    "one-tile": one_tile.ways,
    **timelines.PICTURES,
    "buffers": overlap.buffers,
    "skewed-words": words.skewed,
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.svg"


def stale(names: tuple[str, ...] = ()) -> list[Path]:
    """Files that are not what they would be drawn as now; of all, also those of no picture."""
    wanted = {path_of(name): PICTURES[name] for name in names or PICTURES}
    extra = set() if names else set(FOLDER.glob("*")) - set(wanted)
    return sorted(
        extra | {p for p, draw in wanted.items() if not p.exists() or p.read_text() != draw()}
    )


def write(names: tuple[str, ...] = ()) -> list[Path]:
    """Draw what is stale, and remove what is no picture; their files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = stale(names)
    for path in found:
        if path.stem in PICTURES:
            path.write_text(PICTURES[path.stem]())
        else:
            path.unlink()
    return found
