"""The table of `python -m perf model`: which models, doing what, run in which ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

from .case import Case

#: The command's name, in rows.
EXPERIMENT = "model"
#: tritemm's name in them: `kernel="auto"`, whatever it takes for each product.
OURS = "auto"
#: What a model does; `perf.model_steps` says exactly what.
PREFILL, DECODE, TRAIN = "prefill", "decode", "train"
CASES = (PREFILL, DECODE, TRAIN)
#: How it is run, and what `torch.compile` is given; None: not compiled.
MODES = {"eager": None, "compiled": {}, "graph": {"mode": "reduce-overhead"}}
#: What nobody runs: each prompt has its own length, and its kernels hide their launches.
LEFT_OUT = {(PREFILL, "graph")}


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
        sequences, tokens = self.prompt
        rows = self.sequences if work == DECODE else sequences * tokens
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
    def id(self) -> str:
        return f"{self.model.name} {self.case} {self.mode}"

    @property
    def problem(self) -> dict[str, str]:
        """What a row says of it."""
        return {"id": self.id, "class": self.model.title, "name": self.model.says(self.case)}


def cells(
    models: Collection[str], cases: Collection[str], modes: Collection[str], layers: int | None
) -> Iterator[Cell]:
    """Those that were asked for but for `LEFT_OUT`, a model's and then a case's together.

    `layers`: no more than so many; None: all.
    """
    for name in models:
        model = MODELS[name]
        if layers:
            model = dataclasses.replace(model, layers=min(layers, model.layers))
        for case in cases:
            for mode in modes:
                if (case, mode) not in LEFT_OUT:
                    yield Cell(model, case, mode)
