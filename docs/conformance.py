"""The generated part of docs/conformance.md: what `python -m perf conform` found."""

import functools
import json
from pathlib import Path
from typing import Any

from perf.tables import Table, markdown

#: Of dense products, and of groups.
DATA, GROUPS = "conformance.json", "conformance_groups.json"


@functools.cache
def load(name: str = DATA) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(name).read_text())


def parts() -> dict[str, str]:
    said = "In a line each, where no offset and no padding is needed:"
    text = [summary(), "", table(), "", said, "", "```python", *lines(), "```"]
    return {"conformance": "\n".join(text), "conformance-groups": groups()}


def wrong(by: str, name: str = DATA) -> int:
    return sum(found["by"] == by for found in load(name)["findings"])


def measured(name: str) -> str:
    """Where, and by which command but for its options."""
    data, env = load(name), load(name)["environment"]
    return (
        f"{env['gpu']}, torch {env['torch']}, cuBLAS {env['cublas']}, driver {env['driver']}, "
        f"commit {env['commit'][:7]}, `python -m perf conform --seed {data['seed']}"
    )


def groups() -> str:
    data = load(GROUPS)
    return (
        f"{data['problems']:,} random groupings, each multiplied twice, in {data['seconds']} s: of "
        f"{data['products']['ours']:,} products of tritemm {wrong('ours', GROUPS)} are wrong. "
        f"{measured(GROUPS)} --groups`."
    )


def summary() -> str:
    """How many products of whom, and where."""
    data = load()
    products = data["products"]
    return (
        f"{data['problems']:,} problems, each with ones and with signs, in {data['seconds']} s: "
        f"of {products['ours']:,} products of tritemm {wrong('ours')} are wrong, of "
        f"{products['cublas']:,} of cuBLAS {wrong('cublas')} (it refuses the other "
        f"{data['refused'].get('cublas', 0):,}). {measured(DATA)}`."
    )


def places() -> dict[str, list[dict[str, Any]]]:
    """The findings of each place with ones; those with signs are the same problems."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in load()["findings"]:
        if each["data"] == "ones":
            found.setdefault(json.dumps(each["place"]), []).append(each)
    return found


def table() -> str:
    """A line for each M, N, layout, types and alignment at which some K are wrong."""
    head = ("M x N", "layout", "types", "offset, padding", "wrong K", "for example")
    rows = []
    for found in places().values():
        place, one = found[0]["place"], found[0]
        rows.append([
            f"{place['M']} x {place['N']}", place["layout"],
            f"{place['dtype']} to {place['output']}", f"{place['shift']}, {place['pad']}",
            str(len(found)), f"K = {one['K']}: {one['got']:g} for {one['want']:g}",
        ])  # fmt: skip
    return markdown([Table(head, rows, words=4, tail=1)])


def lines() -> list[str]:
    """A reproduction of each place whose operands need no offset and no padding."""
    shown = (
        next((each["line"] for each in found if each["line"]), "") for found in places().values()
    )
    return [each for each in shown if each]
