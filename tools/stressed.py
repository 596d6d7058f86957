"""What `stress.py` runs in child processes: trials of the rungs that synchronise warps by hand.

A child says "ready", then "begin N" and "ok N" or "bad N reason" for each trial it runs, one line
each. A hang is silence, which the parent ends.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's path begins with its own folder

import torch  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

from tritemm import budget, plan  # noqa: E402
from tritemm.problem import Device, Problem  # noqa: E402
from tritemm.rungs import RUNGS  # noqa: E402
from tritemm.spec import Config, Kernel, find  # noqa: E402

LAYOUTS = ("NN", "NT", "TN", "TT")
#: Types of the operands and of the result.
TYPES = (
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float16, torch.float32),
)
#: M, N, K of problems whose configs are tried: square, few rows, much K.
MODELS = ((4096, 4096, 4096), (48, 4096, 4096), (1024, 1024, 512), (256, 256, 32768))
#: SMs that a trial's device claims to have: a program of a persistent kernel gets several tiles.
FEW_SMS = (2, 3)
#: Launches that are judged together, on so many streams.
TOGETHER, STREAMS = 25, 3


@dataclasses.dataclass(frozen=True)
class Trial:
    """A product of the rung's in a config. `gap` is the elements between C's rows.

    `sms` is what the device claims to have, 0 the truth.
    """

    rung: str
    config: Config
    M: int
    N: int
    K: int
    layout: str
    dtype: torch.dtype
    out: torch.dtype
    gap: int = 0
    sms: int = 0
    batch: int = 1

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        types = " -> ".join(str(t).removeprefix("torch.") for t in (self.dtype, self.out))
        sms = f", {self.sms} SMs" if self.sms else ""
        gap = f", C's rows {self.gap} apart" if self.gap else ""
        size = f"{batch}{self.M} x {self.N} x {self.K} {self.layout}"
        return f"{self.rung} on {size}, {types}{sms}{gap}: {self.config}"

    def problem(self, a, b, c, device: Device) -> Problem:
        sms = self.sms or device.sms
        return Problem.of(a, b, c, device=dataclasses.replace(device, sms=sms))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """[*batch, rows, pitch] of the storages of A, B (as laid out) and C."""
        batch = (self.batch,) if self.batch > 1 else ()
        (a, b), vector = self.layout, 16 // self.dtype.itemsize
        a_lines = (self.M, self.K) if a == "N" else (self.K, self.M)
        b_lines = (self.K, self.N) if b == "N" else (self.N, self.K)
        padded = [(rows, -(-cols // vector) * vector) for rows, cols in (a_lines, b_lines)]
        return (*((*batch, *shape) for shape in padded), (*batch, self.M, self.N + self.gap))

    def views(self, a, b, c):
        """The operands inside such storages."""
        (layout_a, layout_b) = self.layout
        a = a[..., : self.K] if layout_a == "N" else a[..., : self.M].mT
        b = b[..., : self.N] if layout_b == "N" else b[..., : self.K].mT
        return a, b, c[..., : self.N]

    def of_meta(self, device: Device) -> Problem:
        """The problem, without data."""
        types = (self.dtype, self.dtype, self.out)
        storages = [
            torch.empty(shape, dtype=dtype, device="meta")
            for shape, dtype in zip(self.shapes(), types, strict=True)
        ]
        return self.problem(*self.views(*storages), device)


def by_hand() -> list[Kernel]:
    """The rungs in Gluon, for 16-bit operands."""
    gluon = [kernel for kernel in RUNGS if getattr(kernel.fn, "is_gluon", lambda: False)()]
    return [kernel for kernel in gluon if not kernel.limits.dtype]


def configs(kernel: Kernel, layout: str, types, device: Device) -> list[Config]:
    """Those that the rung offers for any of the `MODELS`, as stored and with operands swapped."""
    found: dict[Config, None] = {}
    for (M, N, K), swap in itertools.product(MODELS, (False, True)):
        model = Trial(kernel.name, Config(1, 1, 1, SWAP=swap), M, N, K, layout, *types)
        view = model.config.view(model.of_meta(device))
        if kernel.why_not(view) is None:
            offered = kernel.configs(view)
            found |= dict.fromkeys(dataclasses.replace(c, SWAP=swap) for c in offered)
    return list(found)


def sized(config: Config, rng: random.Random) -> tuple[int, int, int]:
    """M, N, K of some tiles and a part, of some k-steps and a part for each program of a tile."""
    high, wide = rng.choice(((2, 2), (0, 8)))
    rows = high * config.BLOCK_M + rng.randrange(1, config.BLOCK_M)
    cols = wide * config.BLOCK_N + 8 * rng.randrange(1, max(2, config.BLOCK_N // 8))
    K = max(5, 3 * config.SPLIT_K) * config.BLOCK_K + 8 * rng.randrange(1, config.BLOCK_K // 8)
    return (cols, rows, K) if config.SWAP else (rows, cols, K)


def tiny(kernel: Kernel, device: Device) -> list[Trial]:
    """Every config in every layout, on sizes of a few tiles and k-steps."""
    rng, trials = random.Random(0), []
    for layout, types in itertools.product(LAYOUTS, TYPES):
        if types != TYPES[0] and layout != "NT":
            continue
        for config in configs(kernel, layout, types, device):
            # Rows that are no multiple of 16 bytes are stored through pointers, others by TMA.
            gap, sms = rng.choice((0, 1)), rng.choice((*FEW_SMS, 0))
            trial = Trial(
                kernel.name, config, *sized(config, rng), layout, *types,
                gap=gap, sms=sms, batch=3 if rng.random() < 0.2 else 1,
            )  # fmt: skip
            if _able(kernel, trial, device):
                trials.append(trial)
    return trials


def few(kernel: Kernel, device: Device, count: int) -> list[Trial]:
    """Some of `tiny`, spread over all, of several tiles per program: for slow instruments."""
    able = [trial for trial in tiny(kernel, device) if trial.batch == 1]
    return [dataclasses.replace(t, sms=t.sms or FEW_SMS[0]) for t in spread(able, count)]


def spread(trials: Sequence[Trial], count: int) -> list[Trial]:
    """`count` of the trials, from all over; all of them if `count` is 0."""
    step = max(1, len(trials) // count) if count else 1
    return list(trials[::step])[: count or None]


def many(kernel: Kernel, device: Device, count: int, seed: int) -> Iterator[Trial]:
    """Random sizes in a dozen configs: all multiples of 16, or none, which is two kernels each."""
    rng = random.Random(seed)
    pools = []
    for layout, types in itertools.product(LAYOUTS, TYPES):
        able = configs(kernel, layout, types, device)
        pools += [(c, layout, types) for c in rng.sample(able, min(2, len(able)))]
    pools = rng.sample(pools, min(12, len(pools)))
    for _ in range(20 * count if pools else 0):
        config, layout, types = rng.choice(pools)
        even = rng.random() < 0.5
        M, N, K = (_size(rng, even, most) for most in (900, 1100, 2000))
        gap = 0 if even else rng.choice((0, 1))
        sms = rng.choice((*FEW_SMS, 7, 0))
        trial = Trial(kernel.name, config, M, N, K, layout, *types, gap=gap, sms=sms)
        if _able(kernel, trial, device):
            yield trial
            count -= 1
        if not count:
            return


def _size(rng: random.Random, even: bool, most: int) -> int:
    """Log-uniform, a multiple of 16 or not."""
    size = round(2 ** rng.uniform(1.5, most.bit_length()))
    size = min(size, most)
    return max(16, size // 16 * 16) if even else size + (size % 16 == 0)


def _able(kernel: Kernel, trial: Trial, device: Device) -> bool:
    view = trial.config.view(trial.of_meta(device))
    if kernel.why_not(view) is not None:
        return False
    return kernel.config_why_not(view, dataclasses.replace(trial.config, SWAP=False)) is None


def trials_of(check: str, rung: str, device: Device, count: int, seed: int) -> Sequence[Trial]:
    """What a child runs: for parent and child the same."""
    kernel = find(rung, RUNGS)
    if check == "launches":
        return list(many(kernel, device, count, seed))
    return spread(tiny(kernel, device), count) if check == "tiny" else few(kernel, device, count)


# A kernel to compare with

#: The word for it in a rung's place.
CONTROL = "control"


#: The control's roles; each sums twice as often as the one before.
ROLES, FEWEST = 5, gl.constexpr(8)


@gluon.jit
def _sum(ptr, WHICH: gl.constexpr, ROLE_WARPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [ROLE_WARPS], [0])
    total = gl.to_tensor(0)
    for i in range(FEWEST << WHICH):
        total += gl.sum(gl.arange(0, 128, layout) + i, 0)  # its warps meet, at their own barrier
    gl.store(ptr + WHICH, total)


@gluon.jit
def control_kernel(ptr):
    """Roles that share nothing, as many as a rung's: what a tool finds here is in Triton's dispatch
    of roles."""
    gl.warp_specialize(
        [
            (_sum, (ptr, 0, 4)), (_sum, (ptr, 1, 4)),
            (_sum, (ptr, 2, 1)), (_sum, (ptr, 3, 1)), (_sum, (ptr, 4, 2)),
        ],
        [4, 1, 1, 2], [24, 24, 24, 24],
    )  # fmt: skip


def lines_of_kernels() -> dict[str, tuple[str, range]]:
    """Kernel -> its file and its lines from `def` on, of all rungs by hand and of the control."""
    found = {}
    for function in (*(kernel.fn.fn for kernel in by_hand()), control_kernel.fn):
        lines, first = inspect.getsourcelines(function)
        at = next(i for i, line in enumerate(lines) if line.startswith("def "))
        file = Path(inspect.getsourcefile(function)).name
        found[function.__name__] = file, range(first + at, first + len(lines))
    return found


# Inside a child


def run_control() -> None:
    out = torch.empty(ROLES, dtype=torch.int32, device="cuda")
    for _ in range(3):
        control_kernel[(8,)](out, num_warps=4)
    torch.cuda.synchronize()
    times = [FEWEST.value << which for which in range(ROLES)]
    wanted = [sum(sum(range(i, i + 128)) for i in range(each)) for each in times]
    found = out.tolist()
    say("ok", 0) if found == wanted else say("bad", 0, f"{found} is not {wanted}")


def say(*words) -> None:
    print(*words, flush=True)


def run_one(trial: Trial, device: Device, judge: str = "cpu") -> str | None:
    """What is wrong with a trial on random data, NaN around them.

    Data are made on the CPU, and judged there too unless `judge` is "cuda": under an instrument
    torch's own kernels would be slow.
    """
    a, b, c = (
        torch.full(shape, torch.nan, dtype=dtype)
        for shape, dtype in zip(trial.shapes(), (trial.dtype,) * 2 + (trial.out,), strict=True)
    )
    for operand in trial.views(a, b, c)[:2]:
        operand.copy_(torch.randn(operand.shape) + 0.1)
    storages = [t.cuda() for t in (a, b, c)]
    operands = trial.views(*storages)
    kernel = find(trial.rung, RUNGS)
    plan.run(kernel, trial.problem(*operands, device), trial.config, *operands)
    torch.cuda.synchronize()
    a, b, c = (t.to(judge) for t in storages)
    if not c[..., trial.N :].isnan().all():
        return "wrote between C's rows"
    a, b, out = trial.views(a, b, c)
    verdict = budget.check(out, a, b)
    return None if verdict.ok else verdict.message


def run_many(trials: Sequence[Trial], start: int, device: Device) -> None:
    """Launch on several streams at a time; small integers make every sum exact."""
    pool = {
        dtype: torch.randint(-2, 3, (2**23,), device="cuda").to(dtype)
        for dtype in {trial.dtype for trial in trials}
    }
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    for first in range(start, len(trials), TOGETHER):
        say("begin", first)
        together = trials[first : first + TOGETHER]
        operands = [_from_pool(trial, pool[trial.dtype], first + i) for i, trial in
                    enumerate(together)]  # fmt: skip
        torch.cuda.synchronize()
        for i, (trial, three) in enumerate(zip(together, operands, strict=True)):
            with torch.cuda.stream(streams[i % STREAMS]):
                problem = trial.problem(*three, device)
                plan.run(find(trial.rung, RUNGS), problem, trial.config, *three)
        torch.cuda.synchronize()
        for i, (a, b, c) in enumerate(operands):
            if not torch.equal(c, torch.matmul(a.float(), b.float()).to(c.dtype)):
                say("bad", first + i, "not the exact sums of small integers")
        say("ok", first + len(together) - 1)


def _from_pool(trial: Trial, pool: torch.Tensor, index: int):
    """A and B anywhere in the pool on a 16-byte boundary, and a poisoned C."""
    storages = []
    for i, shape in enumerate(trial.shapes()[:2]):
        count = torch.Size(shape).numel()
        offset = (index * 7919 + i * 104729) * 8 % (pool.numel() - count) // 8 * 8
        storages.append(pool[offset : offset + count].view(shape))
    c = torch.full(trial.shapes()[2], torch.nan, dtype=trial.out, device="cuda")
    return trial.views(*storages, c)


def main(check: str, rung: str, start: int, count: int, seed: int) -> None:
    if rung == CONTROL:
        say("ready")
        run_control()
        return
    device = Device.of(torch.device("cuda"))
    trials = trials_of(check, rung, device, count, seed)
    if check == "consan":  # it keeps its books in global memory
        import triton

        triton.set_allocator(
            lambda size, align, stream: torch.zeros(size, dtype=torch.int8, device="cuda")
        )
    torch.zeros(1).cuda()
    say("ready")
    if check == "launches":
        run_many(trials, start, device)
        return
    for index in range(start, len(trials)):
        torch.manual_seed(index)
        say("begin", index)
        try:
            wrong = run_one(trials[index], device, "cuda" if check == "tiny" else "cpu")
        except Exception as error:  # the compiler's, or a refusal; a CUDA error ends the child
            torch.cuda.synchronize()
            wrong = " ".join(f"{type(error).__name__}: {error}".split())[-300:]
        say("bad", index, wrong) if wrong else say("ok", index)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: stressed.py CHECK RUNG START COUNT SEED, as tools/stress.py runs it")
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
