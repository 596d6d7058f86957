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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch._dynamo.utils import counters

import tritemm

from .. import bars, calls, cli, figures, session, tables
from ..calls import MODES, OURS, CallBench, compiled
from ..case import Case
from ..engine import Loop, Plan
from ..machine import State
from ..problems import Problem
from ..rows import NULL, REFERENCE, Row
from ..select import newest_races
from ..tables import Parts, Table, digits, median, spread
from ..views import Selection, View

PREFILL, DECODE, TRAIN = CASES = ("prefill", "decode", "train")
#: What is never run: each prompt has its own length, and its kernels hide their launches.
LEFT_OUT = {(PREFILL, "graph")}
ROUNDS, QUICK_LAYERS = 9, 2
#: A step longer than 2 s is not repeated.
PLAN = Plan(settle=1.0, longest=2.0)
#: Untimed first steps: they compile, warm up and record a CUDA graph, and replay it.
WARM = 4
#: By `Model.dtype`: how many times as much as torch's bf16 loses a model may lose. e4m3 rounds 16
#: times as coarsely as bf16; gradients of layers have been 4 to 13 times as far off.
COARSER = {None: 1, "fp8": 8}

EXAMPLES = """
python -m perf model
python -m perf model --models llama --cases train --modes eager,compiled
python -m perf model --quick
python -m perf plot model --out model.png
"""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of transformers, with random weights in bf16 and tied embeddings.

    `name`: transformers' type of model, then a hyphen and a word of ours, if any; `dtype`: what
    `convert` is given.
    `prompt` is sequences x tokens of prefill and of training. Decode adds one token to each of
    `sequences`, whose static cache has room for `room` and holds `filled`. `more` are pairs of a
    field of its config and the value.
    """

    name: str
    title: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    prompt: tuple[int, int]
    more: tuple[tuple[str, float], ...]
    sequences: int = 16
    room: int = 1024
    filled: int = 512
    dtype: str | None = None

    def case(self, work: str) -> Case:
        """The product of the head, which represents the model in rows, which have one product."""
        rows = self.sequences if work == DECODE else math.prod(self.prompt)
        return Case(rows, self.vocab, self.hidden, "NT", "bf16")

    def says(self, work: str) -> str:
        """The work with its sizes: `decode, 16 sequences, 8 layers`."""
        sequences, tokens = self.prompt
        size = f"{self.sequences} sequences" if work == DECODE else f"{sequences} x {tokens} tokens"
        return f"{work}, {size}, {self.layers} layers"


#: Llama's are the shapes of Llama-3.2-1B, which has 16 layers; GPT-2's vocabulary is not padded.
_LLAMA = (("intermediate_size", 8192), ("num_key_value_heads", 8), ("head_dim", 64))
#: Nothing is dropped out, so that two runs can be compared.
_GPT2 = (("resid_pdrop", 0.0), ("embd_pdrop", 0.0), ("attn_pdrop", 0.0))
LLAMA = Model("llama", "Llama", 8, 2048, 32, 128256, (1, 4096), _LLAMA)
GPT2 = Model("gpt2", "GPT-2", 12, 768, 12, 50257, (4, 1024), _GPT2)
#: The layers of Llama-3-8B, with next to no head.
_LLAMA_8B = (("intermediate_size", 14336), ("num_key_value_heads", 8))
LLAMA_FP8 = Model(
    "llama-fp8", "Llama-3-8B in fp8", 2, 4096, 32, 1024, (2, 4096), _LLAMA_8B, dtype="fp8"
)
MODELS = {model.name: model for model in (LLAMA, GPT2, LLAMA_FP8)}


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
    """The selected ones except `LEFT_OUT`, a model's and then a case's together.

    `layers`: the most layers; None: all.
    """
    for name, case, mode in itertools.product(models, cases, modes):
        if (case, mode) not in LEFT_OUT:
            most = MODELS[name].layers
            fewer = dataclasses.replace(MODELS[name], layers=min(layers or most, most))
            yield Cell(fewer, case, mode)


def register(commands) -> None:
    described = (
        "Race Llama and GPT-2 in bf16, and Llama in fp8 too, as they are and after "
        "tritemm.convert: prefill, decode, training; "
        "eager, compiled, as CUDA graphs."
    )
    command = cli.add_command(commands, "model", run, described, EXAMPLES)
    for option, known in (("--models", MODELS), ("--cases", CASES), ("--modes", MODES)):
        cli.add_choices(command, option, known)
    count = cli.argument(cli.positive)
    command.add_argument(
        "--layers", type=count, help="most layers of a model; default: its own number"
    )
    text = "time limit; default: %(default)s"
    command.add_argument("--minutes", type=count, default=5, help=text)
    cli.add_measurement(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    """The status is that of `session.run`."""
    if reason := missing():
        return cli.refuse(cli.unable("model") or reason)
    asked = (dict.fromkeys(words) for words in (args.models, args.cases, args.modes))
    every = list(cells(*asked, args.layers or (QUICK_LAYERS if args.quick else None)))

    def measure(there: session.Session) -> None:
        there.measure(tasks(every, args.seed), session.planned(args, PLAN), args.minutes)

    return session.run(args, "model", measure, text)


def missing() -> str | None:
    """Why there are no models here."""
    if importlib.util.find_spec("transformers") is None:
        return "python -m perf model needs transformers: pip install '.[model]'"
    return None


# The models


def build(model: Model, device: str, seed: int = 0) -> nn.Module:
    """The module in bf16, as transformers initialises it, with its scaled_dot_product_attention."""
    import transformers

    config = transformers.AutoConfig.for_model(
        model.name.partition("-")[0], hidden_size=model.hidden, num_hidden_layers=model.layers,
        num_attention_heads=model.heads, vocab_size=model.vocab,
        max_position_embeddings=max(model.prompt[1], model.room), tie_word_embeddings=True,
        pad_token_id=None, bos_token_id=0, eos_token_id=0, **dict(model.more),
    )  # fmt: skip
    torch.manual_seed(seed)
    with torch.device(device):
        make = transformers.AutoModelForCausalLM.from_config
        made = make(config, attn_implementation="sdpa")
    for parameter in made.parameters():  # not the buffers: the rotary frequencies stay in fp32
        parameter.data = parameter.data.bfloat16()
    made.loss_type = "ForCausalLM"  # GPT-2 has none by default: it warns, which breaks the graph
    return made


def twin(module: nn.Module, dtype: str | None = None) -> tuple[nn.Module, tritemm.nn.Report]:
    """A second tree of modules over the same parameters and buffers, as `tritemm.convert` has it.

    A tree of its own, not a switch that both read: what torch.compile makes of one says nothing
    of the other. The Parameters are the same objects, so where `convert` gives gate and up one
    storage, both trees read it: torch's still multiplies by each half, which is contiguous.
    Nothing may have captured their addresses before.
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    made = copy.deepcopy(module, shared)
    return made, tritemm.convert(made, dtype=dtype)


class Pair:
    """A model and its twin, and the results of the case that they are at, in fp32."""

    def __init__(self, model: Model, device: str, seed: int):
        self.seed = seed
        self.torchs = build(model, device, seed)
        self.ours, self.report = twin(self.torchs, model.dtype)
        for line in str(self.report).splitlines():  # what tritemm multiplies in it
            cli.say(f"  {line}")

    def steps(self, model: Model, case: str) -> tuple[Steps, calls.Results]:
        """The steps, and torch's results in fp32, whose copy keeps one layer's activations."""
        steps = Steps(self.torchs, model, case, self.seed)
        exact = copy.deepcopy(self.torchs).float()
        exact.gradient_checkpointing_enable()
        return steps, steps.of(exact, "eager").outputs()


# The steps


class Step:
    """One step of a case: a call does it once, on a cache for decode.

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

    def __call__(self) -> None:
        self._step()
        self.drop()

    def outputs(self) -> calls.Results:
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
        """A step by `module`: the model, its twin, or its exact copy."""
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


class ModelBench(CallBench):
    """One cell: compiled, compared with fp32, then timed in a row.

    `steps[variant]` makes its step: `REFERENCE` is torch's, and what `NULL` repeats. `exact`: the
    results in fp32.
    """

    timer = staticmethod(calls.by_events)

    def __init__(
        self,
        cell: Cell,
        steps: Mapping[str, Callable[[], Step]],
        exact: calls.Results,
        plan: Plan,
    ):
        super().__init__(exact, plan, COARSER[cell.model.dtype])
        self.cell, self.steps = cell, steps
        self.mode, self.skipped = f"model {cell.mode}", {}

    def make(self, name: str) -> Step:
        """Compiled and warm. Raises what compiling it raises."""
        begin, skips = time.monotonic(), counters["inductor"]["cudagraph_skips"]
        made = self.steps[name]()
        made.begin()
        for _ in range(WARM):
            made()
        self.recover()
        cli.say(f"  until the first timed step of {name}: {time.monotonic() - begin:.0f} s")
        self.skipped[name] = counters["inductor"]["cudagraph_skips"] - skips
        return made

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """The state of the cache is that of a first step."""
        self.call(name).begin()
        yield

    def batch(self, seconds: float) -> tuple[int, int]:
        """Steps for the plan's seconds, but no more than there is room for."""
        most, wanted = self.call(REFERENCE).limit // 2, (self.plan.lead, self.plan.replay)
        lead, count = (max(1, min(most, math.ceil(each / seconds))) for each in wanted)
        return lead, count

    def results(self, name: str) -> calls.Results:
        return self.call(name).outputs()

    def verify(self, loop: Loop, accumulate: str | None = None):
        verdict = super().verify(loop)
        self.call(loop.name).drop()
        return verdict

    def settle(self, loops: Sequence[Loop]) -> State:
        gc.collect()
        return super().settle(loops)


def amended(there: ModelBench, rows: Sequence[Row]) -> list[Row]:
    """The rows with the agreement, and with what torch.compile left out."""
    found = []
    for row in rows:
        agreement, skips = there.agreements.get(row.competitor), there.skipped.get(row.competitor)
        numbers = agreement and {
            name: value if math.isfinite(value) else None
            for name, value in agreement.numbers.items()
        }
        graphs = f"torch.compile left out {skips} CUDA graphs" if skips and row.us else None
        reason = "; ".join(filter(None, (row.reason, graphs))) or None
        found.append(dataclasses.replace(row, agreement=numbers, reason=reason))
    return found


def tasks(cells: Sequence[Cell], seed: int, device: str = "cuda") -> list[session.Task]:
    """A race of each. A model is built once for its cells, and computed in fp32 once for those of a
    case."""
    pairs = functools.lru_cache(1)(lambda model: Pair(model, device, seed))
    cases = functools.lru_cache(1)(lambda model, case: pairs(model).steps(model, case))

    def bench(cell: Cell, plan: Plan) -> ModelBench:
        # What torch.compile has made for the last cell, and its graphs' memory.
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        pair, (steps, exact) = pairs(cell.model), cases(cell.model, cell.case)
        variants = {
            name: functools.partial(steps.of, module, cell.mode)
            for name, module in ((REFERENCE, pair.torchs), (OURS, pair.ours))
        }
        return ModelBench(cell, variants, exact, plan)

    return [
        session.Task(
            cell.problem.case,
            lambda there: calls.field(OURS),
            cell.problem,
            functools.partial(bench, cell),
            amend=amended,
            fields={"mode": f"model {cell.mode}", "roof": None},
        )
        for cell in cells
    ]


# The table and the picture

HEAD = ("", "torch ms", "tritemm ms", "x torch (p20-p80)", "torch again", "off fp32: torch", "ours")
_TITLES = {REFERENCE: "torch", NULL: "torch again", OURS: "tritemm"}


def text(rows: list[Row]) -> str:
    return tables.text(parts(rows) if rows else [])


def parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per model, work and mode; tritemm's time beside torch's."""
    works = dict.fromkeys(f"{row.problem['class']} {row.problem['name']}" for row in rows)
    method = (
        f"{'; '.join(works)}. Random weights, in bf16 unless fp8 is named. Medians of "
        f"{tables.rounds(rows)} rounds; in each, all run once, for 0.1 s, in random order. "
        "x torch: torch's time over tritemm's in the same round. Off fp32: the norm of the logits' "
        "difference (in training, of the gradients') from the same model in fp32, over their norm. "
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
    """tritemm's speed over torch's, by model, work and mode; torch's and its milliseconds."""
    found = tables.raced(rows)
    own = [tables.Result(race.get(OURS) or race[REFERENCE], {}) for race in found.values()]
    if not any(result.ratio and result.ours.competitor == OURS for result in own):
        raise figures.NothingMeasured

    def named(row: Row) -> str:
        _, work, mode = row.id.split()
        torchs = found[row.id].get(REFERENCE)
        return f"{work}, {mode}   {_ms(torchs)} → {_ms(row)} ms"

    words = "transformers' models by tritemm over torch"
    return bars.plot(own, words, named, "torch")


def newest(rows: Sequence[Row], s: Selection) -> list[Row]:
    """The newest race of each model, work and mode: a command may have raced only some.

    A race with other numbers of layers is of another problem, and the newest counts.
    """
    order = [f"{m} {c} {mode}" for m in MODELS for c in CASES for mode in MODES]
    return newest_races(rows, "model", order, s.gpu)


VIEWS = {"model": View(newest, parts, plot_model, "model 5")}
