"""`python -m perf repeat`: is a product the same bits every time, and its rows for every M?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch

from ..case import Case
from ..cli import add_command, argument, positive, refuse, unable
from ..repeat import LAYERS, ROWS, Disturbance, Kind, invariant, kind_of, problems, repeated
from .search import heading, record

EXAMPLES = """
python -m perf repeat
python -m perf repeat --repetitions 100 --problems 5
python -m perf repeat --repetitions 1000 --problems 20 --out repeat.jsonl
"""


def register(commands) -> None:
    described = "Repeat products and compare their bits; compare rows over every M."
    command = add_command(commands, "repeat", run, described, EXAMPLES)
    add = command.add_argument
    for option, default, text in (
        ("--repetitions", 1000, "of each problem"),
        ("--problems", 20, "that are repeated: one of each kind of choice first"),
        ("--rows", ROWS, "the largest M of the layers"),
    ):
        add(option, type=argument(positive), default=default, help=f"{text}; default: {default}")
    add("--seed", type=int, default=0, help="of the random problems and of the data")
    add("--out", type=Path, help="JSON lines are added to this file")


def run(args: argparse.Namespace) -> int:
    """0; 1 if any bit differs; 2: it can't begin."""
    if reason := unable("repeat"):
        return refuse(reason)
    torch.manual_seed(args.seed)
    disturb = Disturbance(args.seed)
    lines, differ = [heading(args)], False
    for case in problems(args.problems, args.seed):
        line = one(case, args.repetitions, disturb)
        differ |= report(line)
        lines.append(json.dumps(line))
    for N, K in LAYERS:
        line = layer(N, K, args.rows)
        differ |= report(line)
        lines.append(json.dumps(line))
    if args.out:
        with args.out.open("a") as out:
            record(out, lines)
    return int(differ)


def one(case: Case, repetitions: int, disturb, device="cuda") -> dict:
    """What came of repeating one problem."""
    begin = time.monotonic()
    try:
        differ, error = repeated(case, repetitions, disturb, device), None
    except torch.OutOfMemoryError as raised:
        differ, error = None, " ".join(str(raised).split())[:200]
    return {
        "check": "repeat", "case": dataclasses.asdict(case), "problem": str(case),
        "kernel": words(kind_of(case)), "repetitions": repetitions, "differ": differ,
        "error": error, "seconds": round(time.monotonic() - begin, 2),
    }  # fmt: skip


def layer(N: int, K: int, rows: int, device="cuda") -> dict:
    """What came of one layer with every M up to `rows`."""
    begin = time.monotonic()
    try:
        differ, error = invariant(N, K, range(1, rows + 1), device), None
    except ValueError as refused:
        differ, error = [], str(refused)
    return {
        "check": "batch_invariant", "problem": f"1 ... {rows} x {N} x {K} NT, bf16",
        "rows": rows, "N": N, "K": K, "differ": len(differ), "at": differ[:20], "error": error,
        "seconds": round(time.monotonic() - begin, 2),
    }  # fmt: skip


def words(kind: Kind) -> str:
    """`stream_k`, `tma, swapped, a packed`."""
    name, split, swap, pack = kind
    parts = [name, "K split" * split, "swapped" * swap, f"{pack} packed" if pack else ""]
    return ", ".join(part for part in parts if part)


def report(line: dict) -> bool:
    """Print a line; whether something in it is not as it should be."""
    bad = bool(line["differ"]) or line["error"] is not None
    if line["check"] == "repeat":
        many = f"{line['repetitions']} repetitions"
        told = line["error"] or f"{line['differ']} DIFFER from the first" if bad else "one pattern"
        print(f"{line['problem']:<44} {line['kernel']:<28} {many}: {told}", flush=True)
    else:
        told = f"DIFFERS at {line['differ']} M: {line['at']} ..." if bad else "every row the same"
        told = line["error"] or told
        print(f"{line['problem']:<44} batch invariance: {told}", flush=True)
    return bad
