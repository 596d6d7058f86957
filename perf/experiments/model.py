"""`python -m perf model`: transformers' models before and after `tritemm.convert`.

prefill  the logits of every token of the prompt, without a gradient, no cache kept
decode   the logits of one more token of each sequence, over a static cache of keys and values
train    the loss (labels are the input's own tokens), its gradients; no optimiser: gradients are
         dropped with `zero_grad(set_to_none=True)`, which is timed too

A sample is many steps by CUDA events on the current stream. The untimed ones before it keep the
GPU busy while the first timed ones are enqueued, so that it holds what a loop of steps takes: the
GPU's time, or Python's where that is longer.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import gc
import importlib.util
import itertools
import math
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch._dynamo.utils import counters

import tritemm

from .. import cli, figures, machine, session, tables
from ..agreement import Agreement, Errors, errors, judge
from ..case import Case
from ..engine import Competitor, Loop, Plan, Repeated, Sample
from ..machine import State
from ..problems import Problem
from ..rows import NULL, REFERENCE, TRITON, Row
from ..select import newest_races
from ..tables import Parts, Table, digits, median, spread
from ..views import Selection, View

#: tritemm's name in rows: `kernel="auto"`, whatever it takes for each product.
OURS = "auto"
PREFILL, DECODE, TRAIN = CASES = ("prefill", "decode", "train")
#: How it is run, and what `torch.compile` is given; None: not compiled.
MODES = {"eager": None, "compiled": {}, "graph": {"mode": "reduce-overhead"}}
#: What nobody runs: each prompt has its own length, and its kernels hide their launches.
LEFT_OUT = {(PREFILL, "graph")}
ROUNDS, QUICK_ROUNDS, QUICK_LAYERS = 9, 3, 2
#: Untimed first steps: they compile, warm up and record a CUDA graph, and replay it.
WARM = 4

EXAMPLES = """
python -m perf model
python -m perf model --models llama --cases train --modes eager,compiled
python -m perf model --quick
python -m perf plot model --out model.png
"""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of transformers by its `name`, in bf16 with random weights and tied embeddings.

    `prompt` is sequences x tokens of prefill and of training. Decode adds one token to each of
    `sequences`, whose static cache has room for `room` and holds `filled`. None is what the model
    doesn't have.
    """

    name: str
    title: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    intermediate: int | None
    kv_heads: int | None
    head_dim: int | None
    prompt: tuple[int, int]
    sequences: int = 16
    room: int = 1024
    filled: int = 512

    def case(self, work: str) -> Case:
        """The product of the head, which stands for the model where rows want one product."""
        rows = self.sequences if work == DECODE else math.prod(self.prompt)
        return Case(rows, self.vocab, self.hidden, "NT", "bf16")

    def says(self, work: str) -> str:
        """The work with its sizes: `decode, 16 sequences, 8 layers`."""
        sequences, tokens = self.prompt
        size = f"{self.sequences} sequences" if work == DECODE else f"{sequences} x {tokens} tokens"
        return f"{work}, {size}, {self.layers} layers"


#: Llama's are the shapes of Llama-3.2-1B, which has 16 layers; GPT-2's vocabulary is not padded.
LLAMA = Model("llama", "Llama", 8, 2048, 32, 128256, 8192, 8, 64, (1, 4096))
GPT2 = Model("gpt2", "GPT-2", 12, 768, 12, 50257, None, None, None, (4, 1024))
MODELS = {model.name: model for model in (LLAMA, GPT2)}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One race: a model, what it does, and how it is run."""

    model: Model
    case: str
    mode: str

    @property
    def problem(self) -> Problem:
        name, title = f"{self.model.name} {self.case} {self.mode}", self.model.title
        return Problem(name, title, self.model.says(self.case), self.model.case(self.case))


def cells(
    models: Collection[str], cases: Collection[str], modes: Collection[str], layers: int | None
) -> Iterator[Cell]:
    """Those that were asked for but for `LEFT_OUT`, a model's and then a case's together.

    `layers`: no more than so many; None: all.
    """
    for name, case, mode in itertools.product(models, cases, modes):
        if (case, mode) not in LEFT_OUT:
            most = MODELS[name].layers
            fewer = dataclasses.replace(MODELS[name], layers=min(layers or most, most))
            yield Cell(fewer, case, mode)


def register(commands) -> None:
    described = (
        "Race Llama and GPT-2, as they are and after tritemm.convert: prefill, decode, training; "
        "eager, compiled, as CUDA graphs."
    )
    command = cli.add_command(commands, "model", run, described, EXAMPLES)
    for option, known in (("--models", MODELS), ("--cases", CASES), ("--modes", MODES)):
        every = ",".join(known)
        cli.add_list(command, option, cli.one_of(*known), f"default: {every}", every)
    count = cli.argument(cli.positive)
    command.add_argument("--layers", type=count, help="no more than so many")
    text = "begin no further race after so many; default: %(default)s"
    command.add_argument("--minutes", type=count, default=5, help=text)
    cli.add_measurement(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := cli.unable("model") or missing():
        return cli.refuse(reason)
    asked = (dict.fromkeys(words) for words in (args.models, args.cases, args.modes))
    layers = args.layers or (QUICK_LAYERS if args.quick else None)
    there = session.Session(args, "model")
    if left := measure(there, list(cells(*asked, layers)), plan(args), args.minutes):
        names = ", ".join(cell.problem.id for cell in left)
        cli.say(f"not begun within {args.minutes} minutes (--minutes): {names}")
    return there.finish(lambda rows: tables.text(parts(rows) if rows else []))


def missing() -> str | None:
    """Why there are no models here."""
    if importlib.util.find_spec("transformers") is None:
        return "python -m perf model needs transformers: pip install '.[model]'"
    return None


def plan(args: argparse.Namespace) -> Plan:
    """A step longer than 2 s is not repeated."""
    if args.quick:
        rounds = min(QUICK_ROUNDS, args.rounds)
        return Plan(rounds=rounds, replay=0.02, lead=0.02, settle=0.2, longest=2.0)
    return Plan(rounds=args.rounds, settle=1.0, longest=2.0)


# The models


def build(model: Model, device: str, seed: int = 0) -> nn.Module:
    """In bf16, as transformers initialises it, with its scaled_dot_product_attention.

    Nothing is dropped out, so that two runs can be compared.
    """
    import transformers

    room = max(model.prompt[1], model.room)
    if model.name == LLAMA.name:
        config = transformers.LlamaConfig(
            hidden_size=model.hidden, intermediate_size=model.intermediate,
            num_hidden_layers=model.layers, num_attention_heads=model.heads,
            num_key_value_heads=model.kv_heads, head_dim=model.head_dim, vocab_size=model.vocab,
            max_position_embeddings=room, tie_word_embeddings=True, pad_token_id=None,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        make = transformers.LlamaForCausalLM
    else:
        config = transformers.GPT2Config(
            n_embd=model.hidden, n_layer=model.layers, n_head=model.heads, vocab_size=model.vocab,
            n_positions=room, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        make = transformers.GPT2LMHeadModel
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    with torch.device(device):
        made = make(config)
    for parameter in made.parameters():  # not the buffers: the rotary frequencies stay in fp32
        parameter.data = parameter.data.bfloat16()
    made.loss_type = "ForCausalLM"  # GPT-2 has none by default: it warns, which breaks the graph
    return made


def twin(module: nn.Module) -> tuple[nn.Module, tritemm.nn.Report]:
    """A second tree of modules over the same parameters and buffers, as `tritemm.convert` has it.

    A tree of its own, not a switch that both read: what torch.compile makes of one says nothing
    of the other. The Parameters are the same objects, so where `convert` gives gate and up one
    storage, both trees read it: torch's still multiplies by each half, which is contiguous.
    Nothing may have captured their addresses before.
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    made = copy.deepcopy(module, shared)
    return made, tritemm.convert(made)


class Pair:
    """A model and its twin, and the results of the case that they are at, in fp32."""

    def __init__(self, model: Model, device: str, seed: int):
        self.seed = seed
        self.torchs = build(model, device, seed)
        self.ours, self.report = twin(self.torchs)
        for line in str(self.report).splitlines():  # what tritemm multiplies in it
            cli.say(f"  {line}")

    def steps(self, model: Model, case: str) -> tuple[Steps, Outputs]:
        """By torch in fp32; in training the exact copy keeps one layer's activations."""
        steps = Steps(self.torchs, model, case, self.seed)
        exact = copy.deepcopy(self.torchs).float()
        exact.gradient_checkpointing_enable()
        return steps, steps.of(exact, "eager").outputs()


# The steps

Outputs = Mapping[str, torch.Tensor]


class Step:
    """One step of a case: `call` does it once, on a cache for decode.

    Before more than `limit` calls in a row, `begin` must be called: the cache has room for no more.
    """

    def __init__(self, module: nn.Module, steps: Steps, mode: str, cache=None):
        self.module, self.case, self.cache, self.graph = module, steps.case, cache, mode == "graph"
        model = steps.model
        self.filled, self.limit = model.filled, model.room - model.filled if cache else 2**20
        self.ids = steps.ids[:, -1:] if cache else steps.ids
        module.train(self.case == TRAIN)
        self.forward = compiled(WORK[self.case], mode)

    def begin(self) -> None:
        """Let the next token be the one after `filled`."""
        for layer in self.cache.layers if self.cache else ():
            layer.cumulative_length.fill_(self.filled)

    def _step(self) -> torch.Tensor:
        if self.graph:  # what the last step returned may be overwritten from here on
            torch.compiler.cudagraph_mark_step_begin()
        with contextlib.nullcontext() if self.case == TRAIN else torch.no_grad():
            found = self.forward(self.module, self.ids, self.cache)
        if self.case == TRAIN:
            found.backward()
        return found

    def call(self) -> None:
        self._step()
        self.drop()

    def outputs(self) -> Outputs:
        """One step's results by name, valid until the next step; call `drop` after use."""
        self.begin()
        found = self._step().detach()
        if self.case != TRAIN:
            return {"logits": found}
        own = {f"gradient of {name}": p.grad for name, p in self.module.named_parameters()}
        return {"loss": found} | {name: t for name, t in own.items() if t is not None}

    def drop(self) -> None:
        """Let go of the gradients."""
        if self.case == TRAIN:
            self.module.zero_grad(set_to_none=True)


#: What is compiled, by the case.
WORK = {
    PREFILL: lambda module, ids, cache: module(input_ids=ids, use_cache=False).logits,
    DECODE: lambda module, ids, cache: (
        module(input_ids=ids, past_key_values=cache, use_cache=True).logits
    ),
    TRAIN: lambda module, ids, cache: module(input_ids=ids, labels=ids, use_cache=False).loss,
}


def compiled(function: Callable, mode: str) -> Callable:
    """As the mode says."""
    return function if MODES[mode] is None else compiled_apart(function, **MODES[mode])


def compiled_apart(function: Callable, **options) -> Callable:
    """By torch.compile, for the sizes that it is called with. Its code is its own: torch.compile
    looks what it made up by code object, and torch's variant must not wait for the guards of
    tritemm's."""
    code, closure = function.__code__.replace(), function.__closure__
    own = types.FunctionType(code, function.__globals__, function.__name__, closure=closure)
    return torch.compile(own, fullgraph=True, dynamic=False, **options)


class Steps:
    """Makes the steps of one model's case: all start from the same tokens and the same cache."""

    def __init__(self, module: nn.Module, model: Model, case: str, seed: int = 0):
        self.model, self.case = model, case
        device = next(module.parameters()).device
        random = torch.Generator(device).manual_seed(seed)
        shape = (model.sequences, model.filled + 1) if case == DECODE else model.prompt
        self.ids = torch.randint(model.vocab, shape, device=device, generator=random)
        self.filled = self._fill(module) if case == DECODE else None

    def of(self, module: nn.Module, mode: str) -> Step:
        """By `module`: the model, its twin, or its exact copy."""
        if self.case != DECODE:
            return Step(module, self, mode)
        cache = self._fill(module)
        for own, given in zip(cache.layers, self.filled.layers, strict=True):
            own.keys.copy_(given.keys)
            own.values.copy_(given.values)
        return Step(module, self, mode, cache)

    @torch.no_grad()
    def _fill(self, module: nn.Module):
        """A static cache that has seen all tokens but the last of each sequence."""
        from transformers import StaticCache

        module.eval()
        cache = StaticCache(config=module.config, max_cache_len=self.model.room)
        module(self.ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache


# The bench and the races


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected inside the block."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def by_events(work: Callable[[], object], probe: Callable[[], State]) -> Sample:
    """On the current stream, from here until `work` is done; probed once all is enqueued."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    state = probe()
    end.synchronize()
    return Sample(start.elapsed_time(end) / 1e3, state)


class ModelBench:
    """An `engine.Bench` of one cell: compiled, compared with fp32, then timed in a row.

    `make[variant]` makes its step: `REFERENCE` is torch's, and what `NULL` repeats. `exact`: the
    results in fp32.
    """

    timed, synchronise = staticmethod(by_events), staticmethod(torch.cuda.synchronize)

    def __init__(
        self, cell: Cell, make: Mapping[str, Callable[[], Step]], exact: Outputs, plan: Plan
    ):
        self.cell, self.make, self.exact, self.plan = cell, make, exact, plan
        self.probe = machine.probe()
        self.steps: dict[str, Step] = {}
        self.compiling: dict[str, float] = {}
        self.skipped: dict[str, int] = {}
        self.agreements: dict[str, Agreement] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.torchs: Errors | None = None

    def step(self, name: str) -> Step:
        """Torch's is one, under both names. Raises what compiling it raises."""
        name = REFERENCE if name == NULL else name
        if name not in self.steps:
            begin, skips = time.monotonic(), counters["inductor"]["cudagraph_skips"]
            made = self.make[name]()
            made.begin()
            for _ in range(WARM):
                made.call()
            self.synchronise()
            self.compiling[name] = time.monotonic() - begin
            self.skipped[name] = counters["inductor"]["cudagraph_skips"] - skips
            self.steps[name] = made
        return self.steps[name]

    def estimate(self, competitor: Competitor) -> float:
        """Seconds of a step, from three; the state of the cache is that of a first one."""
        step = self.step(competitor.name)
        step.begin()
        return self.timed(lambda: _repeat(step, 3), State).seconds / 3

    def loop(self, competitor: Competitor) -> Repeated:
        step, seconds = self.step(competitor.name), self.estimate(competitor)
        most = step.limit // 2
        count, lead = (
            max(1, min(most, math.ceil(wanted / seconds)))
            for wanted in (self.plan.replay, self.plan.lead)
        )

        def sample() -> Sample:
            step.begin()
            with uncollected():
                _repeat(step, lead)
                spent = self.timed(lambda: _repeat(step, count), self.probe)
            return Sample(spent.seconds / count, spent.state)

        return Repeated(count, seconds, lambda: _repeat(step, 1), sample, name=competitor.name)

    def recover(self) -> None:
        self.synchronise()

    def verify(self, loop: Repeated, accumulate: str | None = None) -> Agreement:
        """What the step computes against fp32, and against torch, which must come first."""
        step, between = self.step(loop.name), None
        found = step.outputs()
        own = errors(found, self.exact)
        if self.torchs is None:
            self.torchs = own
            self.kept = {name: t.detach().clone() for name, t in found.items()}
        elif loop.name not in (REFERENCE, NULL):
            between = errors(found, {name: t.float() for name, t in self.kept.items()})
        del found
        step.drop()
        self.agreements[loop.name] = judge(own, self.torchs, between)
        return self.agreements[loop.name]

    def settle(self, loops: Sequence[Loop]) -> State:
        """Run them, mixed, for `plan.settle` seconds, once at least."""
        self.kept = {}  # the memory of a model's gradients
        gc.collect()
        begin = time.monotonic()
        while True:
            last = [loop.time().state for loop in loops]
            if time.monotonic() - begin >= self.plan.settle:
                return last[-1]

    def of_a_model(self, row: Row) -> Row:
        """With the agreement, and what torch.compile left out."""
        agreement, skips = self.agreements.get(row.competitor), self.skipped.get(row.competitor)
        numbers = agreement and {
            name: value if math.isfinite(value) else None
            for name, value in agreement.numbers.items()
        }
        graphs = f"torch.compile left out {skips} CUDA graphs" if skips and row.us else None
        reason = "; ".join(filter(None, (row.reason, graphs))) or None
        return dataclasses.replace(row, agreement=numbers, reason=reason)


def _repeat(step: Step, count: int) -> None:
    for _ in range(count):
        step.call()


def field() -> list[Competitor]:
    """Torch comes first: what it loses to rounding is what tritemm is judged by.

    A model's steps have no operands; `ModelBench` knows them by name.
    """
    torchs = [Competitor(name, None) for name in (REFERENCE, NULL)]
    return [*torchs, Competitor(OURS, None, ladder=TRITON, rung=OURS)]


def measure(
    there: session.Session, cells: Sequence[Cell], plan: Plan, minutes: float, device: str = "cuda"
) -> list[Cell]:
    """Race the cells and record them; those that could not begin within `minutes` are returned.

    A model is built once for its cells, and computed in fp32 once for those of a case. Ctrl-C keeps
    what was measured.
    """
    pairs = functools.lru_cache(1)(lambda model: Pair(model, device, there.args.seed))
    cases = functools.lru_cache(1)(lambda model, case: pairs(model).steps(model, case))
    try:
        for index, cell in enumerate(cells):
            if time.monotonic() - there.began > 60 * minutes:
                return list(cells[index:])
            cli.say(f"[{index + 1}/{len(cells)}] {cell.problem.id}: {cell.model.says(cell.case)}")
            _race(there, cell, pairs, cases, session.settled(plan, index))
            # What torch.compile has made, and its graphs' memory.
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()
            if there.interrupted:
                break
    except KeyboardInterrupt:
        there.interrupted = True
    return []


def _race(there: session.Session, cell: Cell, pairs, cases, plan: Plan) -> None:
    benches: list[ModelBench] = []

    def make(plan: Plan) -> tuple[ModelBench, list[Competitor]]:
        pair, (steps, exact) = pairs(cell.model), cases(cell.model, cell.case)
        variants = {
            name: functools.partial(steps.of, module, cell.mode)
            for name, module in ((REFERENCE, pair.torchs), (OURS, pair.ours))
        }
        benches.append(ModelBench(cell, variants, exact, plan))
        return benches[0], field()

    problem, mode = cell.problem, f"model {cell.mode}"
    heading = there.heading(problem.case, problem.to_json(), mode=mode, roof=None)
    there.race(heading, make, plan, lambda rows: [benches[0].of_a_model(row) for row in rows])
    for bench in benches:
        spent = ", ".join(f"{name} {s:.0f} s" for name, s in bench.compiling.items())
        cli.say(f"  until the first timed step: {spent}")


# The table and the picture

HEAD = ("", "torch ms", "tritemm ms", "x torch (p20-p80)", "torch again", "off fp32: torch", "ours")
_TITLES = {REFERENCE: "torch", NULL: "torch again", OURS: "tritemm"}


def parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per model, work and mode; tritemm's time beside torch's."""
    works = dict.fromkeys(f"{row.problem['class']} {row.problem['name']}" for row in rows)
    method = (
        f"{'; '.join(works)}. bf16, random weights; the median of {tables.most_rounds(rows)} "
        "rounds, in which each runs once, for 0.1 s, in random order. x torch: torch's time over "
        "tritemm's in the same round. Off fp32: the norm of what logits (in training, gradients) "
        "differ by from the same model in fp32, over their own. "
        f"{tables.origin(rows)}."
    )
    body = [_line(race) for race in tables.raced(rows).values()]
    reasons = tables.reasons(rows, lambda row: f"{title(row)}, {_TITLES[row.competitor]}")
    return [Table(HEAD, body), *reasons, method]


def title(row: Row) -> str:
    """`Llama train, compiled`."""
    _, case, mode = row.id.split()
    return f"{row.problem['class']} {case}, {mode}"


def _line(race: dict[str, Row]) -> tuple[str, ...]:
    torchs, again, ours = (race.get(name) for name in (REFERENCE, NULL, OURS))
    ratio = spread(ours.ratio, ours.tie) if ours and ours.us else ""
    first = (title(next(iter(race.values()))), _ms(torchs), _ms(ours), ratio)
    return (*first, median(again and again.ratio), _off(torchs), _off(ours))


def _ms(row: Row | None) -> str:
    if row is None:
        return ""
    return digits(row.us.p50 / 1e3) if row.us else row.outcome


def _off(row: Row | None) -> str:
    """The error's norm over the values', of the logits or of all gradients together."""
    found = (row and row.agreement) or {}
    value = found.get("logits", found.get("gradients"))
    return "" if value is None else f"{value:.2g}"


def plot_model(rows: list[Row], selection: Selection):
    """tritemm's speed over torch's as bars, by model, work and mode; torch is at 1."""
    found = list(tables.raced(rows).values())
    own = [race.get(OURS) or race[REFERENCE] for race in found]
    timed = [row.ratio for row in own if row.competitor == OURS and row.ratio]
    if not timed:
        raise figures.NothingMeasured
    figure, axes = figures.blank(1.3 + 0.27 * len(own))
    ends = [v for ratio in timed for v in (ratio.p20, ratio.p80)]
    axes.set_xlim(min(0.9, *ends) / 1.06, max(1.1, *ends) * 1.06)
    axes.axvline(1, color=figures.GREY, linewidth=1.4, zorder=1)
    works = [row.id.rpartition(" ")[0] for row in own]
    air = [0.5 * (before != work) for before, work in itertools.pairwise([works[0], *works])]
    places = [place + gap for place, gap in enumerate(itertools.accumulate(air))]
    for place, row, race in zip(places, own, found, strict=True):
        _bar(axes, place, row, race.get(REFERENCE))
    axes.set_yticks(places, [title(row) for row in own])
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("times torch's speed in the same rounds (line: p20-p80)", fontsize=10)
    axes.spines["left"].set_visible(False)
    words = "transformers' models by tritemm, by torch (grey) at 1; ms per step at the right"
    figures.title(figure, words)
    figures.caption(figure, rows)
    return figure


def _bar(axes, place: float, row: Row, torchs: Row | None) -> None:
    """Right of the axes `1.034   3.75 -> 2.02`: the ratio, and both times in milliseconds."""
    if row.competitor != OURS or not row.ratio:
        text = f"{row.outcome}: {row.reason or ''}"[:60] if row.competitor == OURS else "not raced"
        small = {"fontsize": 8, "va": "center", "style": "italic", "color": figures.GREY}
        axes.text(axes.get_xlim()[0], place, f" {text}", **small)
        return
    ratio = row.ratio
    color = "#9db8c8" if row.tie else figures.RUNG if ratio.p50 > 1 else figures.CUDA_RUNG
    axes.barh(place, ratio.p50 - 1, left=1, height=0.66, color=color, zorder=2)
    axes.plot([ratio.p20, ratio.p80], [place, place], color="black", linewidth=1, zorder=3)
    words = f"{median(ratio)}   {_ms(torchs)} → {_ms(row)}"
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(words, (1, place), xytext=(6, 0), fontsize=8.5, va="center", **where)


def newest(rows: Sequence[Row], s: Selection) -> list[Row]:
    """The newest race of each model, work and mode: a command may have raced only some.

    A race with other numbers of layers is of another problem, and the newest counts.
    """
    order = [f"{m} {c} {mode}" for m in MODELS for c in CASES for mode in MODES]
    return newest_races(rows, "model", order, s.gpu)


VIEWS = {"model": View(newest, parts, plot_model, "model 3")}
