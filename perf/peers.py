"""Who else multiplies, and races beside cuBLAS as torch calls it: cuBLASLt's list, and quack's.

cublaslt  the fastest of the algorithms that cuBLASLt's heuristic lists, through nvmath-python
quack     the fastest of a short list of configs of quack-kernels' GEMM for sm_90, as
          `quack.gemm_interface.gemm_tuned.fn` runs them: `gemm(tuned=False)` is that in its default
          config

Each of a list is checked, and timed for some milliseconds, before the race (`bench.Quick`); the
peer's `config` says what came of it. It writes to C, on torch's current stream.

The best peer of a problem is the fastest of cuBLAS, as torch calls it, and of these, by the median.
A peer is no reference: its results are checked before the race on integers, and in the race within
`SLACK`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import random
import statistics
from collections.abc import Callable, Iterable, Sequence

import torch

from . import competitors
from .bench import Quick
from .case import Case
from .engine import Competitor
from .operands import Operands, poison
from .rows import PEERS

LT, QUACK = PEERS["lt"], PEERS["quack"]
#: Times the error bound. cuBLAS's splits of K that round to 16 bits in between have been up to 142
#: times beyond it; other operands' product is thousands of times beyond.
SLACK = 1000.0
#: The largest error on integers, over the root mean square of the results. Such splits of K have
#: some hundredths; other operands' product has more than 1.
NEAR = 0.1
#: How many algorithms to request, how often each is timed, and bytes of workspace for it.
ALGORITHMS, PASSES, WORKSPACE = 8, 5, 64 * 2**20
#: nvmath's names of how fp32 is multiplied; 16-bit types have the first.
COMPUTE = {"ieee": "COMPUTE_32F", "tf32": "COMPUTE_32F_FAST_TF32"}
#: Types of the operands that each may multiply here.
TYPES = {LT: ("bf16", "fp16", "fp32"), QUACK: ("bf16", "fp16")}
#: quack's configs that are timed, which differ from its default in nothing else. Each takes about a
#: second to compile, once for each type and layout; quack keeps it on disk.
PINGPONG = {"tile_m": 128, "tile_n": 192, "pingpong": True, "cluster_m": 2, "cluster_n": 1}
COOPERATIVE = PINGPONG | {"pingpong": False}
MENU = {
    "128x192 ping-pong 2x1": PINGPONG,
    "128x192 ping-pong 2x1 swapped": PINGPONG | {"swap_ab": True},
    "128x160 ping-pong 2x1": PINGPONG | {"tile_n": 160},
    "128x208 ping-pong 2x1": PINGPONG | {"tile_n": 208},
    "128x256 cooperative 2x1": COOPERATIVE | {"tile_n": 256},
    "256x128 cooperative 1x2": COOPERATIVE | {
        "tile_m": 256, "tile_n": 128, "cluster_m": 1, "cluster_n": 2,
    },
    "256x192 cooperative 1x2": COOPERATIVE | {"tile_m": 256, "cluster_m": 1, "cluster_n": 2},
}  # fmt: skip

#: One way of a list: enqueues a product of A and B into C; for groups it also gets their ends.
Run = Callable[..., None]


def against(
    case: Case, operands: Operands, kernels: Iterable[str], words: Iterable[str]
) -> list[Competitor]:
    """`competitors.matmul`, `grouped` or `scaled`, and the peers; tritemm's are compared with those
    too."""
    others = [PEER[word](case, operands) for word in dict.fromkeys(words)]
    names = tuple(other.name for other in others)
    if case.groups:
        mine = competitors.grouped(case, operands)
    elif case.scaling:
        mine = competitors.scaled(case, operands, kernels)
    else:
        mine = competitors.matmul(case, operands, kernels)
    rivals = [dataclasses.replace(c, rivals=c.rivals + names) if c.ladder else c for c in mine]
    return rivals + others


def peer(
    name: str,
    listed: Callable[[Case, Operands], tuple[list[Run], dict]],
    case: Case,
    operands: Operands,
) -> Competitor:
    """The fastest of what is `listed`, on the device of the operands; `config` begins with a dict.

    It never raises: a peer that can't take part is refused, and one that fails does so when run.
    """
    try:
        if reason := _why_not(name, case, operands):
            return _refused(name, reason)
        return _fastest(name, case, operands, *listed(case, operands))
    except ImportError as error:
        return _refused(name, f"{error}: pip install '.[peers]'")
    except NotImplementedError as error:
        return _refused(name, str(error))
    except Exception as error:  # of a compiler or a library: news, not a crash
        failure = error.with_traceback(None)  # which holds memory

    def run(*operands) -> None:
        raise failure

    return Competitor(name, run)


def _refused(name: str, reason: str) -> Competitor:
    return Competitor(name, lambda *operands: None, refusal=reason)


def _why_not(name: str, case: Case, operands: Operands) -> str | None:
    """Why a peer doesn't race."""
    if case.ending:
        return f"{name} is asked for products alone here, and this is {case}"
    if case.groups and name == LT:
        return "cuBLASLt has no products of groups"
    if case.dtype not in TYPES[name]:
        return f"{name} is asked for {' and '.join(TYPES[name])} here, not for {case.dtype}"
    if case.accumulate != "fp32":
        return f"{name} is asked to accumulate in fp32 here, not in {case.accumulate}"
    if case.output not in (case.dtype, "fp32"):
        return f"{name} is asked for results of the operands' type or fp32 here: {case}"
    if not all(t.is_cuda for t in operands[:3]):
        return f"the tensors are on the CPU; {name} needs them on a GPU"
    if case.dtype == "fp32" and case.precision not in COMPUTE:
        return f"cuBLASLt has no {case.precision}"
    if name == QUACK and not all(map(_whole, operands[:3])):
        return "quack takes rows of whole 16 bytes alone, at such addresses"
    return None


def _whole(t: torch.Tensor) -> bool:
    """Whether the address and all strides but that of one are multiples of 16 bytes."""
    strides = [stride for stride in t.stride() if stride != 1]
    return all(size * t.element_size() % 16 == 0 for size in strides) and t.data_ptr() % 16 == 0


def _disagreement(run: Run, there: Quick) -> str | None:
    """How results on small integers differ by more than rounding from the exact ones; None: not."""
    (_, _, c, *_), want = there.exact, there.want
    poison(c)
    run(*there.exact)
    size = float(torch.linalg.vector_norm(want, dtype=torch.float32)) / want.numel() ** 0.5
    worst = float((c - want).abs().max())
    if worst <= NEAR * size:  # which no NaN is
        return None
    return f"on small integers it is off by {worst:.4g}, where results are about {size:.4g}"


def _fastest(
    name: str, case: Case, operands: Operands, runs: Sequence[Run], config: dict
) -> Competitor:
    there = Quick(case)
    if geometry(*there.exact) != geometry(*operands):
        raise RuntimeError("what is timed before the race has other strides or alignments")
    us, fault = timed(runs, there)
    config |= {"algorithm": None, "us": us}
    if fault:
        return Competitor(name, runs[0], config=config, fault=fault)
    kept = min((i for i, each in enumerate(us) if each is not None), key=us.__getitem__)
    return Competitor(name, runs[kept], config=config | {"algorithm": kept}, slack=SLACK)


def algorithms(case: Case, operands: Operands) -> tuple[list[Run], dict]:
    """cuBLASLt's."""
    products = Products(COMPUTE[case.precision], operands)
    return [functools.partial(products.run, i) for i in range(products.count)], {}


def configs(case: Case, operands: Operands) -> tuple[list[Run], dict]:
    """quack's, as of `MENU`; of groups those that it can't turn over."""
    interface = importlib.import_module("quack.gemm_interface")
    default = interface.default_config(operands[0].device)
    if default.device_capacity != 9:
        raise NotImplementedError("quack's configs here are for sm_90")

    menu, lengths = MENU, {}
    if case.groups:
        menu = {name: fields for name, fields in MENU.items() if not fields.get("swap_ab")}
        lengths[f"cu_seqlens_{case.groups.cut}"] = torch.nn.functional.pad(operands[3], (1, 0))

    def run(config, a, b, c, offs=None) -> None:  # all offs are the same, and `lengths` are those
        interface.gemm_tuned.fn(a, b, c, config=config, **lengths)

    made = [dataclasses.replace(default, **fields) for fields in menu.values()]
    known = {"version": importlib.import_module("quack").__version__, "menu": list(menu)}
    return [functools.partial(run, config) for config in made], known


def geometry(*tensors: torch.Tensor) -> tuple:
    """What a plan depends on: shapes, strides, and the bytes of each tensor's alignment."""
    return tuple((t.shape, t.stride(), t.data_ptr() & -t.data_ptr() & 255) for t in tensors)


class Products:
    """nvmath's plans by geometry; `count` algorithms compute that of the operands given first.

    Another geometry, as that of the strip by which a bench estimates a time, has its own first one.
    """

    def __init__(self, compute: str, operands: Operands):
        self._advanced = importlib.import_module("nvmath.linalg.advanced")
        kind = getattr(self._advanced.MatmulComputeType, compute)
        self._options = {"compute_type": kind, "inplace": True, "memory_limit": WORKSPACE}
        self._known: dict[tuple, tuple] = {}
        self._first, algorithms = self._of(*operands)
        self.count = len(algorithms)

    def run(self, index: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Enqueue one product on the current stream; its C is not read."""
        product, algorithms = self._of(a, b, c)
        product.reset_operands_unchecked(a=a, b=b, c=c)
        product.execute(algorithm=algorithms[index if product is self._first else 0])

    def _of(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple:
        key = geometry(a, b, c)
        if key not in self._known:
            product = self._advanced.Matmul(a, b, c=c, beta=0.0, options=self._options)
            self._known[key] = product, product.plan(preferences={"limit": ALGORITHMS})
        return self._known[key]


def timed(runs: Sequence[Run], there: Quick) -> tuple[list[float | None], str | None]:
    """Microseconds of each, None where it can't run; and which of them is wrong, in a sentence.

    Medians of `PASSES` over all of them in random order. The last error where none can run.
    """
    loops, last, rng = {}, None, random.Random(0)
    for index, run in enumerate(runs):
        try:
            if wrong := _disagreement(run, there):
                return [None] * len(runs), f"algorithm {index} of {len(runs)}: {wrong}"
            loops[index] = there.loop(Competitor(f"algorithm {index}", run))
        except Exception as error:  # one that the list has, and this card or stream doesn't take
            there.recover()
            last = error
    if last and not loops:
        raise last
    samples: dict[int, list[float]] = {index: [] for index in loops}
    for _ in range(PASSES):
        for index in rng.sample(list(loops), len(loops)):
            samples[index].append(loops[index].time().seconds * 1e6)
    us = [statistics.median(samples[i]) if i in loops else None for i in range(len(runs))]
    return [each and round(each, 3) for each in us], None


#: By the words of `--peers`.
PEER = {
    "lt": functools.partial(peer, LT, algorithms),
    "quack": functools.partial(peer, QUACK, configs),
}
