"""What is worked out once for all products of a kind, and one product of it.

A kind is everything about a call but the data: sizes, strides, types, alignment, options, device.
Its plan is the problem, the kernel and config that were chosen, and the launches that this takes:
copies of operands that the kernel can't read, then the kernel. Nothing here holds a tensor or
depends on an address.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import dispatch
from .dispatch.request import for_gradients
from .dtypes import REAL, resolve
from .kernels.pack import copied_bytes, pack
from .problem import GATED, INTERPRETER, Problem, factors
from .problem.config import Config
from .runtime import fast_path
from .runtime.binding import Call
from .runtime.bounded import Bounded
from .runtime.launches import Launches
from .runtime.torch_private import current_device, untraced
from .spec import Kernel

#: Kinds of gradients that a plan remembers.
GRADIENTS = 16


class Plan:
    """One kind of product. Made of tensors of that kind; multiplies any others of it.

    `options`: kernel, precision, accumulator and result type, as the operators take them.
    """

    def __init__(self, a, b, c, options: tuple, ending: Ending | None = None):
        word, *self._types, _ = self.options = options
        tensors = (a, b, c, *(ending.tensors if ending else ()))
        self.problem, *views = matrices(a, b, c, *self._types, ending)
        choose = dispatch.choose_gated if self.problem.epilogue.gated else dispatch.choose
        choice = choose(self.problem, word)
        #: Whether no kernel does it all: the product is a kind of its own, and torch ends it.
        self.apart = choice is None
        self.kernel, self.config = (None, None) if self.apart else (choice.kernel, choice.config)
        #: Seconds that the interpreter takes, as far as is known; 0 where kernels are compiled.
        self._interpreted = 0.0
        if not self.apart and self.problem.device == INTERPRETER:
            self._interpreted = dispatch.predict(self.kernel, self.problem, self.config)
        self.launches: Launches | None = None
        self.size, self.stride, self.dtype = tuple(c.shape), c.stride(), c.dtype
        self.spans = span(a), span(b), span(c)
        #: Shape, strides and type of both operands, as they were given.
        self.operands = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (a, b))
        #: The first three options of the products that make up the gradients.
        self.for_gradients = (for_gradients(word), *self._types)
        #: What makes the gradients of both operands, of the addresses of a, b and what comes in;
        #: and which of them it doesn't make, if any.
        self.gradients: dict[tuple, tuple[list[fast_path.Step | None], list | None]]
        self.gradients = Bounded(GRADIENTS)
        #: Shape and strides of a, b, c as the kernel takes them; None if it takes copies.
        self._views = None
        if all(v.data_ptr() == t.data_ptr() for v, t in zip(views, tensors, strict=True)):
            self._views = tuple((v.shape, v.stride()) for v in views)

    def __call__(self, a, b, c, ending: Ending | None = None) -> None:
        """Write a @ b, with its `ending`, into `c`, on its device; all are of this kind."""
        if self.apart:
            argument = product(a, b, None, self.options, ending.before())
            after(argument, ending.activation, ending.residual, ending.beta, c)
            return
        if self._views is None:
            _, x, y, z, *more = matrices(a, b, c, *self._types, ending)
        else:
            tensors = (a, b, c, *(ending.tensors if ending else ()))
            x, y, z, *more = (t.as_strided(*v) for t, v in zip(tensors, self._views, strict=True))
        if self._interpreted:
            _slow.count(self.problem, self._interpreted)
        given = factors(ending) if ending else {}
        calls = run(self.kernel, self.problem.with_factors(**given), self.config, x, y, z, *more)
        if self._views is None:
            if z.data_ptr() != c.data_ptr():  # batch strides that no kernel takes
                c.copy_(z.view(c.shape))
        elif None not in calls:
            self.launches = self._prepared(c.get_device(), calls, len(more) + len(given))

    def dropped(self, size: tuple[int, ...], stride: tuple[int, ...]) -> Plan:
        """The same with a result of fewer dimensions."""
        other = copy.copy(self)
        other.size, other.stride = size, stride
        return other

    def _prepared(self, device: int, calls: Sequence[Call], more: int) -> Launches:
        """`calls` are what `run` returned: what copies if anything, and the kernel's own.

        So many tensors and factors of the epilogue come after a, b and c.
        """
        names = self.config.PACK
        copies = {name: 3 + more + i for i, name in enumerate(names)}
        operands = [copies.get("a", 0), copies.get("b", 1)]
        work = 3 + more + len(names)
        *packing, call = calls
        packing = [one.placed((0, operands[0], 1, operands[1])) for one in packing]
        if self.config.SWAP:
            operands.reverse()
        call = call.placed((*operands, *range(2, 3 + more), work, work + 1))
        view = self.config.view(self.problem)
        room = self.kernel.workspace and self.kernel.workspace(view, self.config)
        return Launches(device, [*packing, call], copied_bytes(self.problem, names), room)


class _Slow:
    """Warns, once in a process, that the interpreter takes its time."""

    #: Seconds of all products so far, before a warning says so.
    LONG = 5.0

    def __init__(self):
        self.seconds, self.told = 0.0, False

    def count(self, problem: Problem, seconds: float) -> None:
        """A product begins that takes so long."""
        self.seconds += seconds
        if self.told or self.seconds < self.LONG:
            return
        self.told = True
        before = self.seconds - seconds
        more = f", after {before:.0f} s for those before it" if before >= 1 else ""
        warnings.warn(
            f"tritemm runs its kernels in Triton's interpreter, on the CPU: {problem} takes about "
            f"{seconds:.2g} s{more}. The interpreter shows that kernels are right, on small "
            "problems; torch's own products take milliseconds (without tritemm.enable, where calls "
            "are routed), and compiled kernels need an NVIDIA GPU. This is said once",
            stacklevel=2,
        )


_slow = _Slow()


class Ending(NamedTuple):
    """What follows a product: activation(alpha * a @ b + bias) + beta * residual.

    `bias` is contiguous and 16-byte aligned, [N]; `residual` has the result's shape, any strides.
    With a gated activation the result has half of the product's columns.
    """

    bias: torch.Tensor | None
    residual: torch.Tensor | None
    activation: str
    alpha: float
    beta: float

    @staticmethod
    def made(a, b, bias, residual, activation="", alpha=1.0, beta=1.0) -> Ending | None:
        """What follows a @ b; None if nothing does. `bias` is [N], `residual` broadcastable."""
        if beta == 0:  # its values, NaN among them, are not read
            residual = None
        if residual is not None:
            residual = residual.expand(result_shape(a, b, activation))
        if bias is not None:
            bias = bias.contiguous()
            if bias.data_ptr() % 16:  # kernels are compiled for one that begins on such a boundary
                bias = bias.clone()
        if bias is residual is None and not activation and alpha == 1:
            return None
        beta = 1.0 if residual is None else float(beta)
        return Ending(bias, residual, activation, float(alpha), beta)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Those that are there."""
        bias, residual, *_ = self
        if bias is None:
            return () if residual is None else (residual,)
        return (bias,) if residual is None else (bias, residual)

    @property
    def gated(self) -> bool:
        """Whether pairs of columns make one."""
        return self.activation in GATED

    @property
    def fields(self) -> dict:
        """Those of a `problem.Epilogue`, but the residual, by name."""
        fields = {"activation": self.activation, "alpha": self.alpha, "beta": self.beta}
        return fields if self.bias is None else fields | {"bias": self.bias.dtype}

    def key(self) -> tuple:
        """All that decides what runs; of the factors, whether they are 1, and alpha 0."""
        bias, residual, activation, alpha, beta = self
        values = [activation, alpha if alpha in (0, 1) else None, beta == 1]
        if bias is not None:
            values += [bias.dtype, bias.shape, bias.get_device()]
        if residual is not None:
            address = residual.data_ptr() & 15
            lies = residual.shape, residual.stride(), address, residual.get_device()
            values += [residual.dtype, *lies]
        return tuple(values)

    def read(self) -> tuple[float, ...]:
        """What a launch is given of it: the addresses of the tensors, and the factors."""
        addresses = [t.data_ptr() for t in self.tensors]
        if self.alpha == 1 == self.beta:
            return tuple(addresses)
        return *addresses, *factors(self).values()

    def met_by(self, out: torch.Tensor) -> bool:
        """Whether writing `out` changes what is still to be read.

        A residual that is `out` is not: each of its elements is read by who then writes it.
        """
        address, size = out.data_ptr(), span(out)
        for t in self.tensors:
            begin = t.data_ptr()
            same = t is self.residual and begin == address and t.stride() == out.stride()
            same = same and t.dtype == out.dtype
            if not same and address < begin + span(t) and begin < address + size:
                return True
        return False

    def before(self) -> Ending | None:
        """What comes before the activation."""
        if self.bias is None and self.alpha == 1:
            return None
        return Ending(self.bias, None, "", self.alpha, 1.0)

    def of(self, sums: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The result in `dtype`, of a product in the accumulator's type, by torch."""
        alpha, beta = self.alpha, self.beta
        if not sums.is_floating_point():  # else torch would multiply in fp32
            alpha, beta = int(alpha), int(beta)
        if alpha != 1:
            sums = sums * alpha
        if self.bias is not None:
            sums = sums + self.bias
        sums = activated(sums, self.activation)
        if self.residual is not None:
            # One of torch's own sums rounds to the result's type alone.
            residual = self.residual.to(sums.dtype)
            sums = sums + (residual if beta == 1 else beta * residual)
        return sums.to(dtype)


def after(argument, activation: str, residual, beta: float, out=None) -> torch.Tensor:
    """activation(argument) + beta * residual by torch, in the type of `argument`; `out` if given.

    The one place where torch ends a product, so that all calls of a kind have the same bits.
    """
    if residual is None:
        if out is not None and activation in GATED:
            return torch.mul(*_pair(argument, activation), out=out)
        result = activated(argument, activation)
    else:
        done = activated(argument, activation)
        # A residual of no dimensions would have no say in the type that torch adds in.
        result = torch.add(done, residual.expand(done.shape), alpha=beta).to(argument.dtype)
    return result if out is None else out.copy_(result)


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """One of `problem.ACTIVATIONS`, or of `GATED`, by torch."""
    if activation in GATED:
        gate, up = _pair(x, activation)
        return gate * up
    functional = torch.nn.functional
    if activation == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    return getattr(functional, activation)(x) if activation else x


def _pair(x: torch.Tensor, activation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The two factors of a gated activation of `x`, whose first half of columns is the gate's."""
    gate, up = x.chunk(2, -1)
    return activated(gate, GATED[activation]), up


@untraced
def product(
    a, b, out: torch.Tensor | None, options: tuple, ending: Ending | None = None
) -> torch.Tensor:
    """a @ b for `a` [..., M, K] and `b` [..., K, N], batches broadcast; it is `out` if given.

    `options`: as of a `Plan`. Neither checked nor recorded by autograd; a write to `out` counts.
    Raises what `dispatch.choose` raises.
    """
    key, addresses = kind_of(a, b, out, options, ending)
    plan = fast_path.KNOWN.get(key)
    if out is not None:
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed: "
                "out was made in inference mode. Take out.clone()"
            )
        met = fast_path.overlap(addresses[:3], (span(a), span(b), span(out)))
        if met or (ending and ending.met_by(out)):
            return out.copy_(product(a, b, None, options, ending))
    if ending and (a.dtype not in REAL or a.shape[-1] == 0 or ending.alpha == 0):
        result = _in_parts(a, b, options, ending)
        return result if out is None else out.copy_(result)
    if plan is not None and plan.launches is not None and fast_path.AVAILABLE:
        result = fast_path.multiply(plan, addresses, out)
        if result is not None:
            return result
    c = out
    if c is None:
        shape = result_shape(a, b, ending.activation if ending else "")
        c = torch.empty(shape, dtype=options[-1], device=a.device)
    if not is_trivial(a.shape[-1], c):
        with on_device(c):
            if plan is None:
                plan = Plan(a, b, c, options, ending)
            plan(a, b, c, ending)
        fast_path.KNOWN[key] = plan
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return c


def _in_parts(a, b, options: tuple, ending: Ending) -> torch.Tensor:
    """A product in the accumulator's type, or zeros if there are no terms, that torch ends.

    With alpha = 0 there are none, whatever the operands hold: NaN times 0 would be NaN.
    """
    if a.shape[-1] and ending.alpha:
        return ending.of(product(a, b, None, (*options[:3], options[2])), options[-1])
    zeros = a.new_zeros(result_shape(a, b), dtype=sums_type(options[2]))
    return ending._replace(alpha=1.0).of(zeros, options[-1])


def sums_type(accumulate: torch.dtype) -> torch.dtype:
    """The type that sums are finished in: the accumulator's, but at least fp32."""
    if not accumulate.is_floating_point:
        return accumulate
    return torch.promote_types(accumulate, torch.float32)


def kind_of(a, b, out, options: tuple, ending: Ending | None) -> tuple[tuple, tuple[int, ...]]:
    """The key of a call's kind, and the addresses and factors that a plan of that kind takes."""
    addresses = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
    key = fast_path.key_of(a, b, out, addresses, options)
    if ending is None:
        return key, addresses
    return (key, ending.key()), (*addresses, *ending.read())


@untraced
def learn(called: Sequence, prepared: Sequence, result: torch.Tensor, options: tuple) -> None:
    """Let the fast path make products like one that `product` has made, of 1-D operands too.

    `called` are input, other and out as a caller gave them; `prepared` the same as `product` took
    them, with two dimensions at least. `result` is what the caller gets.
    """
    if any(t is not None and t.dim() < 2 for t in called):
        addresses = tuple(0 if t is None else t.data_ptr() for t in called)
        plan = fast_path.KNOWN.get(fast_path.key_of(*prepared, addresses, options))
        if plan is not None:
            plan = plan.dropped(tuple(result.shape), result.stride())
            fast_path.KNOWN[fast_path.key_of(*called, addresses, options)] = plan


def run(kernel: Kernel, problem: Problem, config: Config, a, b, c, *more) -> list[Call | None]:
    """Write the products of `a` and `b` into `c`, on `c`'s device and its current stream.

    `problem` is that of a, b, c, and `more` what its epilogue has: bias, residual.
    Returns what repeats each launch, in their order; None for one
    that nothing repeats, and nothing at all where there is nothing to multiply.
    """
    if is_trivial(problem.K, c):
        return []
    calls = []
    with on_device(c):
        if config.PACK:
            a, b, call = pack(problem, config.PACK, a, b)
            calls.append(call)
        if config.SWAP:
            a, b, c = b.mT, a.mT, c.mT
            more = [t if t.dim() == 1 else t.mT for t in more]
        calls.append(kernel.launch(config.view(problem), config, a, b, c, *more))
    return calls


def forget() -> None:
    """Plan and choose anew from now on: what was tuned has changed."""
    dispatch.forget()
    fast_path.KNOWN.clear()


def matrices(
    a, b, out, precision: str | None, accumulate: torch.dtype | None, ending: Ending | None = None
):
    """The problem that computes `out` = a @ b, and the views of a, b, out that it describes.

    Those of what `ending` has follow: the bias, the residual.
    Batch dimensions that only `a` has become rows where memory allows it, so that a stack of
    matrices times one matrix is one large product. Operands are copied only where more than two
    batch dimensions would remain.
    """
    precision = resolve(precision, a.dtype)
    bias, residual = ending[:2] if ending else (None, None)
    fields = ending.fields if ending else {}
    if out.dim() > 2:
        batch = out.shape[:-2]
        a = a.expand(*batch, *a.shape[-2:])
        b = b.expand(*batch, *b.shape[-2:])
        a, b, out, residual = _fold(a, b, out, residual)
    for copies in ((), (0,), (1,), (0, 1), (0, 1, 3), (0, 1, 2, 3)):
        a_, b_, out_, residual_ = (
            t.contiguous() if i in copies and t is not None else t
            for i, t in enumerate((a, b, out, residual))
        )
        try:
            problem = Problem.of(
                a_,
                b_,
                out_,
                precision=precision,
                accumulate=accumulate,
                residual=residual_,
                **fields,
            )
        except ValueError:
            continue
        return problem, a_, b_, out_, *(t for t in (bias, residual_) if t is not None)
    raise AssertionError("contiguous operands always merge")


def _fold(a, b, out, residual):
    """Turn trailing batch dimensions into rows where `b` doesn't have them."""
    rowed = [t for t in (a, out, residual) if t is not None]
    while out.dim() > 2 and (b.stride(-3) == 0 or out.shape[-3] == 1):
        rows = out.shape[-2]
        # Of a dimension of one element the stride says nothing.
        apart = any(t.stride(-3) != t.stride(-2) * rows for t in rowed)
        if apart and 1 not in (rows, out.shape[-3]):
            break
        rowed = [t.flatten(-3, -2) for t in rowed]
        out = rowed[1]
        b = b.select(-3, 0)
    a, out, *residual = rowed
    return a, b, out, *(residual or [None])


def result_shape(a, b, activation: str = "") -> tuple[int, ...]:
    """Shape of what the `activation` makes of `a` [..., M, K] @ `b` [..., K, N]."""
    batch = ()
    if a.dim() > 2 or b.dim() > 2:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    columns = b.shape[-1] // 2 if activation in GATED else b.shape[-1]
    return (*batch, a.shape[-2], columns)


def is_trivial(terms: int, c: torch.Tensor) -> bool:
    """Whether there is nothing to multiply; then `c` is finished: sums of no terms are zero."""
    if terms == 0:
        c.zero_()
    return terms == 0 or c.numel() == 0


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager:
    """Where the device of `tensor` is the current one; on the CPU, any."""
    if not tensor.is_cuda or tensor.get_device() == current_device():
        return contextlib.nullcontext()
    return torch.cuda.device_of(tensor)


def span(t: torch.Tensor) -> int:
    """Bytes from the first element of `t` to the end of its last; 0 if it has none."""
    if t.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return t.element_size() * (1 + last)
