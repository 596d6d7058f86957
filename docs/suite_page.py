"""Every measured problem on one page to sort, filter and point at: `python -m docs.suite_page`.

The page is one HTML file without any others: styles, script and the committed rows stand in it, so
it opens from disk. `docs/site/explore.*` is what it is made of, and `docs/assets/table.*`, which
makes tables of the site sortable, too.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from perf import tables
from perf.experiments.show import VIEWS
from perf.rows import REFERENCE, Row, recorded
from perf.views import Selection
from tritemm.spec import Config

from .cards import TUNED

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "build" / "explore.html"
PARTS = ("assets/table.css", "site/explore.css", "assets/table.js", "site/explore.js")
#: What is shown: the view of `perf.views`, and the one whose races have the peers too.
SHOWN = {"suite": "peers", "serving": None, "random": "random-peers", "linear": None}


def records() -> list[dict]:
    """One for each problem: what was asked, what was chosen, how fast, against whom.

    Times are microseconds, with the 20th and 80th percentile over rounds; ratios are the other's
    time over ours. What was not measured has no time and a `reason`.
    """
    rows, found = recorded(), []
    for name, peers in SHOWN.items():
        races = tables.raced(_chosen(name, rows))
        among = tables.results(_chosen(peers or name, rows), Selection.competitor)
        beside = {result.id: result for result in among}
        for key, race in races.items():
            if ours := race.get(Selection.competitor):
                found.append(_record(name, ours, race.get(REFERENCE), beside.get(key)))
    return found


def _chosen(view: str, rows: list[Row]) -> list[Row]:
    return VIEWS[view].chosen(rows, TUNED)


def _record(experiment: str, row: Row, reference: Row | None, result: tables.Result | None) -> dict:
    case, problem = row.case, row.problem
    peer = result if result and result.ratio and len(result.others) > 1 else None
    return {
        "experiment": experiment,
        "id": problem["id"],
        "class": problem["class"],
        "name": problem["name"],
        "batch": case.batch,
        "M": case.M,
        "N": case.N,
        "K": case.K,
        "layout": case.layout,
        "type": f"{'tf32' if case.precision == 'tf32' else case.dtype}"
        + (f" → {case.out_dtype}" if case.out_dtype else ""),
        "ending": case.ending,
        "kernel": row.rung if row.us else None,
        "config": str(Config(**row.config)) if row.config else None,
        "us": _quantiles(row.us),
        "tflops": row.tflops,
        "gbs": row.gbs,
        "x": _quantiles(row.ratio),
        "tie": row.tie,
        "cublas": reference.us.p50 if reference and reference.us else None,
        "peer": peer and ("cuBLAS" if peer.best == REFERENCE else peer.best),
        "xpeer": _quantiles(peer.ratio) if peer else None,
        "peertie": peer.tie if peer else None,
        "roof": 100 * row.of_roof if row.of_roof else None,
        "watts": row.power_w,
        "mhz": row.sm_mhz,
        "cublaswatts": reference.power_w if reference else None,
        "rounds": row.rounds,
        "worst": row.worst,
        "reason": None if row.us else f"{row.outcome}: {row.reason}",
        "command": row.command,
        "origin": tables.origin([row]),
    }


def _quantiles(found) -> list[float] | None:
    return [found.p20, found.p50, found.p80] if found else None


def page(found: Iterable[dict]) -> str:
    """The HTML, with the records in it: their keys once, and a list of values for each."""
    found = [{key: _short(value) for key, value in record.items()} for record in found]
    keys = list(found[0]) if found else []
    repeated = {name: list(dict.fromkeys(r[name] for r in found)) for name in ("command", "origin")}
    for record in found:
        for name, values in repeated.items():
            record[name] = values.index(record[name])
    data = {"keys": keys, "rows": [list(record.values()) for record in found], **repeated}
    text = (HERE / "site" / "explore.html").read_text()
    for part in PARTS:
        text = text.replace(f"{{{{ {part} }}}}", (HERE / part).read_text())
    encoded = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    return text.replace("{{ data }}", encoded)


def _short(value):
    """Four significant digits, which is more than the spread says."""
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    out = parser.parse_args(argv).out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(records()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
