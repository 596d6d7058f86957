"""A chosen kernel and config, and what `explain` says about them."""

from __future__ import annotations

import dataclasses
import math

import torch

from ..budget import OPERAND_ERROR, relative
from ..problem import INTERPRETER, PLANES, PRODUCTS, RESIDUES, Problem
from ..problem.config import Config
from ..rungs import RUNGS
from ..spec import Kernel
from .candidates import ranked
from .cost_model import model


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel, its config, and `why` they were chosen; prints as a few lines."""

    problem: Problem
    kernel: Kernel
    config: Config
    why: str

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """The rungs that can't run the problem as it is, and why, from the top of the ladder."""
        reasons = ((rung.name, rung.why_not(self.problem)) for rung in reversed(RUNGS))
        return tuple((name, reason) for name, reason in reasons if reason)

    @property
    def predicted(self) -> float:
        """Seconds that the model predicts, at least the roofline."""
        return max(self.parts.total, self.roofline)

    @property
    def parts(self) -> model.Breakdown:
        """What the predicted seconds consist of."""
        return model.breakdown(self.kernel, self.problem, self.config)

    @property
    def roofline(self) -> float:
        """Seconds of the arithmetic at the sustained clock, or of copying as many bytes, whichever
        is longer: measurements of the GPU, not of our kernels."""
        return max(model.roofline(self.problem))

    @property
    def others(self) -> list[tuple[float, Kernel, Config]]:
        """The other candidates for `kernel="auto"`: (predicted seconds, kernel, config), the least
        first."""
        others = (row for row in ranked(self.problem) if row[1:] != (self.kernel, self.config))
        return [(max(s, self.roofline), kernel, config) for s, kernel, config in others]

    def __repr__(self) -> str:
        return f"<Choice {self.kernel.name}, {self.config!r} for {self.problem}>"

    def __str__(self) -> str:
        lines = [
            f"problem    {self.problem}",
            f"kernel     {self.kernel.name}: {self.kernel.title}",
            f"config     {self.config}",
            f"why        {self.why}",
            *self._before(),
            f"work       {self._work()}",
            *self._error(),
        ]
        if self.problem.device == INTERPRETER:
            milliseconds = 1e3 * self.parts.total
            lines.append(f"predicted  {milliseconds:.0f} ms on the CPU, in Triton's interpreter")
        else:
            lines += self._times()
        lines += [f"refused    {name}: {reason}" for name, reason in self.refused]
        return "\n".join(lines)

    def _before(self) -> list[str]:
        lines = []
        reasons = dict(self.refused)
        split = self.problem.is_split(self.config.PACK)
        if split and self.problem.by_residues:
            count = RESIDUES[self.problem.precision]
            lines.append(
                f"residues   a and b, modulo {count} numbers up to 256; {count} products of int8, "
                "combined in fp64"
            )
        elif split:
            products = f"{PRODUCTS[self.problem.precision]} products of these"
            lines.append(f"split      a and b, into {PLANES} planes of bf16 each; {products}")
        elif self.config.PACK:
            slow = "tensor cores need K contiguous for this type"
            if self.problem.by_ffma:
                slow = "FFMA lacks registers if both are stored along K"
            why = reasons.get(self.kernel.name, slow)
            lines.append(f"packed     {' and '.join(self.config.PACK)}, because {why}")
        if self.config.SWAP:
            short = "M" if self.problem.M <= self.problem.N else "N"
            lines.append(
                f"swapped    C.T = B.T A.T: {short} = {getattr(self.problem, short)} "
                f"is the {'columns' if short == 'M' else 'rows'} of the tile"
            )
        return lines

    def _error(self) -> list[str]:
        """The error bound from `budget`, for fp32 and residues; its second part shrinks for a long
        K."""
        p = self.problem
        if p.a.dtype != torch.float32 and not p.by_residues:
            return []
        summed = p.precision if p.is_split(self.config.PACK) else ""
        most = relative(p.K, summed, p.a.dtype)
        most += 4 * OPERAND_ERROR.get(p.precision, 0.0)
        return [f"error      up to {most:.1e} of the sum of |a||b|, before C is rounded"]

    def _work(self) -> str:
        config, sms = self.config, self.problem.device.sms
        tiles = config.tiles(config.view(self.problem))
        split = f" x {config.SPLIT_K} parts of K" if config.SPLIT_K > 1 else ""
        work = f"{tiles} tile{'s' * (tiles != 1)}{split}"
        if self.problem.device == INTERPRETER:
            return f"{work}, one program after another"
        waves = tiles * config.SPLIT_K / sms
        full = 100 * waves / math.ceil(waves)
        return f"{work} on {sms} SMs: {waves:.2f} waves, {full:.0f} % full"

    def _times(self) -> list[str]:
        problem = self.problem
        arithmetic, memory = model.roofline(problem)
        bound = "arithmetic" if arithmetic >= memory else "memory"
        named = self.parts._asdict().items()
        parts = ", ".join(f"{n} {1e6 * s:.1f}" for n, s in named if s and n != "total")
        lines = [
            f"predicted  {1e6 * self.predicted:.1f} us; roofline {1e6 * self.roofline:.1f} us, "
            f"bound by {bound} ({problem.flops / max(problem.bytes, 1):.0f} FLOP per byte)",
            f"parts      {parts} us; memory overlaps steps, ends and reduction",
        ]
        for seconds, kernel, config in self.others[:3]:
            lines.append(f"or         {1e6 * seconds:.1f} us: {kernel.name}, {config}")
        return lines
