"""Tables of recorded races: what `tritemm.matmul` multiplied in one way, against cuBLAS."""

from collections.abc import Callable

from perf import tables
from perf.rows import Row
from perf.select import latest_run

#: Of fp32 and fp64, the values of `precision` that race in `perf/fp32.csv` and `perf/fp64.csv`.
EMULATED = ("bf16x6", "bf16x9", "int8x7", "int8x15")
HEAD = ("", "µs", "TFLOP/s", "% of roof", "cuBLAS µs", "x cuBLAS (p20-p80)")


def parts(rows: list[Row]) -> dict[str, str]:
    """A generated table for each of `EMULATED`, by its name."""
    return {name: raced(rows, lambda r, n=name: r.case.precision == n) for name in EMULATED}


def raced(rows: list[Row], wanted: Callable[[Row], bool]) -> str:
    """The problems of the newest race whose rows of `tritemm.matmul` are `wanted`."""
    races = [row for row in rows if row.experiment == "race"]
    own = latest_run(filter(wanted, races), "race", competitor="auto")
    if not own:
        return "Not yet measured."
    race = [row for row in races if row.run == own[0].run]
    found = [result for result in tables.against_cublas(race) if wanted(result.ours)]
    tally = tables.Tally("", found)
    return tables.markdown([
        tables.Table.of(HEAD, found, tables.RESULT),
        f"{tally.mean} times cuBLAS's speed in the geometric mean, at least "
        f"{tally.least.ratio.p50:.3f} times. Sustained; {tables.origin(own)}.",
    ])  # fmt: skip
