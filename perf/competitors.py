"""Who races: the rungs of both ladders, `tritemm.matmul` and its kin, and cuBLAS.

Which rungs of the two ladders are the same design, their headers' Mirrors lines say. A name there
is that of a competitor: `permuted[2]` is a rung in its third config, `permuted` in its first.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch

import tritemm
from tritemm import dispatch, plan
from tritemm.compile.pool import Item
from tritemm.problem import Device, Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Config, Kernel, find

from .case import DTYPES, FAST, OUTPUT, SCALINGS, Case
from .engine import Competitor
from .groups import BALANCED
from .operands import Operands, alone, operands, reference
from .rows import CUDA, DENSE, HALF, INVARIANT, NULL, REFERENCE, TORCH_FAST, TRITON


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A rung in one of the configs that a search times."""

    rung: str
    config: Config

    @property
    def name(self) -> str:
        c = self.config
        group = c.GROUP_M if c.ORDER == "grouped" else ""
        tile = f"{c.BLOCK_M}x{c.BLOCK_N}x{c.BLOCK_K}"
        split = f" split{c.SPLIT_K}" if c.SPLIT_K > 1 else ""
        cluster = f" cluster{c.CLUSTER}" if c.CLUSTER > 1 else ""
        view = " swap" * c.SWAP + (f" pack-{c.PACK}" if c.PACK else "")
        how = f"w{c.num_warps} s{c.num_stages} {c.ORDER}{group}"
        return f"{self.rung} {tile} {how}{split}{cluster}{view}"


def cublas(case: Case) -> list[Competitor]:
    """The reference, its null twin, and cuBLAS with an fp16 accumulator if the case has one, or
    with fast sums if fp8 has scales."""
    half = case.accumulate == "fp16"
    usual = "fp32" if half else case.accumulate
    asked = {REFERENCE: usual, NULL: usual} | ({HALF: "fp16"} if half else {})
    refusal = None
    if case.dtype == "fp8":
        asked |= {TORCH_FAST: FAST} if case.scaling else {}
        refusal = None if case.layout == "NT" else f"torch multiplies fp8 NT alone, not {case}"
    return [
        Competitor(name, reference(case, how), accumulate=how, refusal=refusal)
        for name, how in asked.items()
    ]


def of_rung(
    name: str, run: Callable, kernel: Kernel, config: Config | None, **fields
) -> Competitor:
    """A kernel in a config; of Triton's ladder unless `fields` say otherwise."""
    known = {"ladder": TRITON, "number": kernel.number}
    known |= {"config": config and dataclasses.asdict(config)}
    return Competitor(name, run, rung=kernel.name, **known | fields)


def matmul(case: Case, operands: Operands, kernels: Iterable[str]) -> list[Competitor]:
    """`tritemm.matmul` with each `kernel=` word, then cuBLAS; every helper kernel counts."""
    return [of_matmul(case, operands, word) for word in kernels] + cublas(case)


def invariant(case: Case, operands: Operands) -> list[Competitor]:
    """`tritemm.matmul(batch_invariant=True)`, which is compared with auto too; auto; cuBLAS."""
    fixed = of_matmul(case, operands, "auto", batch_invariant=True)
    named = dataclasses.replace(fixed, name=INVARIANT, rivals=("auto",))
    return [named, *matmul(case, operands, ["auto"])]


def scaled(case: Case, operands: Operands, kernels: Iterable[str]) -> list[Competitor]:
    """`tritemm.scaled_mm` with each `kernel=` word, in all its sums; then `cublas`."""
    asked = [(word, how) for word in kernels for how in case.sums]
    return [of_scaled(case, operands, *each) for each in asked] + cublas(case)


def of_scaled(case: Case, operands: Operands, word: str, how: str) -> Competitor:
    """`tritemm.scaled_mm` with `kernel=word`, or of groups `scaled_grouped_mm`; refused with its
    own sentence.

    It is compared with torch's fast sums too, whatever its own are.
    """
    first, second = SCALINGS[case.scaling]
    fast = how == FAST
    name = f"{word}, {FAST}" if fast else word
    options = {"use_fast_accum": fast, "kernel": word, "output_dtype": DTYPES[case.output]}

    def run(a, b, c, of_a, of_b):
        return tritemm.scaled_mm(a, b, of_a, first, of_b, second, out=c, **options)

    def of_groups(a, b, c, offs, of_a, of_b):
        scales = _as_given(of_a, first), first, _as_given(of_b, second), second
        more = options | {"offs": offs, "in_blocks": case.in_blocks}
        return tritemm.scaled_grouped_mm(a, b, *scales, out=c, **more)

    run = of_groups if case.groups else run
    try:
        problem = problem_of(case, Device.of(operands[0].device), how)
        choice = dispatch.choose(problem, word)
    except (NotImplementedError, ValueError) as error:
        return Competitor(name, run, ladder=TRITON, refusal=str(error))
    return of_rung(name, run, choice.kernel, choice.config, accumulate=how, rivals=(TORCH_FAST,))


def grouped(case: Case, operands: Operands) -> list[Competitor]:
    """`tritemm.grouped_mm`; torch's, twice; and if groups are as large, dense products of theirs.

    Torch's kernel is CUTLASS's and not cuBLAS's, but the reference's name is that of all races.
    """
    if case.scaling:
        return _scaled_groups(case, operands)
    torchs = lambda a, b, c, offs: torch._grouped_mm(a, b, offs=offs)  # noqa: E731
    ours = lambda a, b, c, offs: tritemm.grouped_mm(a, b, offs=offs, out=c)  # noqa: E731
    dense = _dense(case, operands) if case.groups.sizes == BALANCED else []
    known = {"number": None, "rivals": tuple(each.name for each in dense)}
    try:
        choice = dispatch.choose(Problem.of(*operands[:3], groups=case.groups.cut))
        first = of_rung("auto", ours, choice.kernel, choice.config, **known)
    except (NotImplementedError, ValueError) as error:
        first = Competitor("auto", ours, ladder=TRITON, refusal=str(error))
    return [first, *(Competitor(name, torchs) for name in (REFERENCE, NULL)), *dense]


def _scaled_groups(case: Case, operands: Operands) -> list[Competitor]:
    """`tritemm.scaled_grouped_mm` in all its sums, and torch's, which has scales of rows alone; and
    dense products, beside groups of any sizes where torch has no scales of blocks."""
    dense = _dense(case, operands) if case.scaling != "row" or case.groups.sizes == BALANCED else []
    rivals = (TORCH_FAST, *(each.name for each in dense))
    ours = (of_scaled(case, operands, "auto", how) for how in case.sums)
    found = [dataclasses.replace(each, number=None, rivals=rivals) for each in ours]
    refusal = None if case.scaling == "row" else "torch._scaled_grouped_mm has no scales of blocks"
    for name, fast in ((REFERENCE, False), (NULL, False), (TORCH_FAST, True)):

        def torchs(a, b, c, offs, of_a, of_b, fast=fast):
            how = {"out_dtype": c.dtype, "use_fast_accum": fast}
            of_a, of_b = of_a.flatten(), of_b[..., 0] if b.dim() == 3 else of_b.flatten()
            return torch._scaled_grouped_mm(a, b, of_a, of_b, offs, **how)

        how = FAST if fast else case.accumulate
        found.append(Competitor(name, torchs, accumulate=how, refusal=refusal))
    return found + dense


def _as_given(scale: torch.Tensor, recipe: str) -> torch.Tensor:
    """A group's scales [lines, steps] as a caller has them."""
    return {"row": scale[..., 0], "block2d": scale.mT}.get(recipe, scale)


def _dense(case: Case, operands: Operands) -> list[Competitor]:
    """`torch.mm` and `tritemm.matmul`, or with scales theirs, of all rows and one expert's weights;
    or of all of K, with what fills blocks."""
    plain, given = dataclasses.replace(case, K=case.depth, groups=None), alone(*operands)
    if case.scaling:
        ours = of_scaled(plain, given, "auto", case.accumulate)
    else:
        ours = of_matmul(plain, given, "auto")
    return [
        dataclasses.replace(
            each,
            name=f"{DENSE}{each.name}",
            number=None,
            dense=True,
            run=lambda *operands, run=each.run: run(*alone(*operands)),
        )
        for each in (cublas(plain)[0], ours)
    ]


def matmul_options(case: Case, kernel: str) -> dict:
    """The keyword arguments of `tritemm.matmul` for the case."""
    return {
        "kernel": kernel,
        "precision": case.precision if case.dtype in ("fp32", "fp64") else None,
        "accumulate": DTYPES[case.accumulate] if case.dtype == "fp16" else None,
        "out_dtype": DTYPES[case.output] if case.output != OUTPUT[case.dtype] else None,
    }


def of_matmul(case: Case, operands: Operands, word: str, **more) -> Competitor:
    """`tritemm.matmul` with `kernel=word`, refused with its own sentence."""
    options = matmul_options(case, word) | more
    try:
        if case.scaling:
            raise NotImplementedError(f"products with scales are scaled_mm's, and this is {case}")
        choice = tritemm.explain(*operands[:2], **options)
    except (NotImplementedError, ValueError) as error:  # a type or a problem that is refused
        return Competitor(word, lambda a, b, c: None, ladder=TRITON, refusal=str(error))
    run = lambda a, b, c: tritemm.matmul(a, b, out=c, **options)  # noqa: E731
    split = is_split(choice.problem, choice.config)
    return of_rung(word, run, choice.kernel, choice.config, split=split)


def is_split(problem: Problem, config: Config) -> bool:
    """Whether operands are multiplied as planes of bf16, or as residues."""
    return problem.is_split(config.PACK)


def ladders(
    case: Case,
    operands: Operands,
    *,
    triton: Sequence[Kernel] = RUNGS,
    cuda: Sequence[Kernel] = (),
    only: Collection[str] = (),
    configs: str = "first",
    broken: Mapping[str, str] | None = None,
    auto: bool = False,
) -> list[Competitor]:
    """The rungs (those in `only`, if any) with their first config, or all; then cuBLAS.

    Each rung is compared with its `twins.rivals` too. `broken`: the compiler's messages for the
    rungs of `cuda` that it can't build. `auto`: `tritemm.matmul` itself too, as no rung.
    """
    accumulate = DTYPES[case.accumulate]
    problem = Problem.of(*operands[:3], accumulate=accumulate, precision=case.precision)
    found: list[Competitor] = []
    references = cublas(case)
    halves = [c.name for c in references if c.name == HALF]
    for ladder, kernels, others in ((TRITON, triton, cuda), (CUDA, cuda, triton)):
        asked = {"ladder": ladder, "only": only, "configs": configs, "others": others}
        for entrant in of_kernels(problem, kernels, **asked):
            kernel = find(entrant.rung, kernels)
            below = adds_to(kernel, kernels)
            known = {"adds_to": below and below.name}
            known["rivals"] = (*rivals(kernel, kernels, others), *halves)
            if kernel.name in (broken or {}):
                known["run"] = functools.partial(_fails, broken[kernel.name])
            found.append(dataclasses.replace(entrant, **known))
    if auto:
        found.append(dataclasses.replace(of_matmul(case, operands, "auto"), number=None))
    return found + references


def _fails(message: str, *operands: torch.Tensor) -> None:
    raise RuntimeError(message)


def of_kernels(
    problem: Problem,
    kernels: Sequence[Kernel],
    *,
    ladder: str = TRITON,
    only: Collection[str] = (),
    configs: str = "first",
    others: Sequence[Kernel] = (),
) -> list[Competitor]:
    """The rungs of one ladder, in the selected configs, or those that `others` mirror."""
    found: list[Competitor] = []
    also = {name for other in others for name in named(other, kernels)}
    for kernel in kernels:
        refusal, every = kernel.why_not(problem), []
        if not only or kernel.name in only:
            # A kernel that refuses may have no config to offer.
            offered = [None] if refusal else kernel.configs(problem)
            numbered = enumerate(offered)
            every = [(kernel.name + (f"[{i}]" if i else ""), config) for i, config in numbered]
        first = every[:1] + [each for each in every[1:] if each[0] in also]
        for name, config in every if configs == "all" else first:
            run = functools.partial(_run, kernel, problem, config)
            found.append(of_rung(name, run, kernel, config, ladder=ladder, refusal=refusal))
    return found


def _run(kernel: Kernel, problem: Problem, config: Config, *operands: torch.Tensor) -> None:
    """Multiply operands that may be smaller than the problem's."""
    how = {"accumulate": problem.accumulate, "precision": problem.precision}
    plan.run(kernel, Problem.of(*operands, device=problem.device, **how), config, *operands)


def problem_of(case: Case, device: Device | None = None, how: str | None = None) -> Problem:
    """The dispatcher's problem for a case whose tensors torch allocated; `how`: `Case.sums`."""
    a, b, c, *more = operands(case, "meta")
    scales = None
    if case.scaling:
        scales = (*per_line(case, *more[-2:]), case.dtype == "fp8" and how != FAST)
    return Problem.of(
        a,
        b,
        c,
        scales=scales,
        groups=case.groups.cut if case.groups else "",
        in_blocks=case.in_blocks,
        accumulate=DTYPES[case.accumulate],
        precision=case.precision,
        device=device or Device.of(torch.device("cuda")),
    )


def per_line(case: Case, *scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Scales as a `Problem` takes them: one of a whole tensor is there for each line."""
    if case.scaling != "tensor":
        return scales
    return tuple(t.expand(lines, 1) for t, lines in zip(scales, (case.M, case.N), strict=True))


def chosen(case: Case) -> list[Item]:
    """What Triton has to compile for `tritemm.matmul`, or for `scaled_mm` in all its sums."""
    choices = [dispatch.choose(problem_of(case, how=how)) for how in case.sums]
    return [(choice.kernel.name, choice.problem, choice.config) for choice in choices]


def named(kernel: Kernel, others: Sequence[Kernel]) -> tuple[str, ...]:
    """The names of `others` in the kernel's Mirrors line, in its order.

    Example:
        named(tiled, cuda_rungs)  # ("wmma_base", "mma_base"), of "Mirrors  wmma_base, mma_base"
    """
    known = {other.name for other in others}
    words = re.findall(r"\w+(?:\[\d+\])?", kernel.header.get("Mirrors", ""))
    return tuple(dict.fromkeys(word for word in words if rung_of(word) in known))


def rung_of(name: str) -> str:
    """The rung's name in a competitor's."""
    return name.partition("[")[0]


def twins(kernel: Kernel, others: Sequence[Kernel]) -> tuple[str, ...]:
    """The rungs of the other ladder that `kernel` names, then those that name `kernel`."""
    mine = named(kernel, others)
    back = (o.name for o in others if o.name not in map(rung_of, mine) and named(o, [kernel]))
    return (*mine, *back)


def adds_to(kernel: Kernel, ladder: Sequence[Kernel]) -> Kernel | None:
    """The rung of its own ladder that the kernel's header starts from: `Adds to  mma_base: ...`."""
    word = kernel.header.get("Adds to", "").partition(":")[0].strip()
    return next((rung for rung in ladder if rung.name == word), None)


def rivals(kernel: Kernel, ladder: Sequence[Kernel], others: Sequence[Kernel]) -> tuple[str, ...]:
    """The kernel's twins; if none is built, those of the rung that it adds to, and so on down."""
    while not (found := twins(kernel, others)):
        kernel = adds_to(kernel, ladder)
        if kernel is None:
            return ()
    return found
