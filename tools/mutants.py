#!/usr/bin/env python
"""Plant faults in the kernels and their host code, one at a time: the tests must find each.

    python tools/mutants.py [--dry] [--jobs N] [WORD ...]

    --dry    no GPU: each fault applies, and what it makes still compiles for sm_90
    --jobs   copies of the package that are tested at once; by default as many as there are cores
    WORD     only the faults that have it in their names

Every fault is a replacement in a copy of the package, and applies exactly once or the run ends. Its
tests run against the copy in a process of their own, as they do against one without a fault, where
they must pass. A test that fails, a process that dies and one that hangs have found the fault.
0: each was found; 1: one was not, or its tests fail without it; 2: it can't run.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's path begins with its own folder

from tools.sessions import session  # noqa: E402

#: Seconds for torch to come up, for kernels to be compiled and for the tests; more is a hang.
LIMIT = 100
#: What a copy needs so that its tests run.
PARTS = ("tritemm", "tests", "tools", "perf", "pyproject.toml")
#: Of pytest: all passed (or were skipped), and some failed.
PASSED, FAILED = 0, 1


@dataclasses.dataclass(frozen=True)
class Fault:
    """`old` stands once in `file`, a path in tritemm/, and becomes `new`.

    `tests` find it, those of them that `word` selects as pytest's -k does. `rung` is compiled to
    see that the fault is more than a slip of the pen.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    word: str
    rung: str


# Tests that find several of them
KERNELS, HAND = "tests/kernels/test_kernels.py::test_", "tests/kernels/test_by_hand.py::test_"
BATCHES = (KERNELS + "batches", HAND + "batches_in_two_dimensions")
STORES = (KERNELS + "stores_stay_inside_a_row", KERNELS + "output_strides")
FRAGMENTS = ("tests/kernels/test_fragments.py::test_products",)
CONFIGS = (KERNELS + "configs",)
SIZES = ("tests/kernels/test_gpu.py::test_real_sizes",)
TILES = (HAND + "programs_take_many_tiles",)
CHAIN = (HAND + "a_launch_waits_for_the_one_before",)
SUMS = (HAND + "parts_are_summed_launch_after_launch",)
ORDER = (HAND + "parts_are_added_in_their_order",)
FENCES = (HAND + "the_engine_stores_what_was_fenced",)
PARTED = ("tests/kernels/test_invariant.py::test_parts_are_all_added",)
INVARIANT = ("tests/kernels/test_invariant.py::test_bits_of_candidates",)
LAUNCH = "tests/runtime/test_launch_gpu.py::test_"
GROUPS = ("tests/kernels/test_groups.py::test_every_rung_that_can",)
PAIRS = ("tests/kernels/test_gated.py::test_results",)
SCALED = ("tests/kernels/test_scaled.py::test_every_config",)
GROUPED = ("tests/torch/test_scaled_grouped_mm.py::test_every_config",)
SPLIT_K, CLUSTER = "split_k and not cluster", "cluster and not split"

FAULTS = (
    # Loads
    Fault(
        "the last step of K is not loaded", "kernels/device/mainloop.py",
        "k = (unit.first + step) * SHAPE.BLOCK_K + beyond\n",
        "last = (step == unit.steps - 1).to(gl.int32) * 2**20\n"
        "            k = (unit.first + step + last) * SHAPE.BLOCK_K + beyond\n",
        SIZES, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "the last step of K is not loaded by a cluster", "kernels/device/cluster_mainloop.py",
        "k_a, k_b = k_a * SHAPE.BLOCK_K, k_b * SHAPE.BLOCK_K\n",
        "last = (step == unit.steps - 1).to(gl.int32) * 2**20\n"
        "            k_a, k_b = (k_a + last) * SHAPE.BLOCK_K, (k_b + last) * SHAPE.BLOCK_K\n",
        SIZES, CLUSTER, "cluster",
    ),
    Fault(
        "the last step of a part of K is not loaded", "kernels/device/scheduler.py",
        "steps = cuts * (index + 1) // COUNT * EACH - first\n",
        "steps = cuts * (index + 1) // COUNT * EACH - first - 1\n",
        SIZES, "cluster_split_k", "cluster_split_k",
    ),
    Fault(
        "fixed parts before the last are lost", "kernels/device/accumulate.py",
        "acc = added(acc, more)\n", "acc = more\n",
        PARTED, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "fixed parts follow the depth of a step", "kernels/device/scheduler.py",
        "CUT // BLOCK_K if self.SHAPE.PARTS > 1 else 1\n", "1\n",
        INVARIANT, "split_k and 4360", "split_k",
    ),
    Fault(
        "batch indices of operands are exchanged", "kernels/device/mainloop.py",
        "async_load(desc, [b0, b1, i, j], bar, memory)",
        "async_load(desc, [b1, b0, i, j], bar, memory)",
        BATCHES, "pingpong", "pingpong",
    ),
    Fault(
        "batch indices of operands are exchanged in a cluster", "kernels/device/ptx.py",
        "(to, bar, fast, slow, b1, b0)", "(to, bar, fast, slow, b0, b1)",
        BATCHES, CLUSTER, "cluster",
    ),
    Fault(
        "the second part of the columns is loaded from the first's place",
        "kernels/device/mainloop.py",
        "col = first_col + i * N0\n", "col = first_col\n",
        CONFIGS, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "programs share with fewer than there are", "kernels/device/ptx.py",
        'f", {2**PROGRAMS - 1}"', 'f", {2 ** (PROGRAMS - 1)}"',
        SIZES, CLUSTER, "cluster",
    ),
    # Groups
    Fault(
        "a group takes in the first row of the next", "kernels/device/groups.py",
        "row += LINES - self.end\n", "row += LINES - self.end - 1\n",
        GROUPS, "pingpong and m", "pingpong",
    ),
    Fault(
        "a group's K takes in the first of the next", "kernels/device/groups.py",
        "LINES - (self.end - self.begin)\n", "LINES - (self.end - self.begin) - 1\n",
        GROUPS, "warp_specialized and k", "warp_specialized",
    ),
    Fault(
        "what is behind the last group is multiplied", "kernels/device/groups.py",
        "gl.where(self.rest, LINES, 0)\n", "gl.where(self.rest, 0, 0)\n",
        GROUPS, "pingpong and m", "pingpong",
    ),
    Fault(
        "a group is searched among those before it", "kernels/device/groups.py",
        "started = self.before <= band\n", "started = self.before < band\n",
        GROUPS, "pingpong and m", "pingpong",
    ),
    # Waits and their partners
    Fault(
        "the producer doesn't wait for the launch before", "kernels/device/roles.py",
        "    gdc_wait()\n    n = gl.to_tensor(0)\n", "    n = gl.to_tensor(0)\n",
        CHAIN, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "a cluster's producer doesn't wait for the launch before", "kernels/device/roles.py",
        "    gdc_wait()\n    n = gl.to_tensor(0)\n", "    n = gl.to_tensor(0)\n",
        CHAIN, CLUSTER, "cluster",
    ),
    Fault(
        "a kernel in Triton doesn't wait for the launch before", "kernels/device/tile.py",
        "        gdc_launch_dependents()\n        gdc_wait()\n",
        "        gdc_launch_dependents()\n",
        CHAIN, "gemv", "gemv",
    ),
    Fault(
        "consumers don't wait for a stage to be there", "kernels/device/mainloop.py",
        "        mbarrier.wait(self.bars.index(stage), odd)\n", "",
        SIZES, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "the right half of a step of A in registers is the left one again",
        "kernels/device/mainloop.py", "right = load_fragment(a, 1, acc[0])",
        "right = load_fragment(a, 0, acc[0])", FRAGMENTS, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "the producer doesn't wait for a stage to be free", "kernels/device/mainloop.py",
        "            mbarrier.wait(self.bars.index(SHAPE.STAGES + stage), odd ^ 1)\n", "",
        TILES, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "the last stage of a tile is never free again", "kernels/device/mainloop.py",
        "        self.release((n - 1) % self.SHAPE.STAGES)\n", "",
        TILES, "pingpong", "pingpong",
    ),
    Fault(
        "consumers don't take turns", "kernels/k11_pingpong.py",
        "        mbarrier.wait(turns.index(WHICH), turn)\n", "",
        TILES, "pingpong", "pingpong",
    ),
    Fault(
        "consumers of a cluster's program don't take turns", "kernels/k16_cluster_pingpong.py",
        "        barrier_wait(turns + WHICH * 8, turn)\n", "",
        TILES, "cluster_pingpong", "cluster_pingpong",
    ),
    Fault(
        "sums of other programs are read before they are there", "kernels/device/exchange.py",
        "        barrier_wait(full, 0, True)\n", "",
        SUMS, "cluster_split_k", "cluster_split_k",
    ),
    Fault(
        "TMA stores what was not fenced", "kernels/device/epilogue.py",
        "            fence_async_shared()\n", "",
        FENCES, "warp_specialized", "warp_specialized",
    ),
    # Stores
    Fault(
        "a column past the last is stored", "kernels/device/epilogue.py",
        "(offs_n[None, :] < N)", "(offs_n[None, :] <= N)",
        STORES, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "a row past the last is stored", "kernels/device/epilogue.py",
        "(offs_m[:, None] < M)", "(offs_m[:, None] <= M)",
        STORES, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "strides of C are exchanged", "kernels/device/epilogue.py",
        "if MIRROR else (strides.m, strides.n)", "if MIRROR else (strides.n, strides.m)",
        STORES, "pingpong", "pingpong",
    ),
    Fault(
        "batch indices of C are exchanged", "kernels/device/epilogue.py",
        "here = (unit.b0, unit.b1, row, col)", "here = (unit.b1, unit.b0, row, col)",
        BATCHES, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "three consumers store at one place", "kernels/k10_warp_specialized.py",
        "WHICH, WHICH * slabs_each(work.SHAPE))", "WHICH, 0)",
        CONFIGS, "warp_specialized", "warp_specialized",
    ),
    # Scales
    Fault(
        "the scales of a step are those of the first", "kernels/device/scale_ring.py",
        "self.args, step + unit.first", "self.args, 0 * step + unit.first",
        SCALED, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "the second slab of rows has the scales of the first", "kernels/device/scale_ring.py",
        "slice(SLAB * SHAPE.ROWS, SHAPE.ROWS)", "slice(0, SHAPE.ROWS)", SCALED, CLUSTER, "cluster",
    ),
    Fault(
        "of promoted sums the last step is left", "kernels/device/promote.py",
        "pinned(acc[len(more)] + one)", "pinned(one)", SCALED, CLUSTER, "cluster",
    ),
    Fault(
        "columns have no scales", "kernels/k21_scaled.py",
        "of_a * b_scale(args, group, offs_n, of_columns, block, B_LINES)", "of_a",
        SCALED, "scaled]", "scaled",
    ),
    Fault(
        "a group along K takes in the end of the one before", "kernels/k21_scaled.py",
        "(k >= first_k - base_k) & (k < last_k - base_k)", "k < last_k - base_k",
        GROUPED, "scaled and k", "scaled",
    ),
    Fault(
        "groups in blocks of K all begin with the first", "kernels/device/groups.py",
        "gl.where(begin < end, begin // SHAPE.BLOCK_K, 0)", "gl.where(begin < end, 0, 0)",
        GROUPED, "warp_specialized and k", "warp_specialized",
    ),
    Fault(
        "each group has the first one's scales of columns", "kernels/device/scale_ring.py",
        "args.sb_strides, unit.b1,", "args.sb_strides, unit.b0,",
        GROUPED, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "swapped operands keep each other's scales", "plan/__init__.py",
        "return *more[:first], b, a, *more[first + 2 :]", "return more",
        SCALED, "warp_specialized", "warp_specialized",
    ),
    # Pairs of columns
    Fault(
        "a gate's partner stands a column further on", "kernels/device/mainloop.py",
        "half * (columns // 2)", "half * (columns // 2 + 1)",
        PAIRS, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "both halves of a stage are loaded to one place", "kernels/device/mainloop.py",
        "halves.index(2 * stage + half)", "halves.index(2 * stage)",
        PAIRS, "pingpong", "pingpong",
    ),
    Fault(
        "a gate and its partner are exchanged", "kernels/device/subtile.py",
        "((first[j], last[j])", "((last[j], first[j])",
        PAIRS, "pingpong", "pingpong",
    ),
    Fault(
        "both halves have the bias of the gate", "kernels/device/epilogue_ops.py",
        "args.bias_ptr + N,", "args.bias_ptr,",
        PAIRS, "warp_specialized", "warp_specialized",
    ),
    # Sums of parts
    Fault(
        "the last part is not added", "kernels/device/split_k.py",
        "add_partials(partials, i, SPLIT_K,", "add_partials(partials, i, SPLIT_K - 1,",
        SUMS, SPLIT_K, "split_k",
    ),
    Fault(
        "the last but one adds up the parts", "kernels/device/split_k.py",
        "unit.split, SPLIT_K, SHARES)", "unit.split, SPLIT_K - 1, SHARES)",
        SUMS, SPLIT_K, "split_k",
    ),
    Fault(
        "a counter is not zero again", "kernels/device/split_k.py",
        "    if last:\n        gl.store(counter, 0)\n    return last\n", "    return last\n",
        SUMS, "stream_k", "stream_k",
    ),
    Fault(
        "a word of owners is not zero again", "kernels/device/split_k.py",
        "        if (seen >> TAKEN_SHIFT) + count == SHARES:\n            gl.store(word, 0)\n", "",
        SUMS, SPLIT_K, "split_k",
    ),
    Fault(
        "shares begin a step late", "kernels/device/stream_k.py",
        "program * share + gl.minimum(program, more), 0)",
        "program * share + gl.minimum(program + 1, more), 0)",
        SUMS, "stream_k", "stream_k",
    ),
    Fault(
        "parts are added in another order", "kernels/device/exchange.py",
        "place = program * distance + i * 512", "place = (programs - program) * distance + i * 512",
        ORDER, "cluster_split_k", "cluster_split_k",
    ),
    # On the host
    Fault(
        "TMA stores rows that end inside 16 bytes", "arch/lines.py",
        "        and matrix.cols * matrix.dtype.itemsize % TMA_BYTES == 0\n", "",
        STORES, "warp_specialized", "warp_specialized",
    ),
    Fault(
        "kinds don't differ by the alignment of out", "runtime/fast_path.py",
        "out.dtype, third & 15, out.get_device()", "out.dtype, out.get_device()",
        (LAUNCH + "a_result_on_another_address",), "", "tma",
    ),
    Fault(
        "kinds don't differ by the accumulator", "runtime/fast_path.py",
        "b.get_device(), options,\n", "b.get_device(), options[:2], options[3:],\n",
        (LAUNCH + "accumulators_are_kinds",), "", "tma",
    ),
    Fault(
        "two captures share counters", "runtime/workspace.py",
        "known[0] == capture and known[1]", "known[1]",
        (LAUNCH + "captures_do_not_share_their_counters",), "", "gemv",
    ),
    Fault(
        "gradients don't know the precision", "plan/kinds.py",
        "for_gradients(word), precision, accumulate", "for_gradients(word), None, None",
        (LAUNCH + "gradients_are_as_precise_as_asked",), "", "gemv",
    ),
    Fault(
        "a prepared launch reads the other's copy", "plan/kinds.py",
        'operands = [copies.get("a", 0), copies.get("b", 1)]',
        'operands = [copies.get("b", 0), copies.get("a", 1)]',
        (LAUNCH + "packed_and_swapped",), "", "tma",
    ),
    Fault(
        "a prepared launch doesn't exchange operands", "plan/kinds.py",
        "        operands.reverse()\n", "        pass\n",
        (LAUNCH + "packed_and_swapped",), "", "tma",
    ),
    Fault(
        "gradients are never prepared", "op/derivatives.py",
        "if (index == 1) != turned", "if (index == 0) != turned",
        (LAUNCH + "gradients_of_every_layout",), "", "gemv",
    ),
    Fault(
        "gradients take the operands in the other order", "runtime/fast_path.py",
        "(addresses[first], addresses[second], out", "(addresses[second], addresses[first], out",
        (LAUNCH + "gradients_of_every_layout",), "", "gemv",
    ),
)  # fmt: skip


class Misplaced(Exception):
    """A fault whose `old` doesn't stand exactly once where it should."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--dry", action="store_true", help="apply and compile; needs no GPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    args = parser.parse_args()
    chosen = [fault for fault in FAULTS if all(word in fault.name for word in args.words)]
    if not chosen:
        print("mutants: no fault is called so", file=sys.stderr)
        return 2
    try:
        for fault in chosen:
            applied(fault)
    except Misplaced as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    if not args.dry and (reason := unable()):
        print(f"mutants: {reason}", file=sys.stderr)
        return 2
    begun = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        bad = report(chosen, pool) if not args.dry else report_dry(chosen, pool)
    print(f"{len(chosen) - bad} of {len(chosen)} faults "
          f"{'compile' if args.dry else 'found'}, in {time.monotonic() - begun:.0f} s")  # fmt: skip
    return int(bad > 0)


def unable() -> str | None:
    """Why the tests can't run here."""
    import torch

    found = torch.cuda.is_available() and torch.cuda.get_device_name()
    if not found or torch.cuda.get_device_capability()[0] != 9:
        return f"needs a CUDA device of sm_90, and torch sees {found or 'none'}"
    return None


def applied(fault: Fault) -> str:
    """The file with the fault in it; raises Misplaced."""
    text = (ROOT / "tritemm" / fault.file).read_text()
    if (count := text.count(fault.old)) != 1:
        raise Misplaced(f"{fault.name}: what it replaces stands {count} times in {fault.file}")
    return text.replace(fault.old, fault.new)


@dataclasses.dataclass
class Copy:
    """A folder with the package, perhaps with a fault, and its tests."""

    folder: Path
    fault: Fault | None = None

    def __post_init__(self):
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "results")
                shutil.copytree(source, self.folder / part, ignore=ignored)
            else:
                shutil.copy(source, self.folder / part)
        if self.fault:
            (self.folder / "tritemm" / self.fault.file).write_text(applied(self.fault))

    def run(self, words: Sequence[str], limit: float = LIMIT) -> tuple[int | None, str]:
        """Status and output of Python, which finds this package; None where it hangs."""
        path = os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH"))))
        more = {"cwd": self.folder, "env": os.environ | {"PYTHONPATH": path}}
        told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with session([sys.executable, *words], **more, **told) as child:
            try:
                output, _ = child.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return None, ""
        return child.returncode, output


def copies(faults: Sequence[Fault | None], folder: str) -> Iterator[Copy]:
    for index, fault in enumerate(faults):
        place = Path(folder) / str(index)
        place.mkdir()
        yield Copy(place, fault)


def tests_of(fault: Fault) -> tuple[str, ...]:
    """Words for Python: stops at the first failure."""
    return ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", fault.word, *fault.tests)


def report(faults: Sequence[Fault], pool: ThreadPoolExecutor) -> int:
    """Run the tests of each, and those tests without any fault; how many were not found."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        right, *mutants = copies((None, *faults), folder)
        # Those that may hang begin first.
        found = [pool.submit(copy.run, tests_of(copy.fault)) for copy in mutants]
        plain = {words: pool.submit(right.run, words) for words in map(tests_of, faults)}
        bad = 0
        for fault, future in zip(faults, found, strict=True):
            reason = of_plain(*plain[tests_of(fault)].result())
            how = "NOT TRIED" if reason else None
            if not reason:
                how, reason = verdict(*future.result())
            bad += reason is not None
            print(f"{how:<14} {fault.name}", *([f": {reason}"] if reason else []), flush=True)
        return bad


def of_plain(status: int | None, output: str) -> str | None:
    """Why the tests prove nothing: without a fault they should run, some of them, and pass."""
    if status == PASSED and re.search(r"\b[1-9]\d* passed", output):
        return None
    return f"without it the tests end with {status}: {last_lines(output)}"


def verdict(status: int | None, output: str) -> tuple[str, str | None]:
    """How the fault was found; and if it was not, why."""
    if "CompilationError" in output:
        return "DOESN'T COMPILE", last_lines(output)
    if status is None:
        return "found: hangs", None
    if status == FAILED:
        return "found: fails", None
    if status < 0:
        return "found: dies", None
    return "NOT FOUND", last_lines(output)


def last_lines(output: str) -> str:
    return " | ".join(output.strip().splitlines()[-3:])


#: Run in a copy: compiles a rung's code for a problem of some batches.
COMPILE = """
import sys
from tritemm.compile import asm
code = asm.compile_problem(asm.Job(sys.argv[1], layout="NT", M=520, N=525, K=4104, batch=(2, 3)))
sys.exit(None if isinstance(code, asm.Code) else str(code))
"""


def report_dry(faults: Sequence[Fault], pool: ThreadPoolExecutor) -> int:
    """Compile what each makes; how many don't."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        mutants = list(copies(faults, folder))
        found = [pool.submit(copy.run, ("-c", COMPILE, copy.fault.rung)) for copy in mutants]
        bad = 0
        for fault, future in zip(faults, found, strict=True):
            status, output = future.result()
            bad += status != 0
            reason = [f": {last_lines(output)}"] if status else []
            print(f"{'compiles' if status == 0 else 'FAILS':<9} {fault.name}", *reason, flush=True)
        return bad


if __name__ == "__main__":
    sys.exit(main())
