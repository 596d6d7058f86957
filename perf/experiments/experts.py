"""`python -m perf experts`: whole layers of experts, `tritemm.moe` against transformers' ways.

forward  the sum of what its experts make of each token, without a gradient
train    the same, and its gradients with respect to tokens, weights and the router's choice

Each way is a CUDA graph. Of few tokens it has several sets in a row, each with experts of its own:
those of one could stay in L2. Results are judged against fp32, as those of models are.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

import tritemm

from .. import calls, cli, session, tables
from ..calls import OURS, CallBench
from ..case import Case
from ..engine import Competitor, Plan, Sample
from ..groups import MODELS, Model, routed
from ..problems import Problem
from ..race import PLAN
from ..rows import NULL, REFERENCE, Row
from ..select import newest_races
from ..tables import Parts, Table, digits, median, spread, us
from ..views import Selection, View

WORK = FORWARD, TRAIN = ("forward", "train")
LAYERS, TOKENS = ("qwen3-30b-a3b", "mixtral-8x7b"), (1, 8, 64, 4096, 32768)
#: transformers' way with a copy of the weights for each token; REFERENCE is its grouped_mm.
BATCHED = "batched_mm"
#: Sets in a graph, of no more tokens than `FEW`.
SETS, FEW = 8, 64

EXAMPLES = """
python -m perf experts
python -m perf experts --model mixtral-8x7b --tokens 1,8 --work forward --quick
"""


@dataclasses.dataclass(frozen=True)
class Layer:
    model: Model
    work: str
    tokens: int

    @property
    def problem(self) -> Problem:
        """Its case is a product of as many operations: training has the gradients' two too."""
        of, times = self.model, 3 if self.work == TRAIN else 1
        case = Case(self.tokens * of.top, 3 * of.width, of.hidden, "NT", batch=times)
        return Problem(f"{of.slug}/{self.work}/{self.tokens}", of.title, self.work, case)


def layers(models=LAYERS, work=WORK, tokens=TOKENS) -> list[Layer]:
    return [Layer(MODELS[name], *rest) for name, *rest in itertools.product(models, work, tokens)]


def register(commands) -> None:
    described = (
        "Race tritemm.moe against transformers' grouped_mm and batched_mm on whole layers of "
        "experts: forward, and with gradients."
    )
    command = cli.add_command(commands, "experts", run, described, EXAMPLES)
    cli.add_choices(command, "--model", LAYERS)
    cli.add_choices(command, "--work", WORK)
    cli.add_choices(command, "--tokens", TOKENS, cli.positive)
    count = cli.argument(cli.positive)
    command.add_argument("--minutes", type=count, default=9, help="time limit; default: 9")
    cli.add_measurement(command, rounds=9)


def run(args: argparse.Namespace) -> int:
    if reason := missing():
        return cli.refuse(cli.unable("experts") or reason)
    tasks = [task(each, args.seed) for each in layers(args.model, args.work, args.tokens)]

    def measure(there: session.Session) -> None:
        there.measure(tasks, session.planned(args, PLAN), args.minutes)

    return session.run(args, "experts", measure, text)


def missing() -> str | None:
    """Why there is no competitor here."""
    if importlib.util.find_spec("transformers") is None:
        return "python -m perf experts needs transformers: pip install '.[model]'"
    return None


def task(layer: Layer, seed: int) -> session.Task:
    bench, problem = functools.partial(LayerBench, layer, seed=seed), layer.problem
    fields = {"mode": "layer", "roof": None}
    return session.Task(problem.case, lambda there: field(), problem, bench, fields=fields)


def field() -> list[Competitor]:
    *torchs, ours = calls.field(OURS)
    ours = dataclasses.replace(ours, rivals=(BATCHED,))
    return [*torchs, Competitor(BATCHED, torchs[0].run), ours]


# The layers


class Experts(nn.Module):
    """What transformers' functions take for the layer's module: bf16, random weights."""

    has_gate = True
    has_bias = is_transposed = _is_expert_parallel = has_post_expert_norm = False

    def __init__(self, model: Model, device: str, trains: bool):
        super().__init__()
        self.num_experts = model.experts

        def weights(rows: int, columns: int) -> nn.Parameter:
            made = torch.randn(model.experts, rows, columns, dtype=torch.bfloat16, device=device)
            return nn.Parameter(made.mul_(columns**-0.5), requires_grad=trains)

        self.gate_up_proj = weights(2 * model.width, model.hidden)
        self.down_proj = weights(model.hidden, model.width)

    def _apply_gate(self, product: torch.Tensor) -> torch.Tensor:
        gate, up = product.chunk(2, -1)
        return F.silu(gate) * up


#: A layer's result, of its module, hidden [tokens, hidden], and index and weight [tokens, top].
Way = Callable[[Experts, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def way(name: str) -> Way:
    """A competitor's."""
    if name == OURS:
        return lambda module, hidden, *chosen: tritemm.moe(
            hidden, module.gate_up_proj, module.down_proj, *chosen
        )
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    return ALL_EXPERTS_FUNCTIONS["grouped_mm" if name == REFERENCE else name]


def one_by_one(module, hidden, index, weight) -> torch.Tensor:
    """Expert by expert: the way of the results in fp32."""
    out = torch.zeros_like(hidden)
    for expert in range(module.num_experts):
        token, place = (index == expert).nonzero(as_tuple=True)
        made = module._apply_gate(F.linear(hidden[token], module.gate_up_proj[expert]))
        made = F.linear(made, module.down_proj[expert]) * weight[token, place, None]
        out = out.index_add(0, token, made)
    return out


def captured(steps: Callable[[], calls.Results]) -> tuple[Callable[[], None], calls.Results]:
    """What replays a CUDA graph of them, and what each replay leaves."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            steps()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        left = steps()
    return graph.replay, left


class LayerBench(CallBench):
    """A layer's ways. A call replays all sets of tokens; the last one's results are judged."""

    def __init__(self, layer: Layer, plan: Plan, seed: int = 0, device: str = "cuda"):
        of, tokens, self.trains = layer.model, layer.tokens, layer.work == TRAIN
        torch.manual_seed(seed)
        self.module = Experts(of, device, self.trains)
        count = SETS if tokens <= FEW else 1
        index = torch.from_numpy(routed(of.experts, of.top, "uniform", tokens * count))
        hidden = torch.randn(count * tokens, of.hidden, dtype=torch.bfloat16, device=device)
        weight = torch.rand(index.shape, device=device).softmax(-1).to(hidden.dtype)
        self.grad = torch.randn_like(hidden[:tokens])
        parts = (t.to(device).split(tokens) for t in (hidden, index, weight))
        self.sets = [self._leaves(*each) for each in zip(*parts, strict=True)]
        wide = copy.deepcopy(self.module).float()
        hidden, index, weight = self.sets[-1]
        last = self._leaves(hidden.float(), index, weight.float())
        super().__init__(self.step(one_by_one, wide, *last), plan)
        self.left: dict[str, calls.Results] = {}

    def _leaves(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [t.detach().requires_grad_(self.trains and t.is_floating_point()) for t in tensors]

    def step(self, of: Way, module: Experts, hidden, index, weight) -> calls.Results:
        with torch.set_grad_enabled(self.trains):
            out = of(module, hidden, index, weight)
        if not self.trains:
            return {"output": out}
        leaves = {"hidden": hidden, "weight": weight, **dict(module.named_parameters())}
        found = torch.autograd.grad(out, list(leaves.values()), self.grad.to(out.dtype))
        gradients = {f"gradient of {n}": t for n, t in zip(leaves, found, strict=True)}
        return {"output": out.detach()} | gradients

    def make(self, name: str) -> Callable[[], object]:
        of = way(name)

        def steps() -> calls.Results:
            for each in self.sets:
                left = self.step(of, self.module, *each)
            return left

        replay, self.left[name] = captured(steps)
        return replay

    def results(self, name: str) -> calls.Results:
        self.call(name)()
        return self.left[REFERENCE if name == NULL else name]

    def timer(self, call, count: int, probe) -> Sample:
        """The time of a step; a call is one for each set."""
        taken = calls.by_events(call, count, probe)
        return dataclasses.replace(taken, seconds=taken.seconds / len(self.sets))

    def batch(self, seconds: float) -> tuple[int, int]:
        call = seconds * len(self.sets)
        lead, count = (max(1, math.ceil(t / call)) for t in (self.plan.lead, self.plan.replay))
        return lead, count


# The table

HEAD = ("", "tokens", "grouped_mm µs", "batched_mm µs", "tritemm µs", "TFLOP/s")
HEAD += ("x grouped_mm (p20-p80)", "x batched_mm", "grouped_mm again")
NAMES = {REFERENCE: "grouped_mm", NULL: "grouped_mm again", BATCHED: BATCHED, OURS: "tritemm"}
METHOD = (
    "CUDA graphs of the layer in bf16, without its router; every expert is equally likely to be "
    "chosen. x: the other's time over tritemm's in the same rounds."
)


def text(rows: list[Row]) -> str:
    return tables.text(parts(rows))


def parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line for each layer, work and number of tokens."""
    body = [_line(race) for race in tables.raced(rows).values()]
    reasons = tables.reasons(rows, lambda row: f"{row.id}, {NAMES[row.competitor]}")
    end = f"{METHOD} {tables.commands(rows)}." if selection else ""
    return [Table(HEAD, body), *reasons, end] if rows else []


def _line(race: dict[str, Row]) -> tuple[str, ...]:
    torchs, again, batched, ours = map(race.get, NAMES)
    row = next(iter(race.values()))
    ratio = spread(ours.ratio, ours.tie) if ours and ours.us else ""
    beside = median(((ours and ours.versus) or {}).get(BATCHED))
    times = (us(torchs), us(batched), us(ours), digits(ours and ours.tflops))
    first = (f"{row.problem['class']} {row.problem['name']}", row.id.rpartition("/")[2])
    return (*first, *times, ratio, beside, median(again and again.ratio))


def newest(rows: Sequence[Row], s: Selection) -> list[Row]:
    return newest_races(rows, "experts", [each.problem.id for each in layers()], s.gpu)


VIEWS = {"experts": View(newest, parts)}
