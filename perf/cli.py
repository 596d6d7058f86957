"""What the commands have in common: types of arguments, options, refusals, lines of progress."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from tritemm.dtypes import PRECISIONS
from tritemm.machine.command import sentence
from tritemm.problem import ACCUMULATE as MULTIPLIED
from tritemm.problem import short_name
from tritemm.rungs import RUNGS

from . import bench
from .case import ACCUMULATE
from .rows import PEERS

#: The operand types that the rungs multiply, and the values of `tritemm.matmul(kernel=)`.
TYPES = [short_name(dtype) for dtype in MULTIPLIED]
KERNELS = ("auto", *(kernel.name for kernel in RUNGS))
#: What several commands say of their options.
ONLY_CLASSES = "only problems of these classes: prefill, decode, ...; default: all"
ONLY_IDS = "only the problems with these ids; default: all"


def add_command(commands, name: str, run: Callable, text: str, examples: str):
    """A subparser whose help ends with its examples, one line each."""
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    command = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=run)
    return command


def argument(parse: Callable) -> Callable:
    """`parse`, with its ValueError's sentence as argparse's message."""

    def wrapped(text: str):
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return wrapped


def one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"one of {', '.join(known)}, not {text!r}")
        return text

    return parse


def list_of(parse: Callable) -> Callable:
    """An argument's type: values with commas between them."""
    return argument(lambda text: [parse(part) for part in text.split(",") if part])


def positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise ValueError(f"a count is 1 or more, not {text!r}")
    return value


def add_list(command, option: str, parse: Callable, help: str, default: str = "", dest=None):
    """An option that takes values separated by commas."""
    word = option.strip("-").upper()
    command.add_argument(
        option, dest=dest, type=list_of(parse), default=default, metavar=f"{word},...", help=help
    )


def add_choices(command, option: str, known: Iterable, parse: Callable | None = None) -> None:
    """An option that takes values separated by commas, by default all `known`; others only with
    `parse`."""
    every = ",".join(map(str, known))
    text = f"default: {every}; others are possible" if parse else f"some of {every}; default: all"
    add_list(command, option, parse or one_of(*known), text, every)


def add_problems(command: argparse.ArgumentParser, file: Path) -> None:
    """Which problems of which file."""
    text = f"CSV with the columns of perf/{file.name}"
    command.add_argument("--file", type=Path, default=file, help=text)
    add_list(command, "--class", str, ONLY_CLASSES, dest="classes")
    add_list(command, "--id", str, ONLY_IDS, dest="ids")


def add_kernels(command: argparse.ArgumentParser) -> None:
    text = "what to pass to matmul as kernel=: auto (default) or names of rungs"
    add_list(command, "--kernel", one_of(*KERNELS), text, "auto", "kernels")


def add_peers(command: argparse.ArgumentParser, more: str = "") -> None:
    """`--peers`; its help ends with `more`."""
    text = "also race lt (the fastest of cuBLASLt's list) or quack (the fastest of its configs)"
    text += more
    add_list(command, "--peers", one_of(*PEERS), text)


def add_types(command: argparse.ArgumentParser, dtype: str = "bf16") -> None:
    add = command.add_argument
    sums = ("fp16", "fp32", "fp64", "int32")
    add("--dtype", choices=TYPES, default=dtype, help=f"type of the operands; default: {dtype}")
    add("--accumulate", choices=sums, help="type of the sums; default: the operand type's own")
    precision = "how to multiply fp32; default: ieee"
    add("--precision", default="ieee", help=precision, choices=PRECISIONS)


def accumulator(args: argparse.Namespace, dtype: str) -> str:
    """What `add_types`'s options accumulate `dtype` in; ValueError if they don't fit together."""
    if args.precision != "ieee" and dtype != "fp32":
        raise ValueError(f"--precision says how fp32 is multiplied, not {dtype}")
    accumulate = args.accumulate or ACCUMULATE[dtype]
    if accumulate != ACCUMULATE[dtype] and (accumulate, dtype) != ("fp16", "fp16"):
        raise ValueError(f"{dtype} is accumulated in {ACCUMULATE[dtype]}, not {accumulate}")
    return accumulate


def add_measurement(
    command: argparse.ArgumentParser, rounds: int, seeds: Sequence[int] = (), modes: bool = False
) -> None:
    """The options of a command that measures, with `--mode` too if it has `modes`.

    With default `seeds`, `--seed` takes several.
    """
    add = command.add_argument
    told = f"how often each competitor runs; default: {rounds}"
    add("--rounds", type=argument(positive), default=rounds, help=told)
    add("--quick", action="store_true", help="run less of everything, and record nothing")
    add("--out", type=Path, help="file to add rows to; default: a new file in perf/results")
    add("--json", action="store_true", help="print rows instead of tables")
    if seeds:
        listed = ",".join(map(str, seeds))
        told = f"seeds of the problems; default: {listed}"
        add_list(command, "--seed", int, told, listed, "seeds")
    else:
        add("--seed", type=int, default=0, help="seed of the data and of the order; default: 0")
    command.set_defaults(mode="sustained")
    if modes:
        told = "back to back (the default), or one launch at a time with a cold L2"
        add("--mode", choices=bench.BENCHES, default="sustained", help=told)


def unable(command: str) -> str | None:
    """Why kernels can't be timed here."""
    if not torch.cuda.is_available():
        return f"python -m perf {command} needs a CUDA device, and torch sees none"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "TRITON_INTERPRET is set: unset it to measure compiled kernels"
    return None


def refuse(reason: object) -> int:
    """Print the reason, and return the exit status of a command that could not begin."""
    print(sentence(reason), file=sys.stderr)
    return 2


def say(text: str) -> None:
    """A line of progress; on a terminal above the bar."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)


def progress(items: Sequence, what: str) -> Iterable:
    """A bar on a terminal; elsewhere the lines that `say` prints are enough."""
    if not sys.stderr.isatty():
        return items
    from tqdm import tqdm

    return tqdm(items, desc=what, leave=False)


def short(error: Exception, most: int = 300) -> str:
    """An error's words on one line."""
    return " ".join(str(error).split())[:most]
