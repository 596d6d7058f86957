"""The generated part of docs/conformance.md: what `python -m perf conform` found."""

import collections
import functools
import json
from pathlib import Path
from typing import Any

from perf.tables import Table, markdown

#: Of products of two matrices, of groups, of bits that are equal, and of the law of the lost tail.
DATA, GROUPS = "conformance.json", "conformance_groups.json"
BITS, LAW = "conformance_bits.json", "conformance_law.json"
#: What `conform --bits` calls cuBLAS's kernels, and what the page does.
THEIRS = {
    "nvjet": "nvjet, K whole", "nvjet, in parts": "nvjet, K in parts",
    "others": "others, K whole", "others, in parts": "others, K in parts",
}  # fmt: skip
#: What the page calls ours.
WHOLE, CUT, GEMV = "tensor core, K whole", "tensor core, K in parts", "gemv, by FFMA"


@functools.cache
def load(name: str = DATA) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(name).read_text())


def parts() -> dict[str, str]:
    said = "In a line each, where no offset and no padding is needed:"
    text = [summary(), "", table(), "", said, "", "```python", *lines(), "```"]
    return {
        "conformance": "\n".join(text), "conformance-groups": groups(),
        "conformance-bits": bits(), "conformance-law": law(),
    }  # fmt: skip


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


def tallied() -> dict[tuple[str, str], collections.Counter[str]]:
    """What `conform --bits` counted, by cuBLAS's kernels and by ours."""
    found: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for words, count in load(BITS)["tallies"].items():
        theirs, ours, what = words.split(" | ")
        cut = CUT if ours.endswith("in parts") else WHOLE
        ours = GEMV if ours.startswith("gemv") else cut
        found[theirs, ours][what] += count
    return found


def bits() -> str:
    """How many products have cuBLAS's bits, by who cuts K."""
    data, counts = load(BITS), tallied()
    rows = [
        [
            theirs, ours, f"{one['products']:,}", f"{one['equal']:,}",
            f"{one['equal elements'] / one['elements']:.1%}",
        ]
        for key, theirs in THEIRS.items()
        for ours in (WHOLE, CUT, GEMV)
        if (one := counts.get((key, ours)))
    ]  # fmt: skip
    head = ("cuBLAS's kernel", "ours", "products", "all bits equal", "elements equal")
    equal = sum(one["equal"] for one in counts.values())
    return "\n".join([
        f"{data['problems']:,} problems in {data['seconds']} s: {equal:,} products have the same "
        f"bits throughout. {measured(BITS)} --bits`.", "",
        markdown([Table(head, rows, words=2)]),
    ])  # fmt: skip


def law() -> str:
    """What the law says of the tail, and what came out."""
    data, counts = load(LAW), load(LAW)["tallies"]
    rows = [
        [by, *(f"{counts.get(f'{by} | {said} | {came}', 0):,}" for said, came in (
            ("lost", "lost"), ("lost", "kept"), ("kept", "lost"), ("kept", "kept"),
        ))]
        for by in ("cublaslt", "torch.mm")
    ]  # fmt: skip
    head = ("", "lost, as predicted", "predicted, but kept", "lost, not predicted", "kept")
    return "\n".join([
        f"{data['problems']:,} problems in {data['seconds']} s. {measured(LAW)} --law`.", "",
        markdown([Table(head, rows, words=1)]),
    ])  # fmt: skip


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
