"""A product's inputs: the shape of its result, the epilogue's inputs. And the epilogue in torch's
operators: the reference for kernels, and the replacement where no kernel has one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .epilogue import GATED


class EpilogueInputs(NamedTuple):
    """A product's epilogue: activation(alpha * a @ b + bias) + beta * residual.

    `bias` is contiguous and 16-byte aligned, [N]; `residual` has the result's shape, any strides.
    A `symmetric` result is computed on and below its diagonal.
    """

    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    activation: str = ""
    alpha: float = 1.0
    beta: float = 1.0
    symmetric: bool = False

    @staticmethod
    def made(
        a, b, bias, residual, activation="", alpha=1.0, beta=1.0, symmetric=False
    ) -> EpilogueInputs:  # fmt: skip
        """The epilogue of a @ b; `NOTHING` if there is none. The residual may be broadcastable."""
        if beta == 0:  # its values, even NaN, are not read
            residual = None
        if residual is not None:
            residual = residual.expand(result_shape(a, b, activation))
        if bias is not None:
            bias = bias.contiguous()
            if bias.data_ptr() % 16:  # kernels are compiled for an aligned one
                bias = bias.clone()
        if bias is residual is None and not activation and alpha == 1 and not symmetric:
            return NOTHING
        beta = 1.0 if residual is None else float(beta)
        return EpilogueInputs(bias, residual, activation, float(alpha), beta, symmetric)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The bias and the residual, if they exist."""
        bias, residual, *_ = self
        if bias is None:
            return () if residual is None else (residual,)
        return (bias,) if residual is None else (bias, residual)

    @property
    def factors(self) -> tuple[float, ...]:
        """Alpha and beta, without those that are 1."""
        return tuple(factor for factor in (self.alpha, self.beta) if factor != 1)

    @property
    def fields(self) -> dict:
        """The fields of an `EpilogueSpec` by name, except the residual."""
        dtype = None if self.bias is None else self.bias.dtype
        return {
            "activation": self.activation, "bias": dtype,
            "alpha": self.alpha != 1, "beta": self.beta != 1, "symmetric": self.symmetric,
        }  # fmt: skip

    def key(self) -> tuple:
        """All that decides what runs; for factors, whether they are 1, and whether alpha is 0."""
        bias, residual, activation, alpha, beta, symmetric = self
        values: tuple = (activation, alpha if alpha in (0, 1) else None, beta == 1, symmetric)
        if bias is not None:
            values = (*values, bias.dtype, bias.shape, bias.get_device())
        if residual is not None:
            address = residual.data_ptr() & 15
            lies = residual.shape, residual.stride(), address, residual.get_device()
            values = (*values, residual.dtype, *lies)
        return values

    def read(self) -> tuple[float, ...]:
        """A launch's inputs: the addresses of the tensors, and the factors."""
        bias, residual, _, alpha, beta, _ = self
        addresses = () if bias is None else (bias.data_ptr(),)
        if residual is not None:
            addresses = (*addresses, residual.data_ptr())
        return addresses if alpha == 1 == beta else (*addresses, *self.factors)

    def met_by(self, out: torch.Tensor, rewritten: bool = False) -> bool:
        """Whether writing `out` changes what is still to be read.

        A residual that is `out` itself doesn't count: the thread that writes an element has read it
        before. It does count if `out` is `rewritten` later, when it would be read again.
        """
        for t in self.tensors:
            same = not rewritten and t is self.residual and t.data_ptr() == out.data_ptr()
            same = same and t.stride() == out.stride() and t.dtype == out.dtype
            if not same and meet(t, out):
                return True
        return False

    def before(self) -> EpilogueInputs:
        """The part of the epilogue before the activation."""
        if self.bias is None and self.alpha == 1 and not self.symmetric:
            return NOTHING
        return EpilogueInputs(self.bias, alpha=self.alpha, symmetric=self.symmetric)

    def of(self, accumulator: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The result in `dtype`, computed by torch from a product in the accumulator's type."""
        alpha, beta = self.alpha, self.beta
        if not accumulator.is_floating_point():  # else torch would use fp32
            alpha, beta = int(alpha), int(beta)
        if alpha != 1:
            accumulator = accumulator * alpha
        if self.bias is not None:
            accumulator = accumulator + self.bias
        result = activated(accumulator, self.activation)
        if self.residual is not None:
            # A sum computed by one torch operator rounds only to the result's type.
            residual = self.residual.to(result.dtype)
            result = result + (residual if beta == 1 else beta * residual)
        result = result.to(dtype)
        return mirrored(result) if self.symmetric else result


#: No epilogue.
NOTHING = EpilogueInputs()


class Besides(NamedTuple):
    """A product's inputs besides operands and epilogue: ends of groups, scales of 8-bit operands.

    `scales` are those of a and b, and whether sums are promoted, and groups of K are `in_blocks`;
    see `Problem.of`.
    """

    offs: torch.Tensor | None = None
    scales: tuple[torch.Tensor, torch.Tensor, bool] | None = None
    in_blocks: bool = False

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that a launch takes, in its order."""
        cut = () if self.offs is None else (self.offs,)
        return cut if self.scales is None else (*cut, *self.scales[:2])

    @property
    def groups(self) -> tuple[int, ...]:
        """How many groups there are, if any."""
        return () if self.offs is None else (len(self.offs),)

    def turned(self) -> Besides:
        """The same for b.T @ a.T, whose scales change places."""
        if self.scales is None:
            return self
        a, b, promoted = self.scales
        return self._replace(scales=(b, a, promoted))

    def key(self) -> tuple:
        """All that decides what runs."""
        lie = tuple((t.shape, t.stride(), t.data_ptr() % 16 == 0) for t in self.tensors)
        return lie, self.scales and self.scales[2], self.in_blocks


#: No inputs besides the operands.
ALONE = Besides()
#: Dimensions of the operands -> what groups cut: rows, columns or K.
FORMS = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}


def form_of(a, b) -> str:
    """What groups cut."""
    return FORMS[a.dim(), b.dim()]


def result_shape(a, b, activation: str = "", groups: int | None = None) -> tuple[int, ...]:
    """Shape of the `activation`'s result for `a` [..., M, K] @ `b` [..., K, N].

    With `groups`: [groups, M, N] if they cut K, else [M, N].
    """
    batch: tuple[int, ...] = ()
    if groups is not None:
        batch = (groups,) if form_of(a, b) == "k" else ()
    elif a.dim() > 2 or b.dim() > 2:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    columns = b.shape[-1] // 2 if activation in GATED else b.shape[-1]
    return (*batch, a.shape[-2], columns)


def span(t: torch.Tensor) -> int:
    """Bytes from the first element of `t` to the end of its last; 0 if it has none."""
    if t.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return t.element_size() * (1 + last)


def meet(t: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the bytes of two tensors, from first to last, overlap."""
    begin, address = t.data_ptr(), other.data_ptr()
    return address < begin + span(t) and begin < address + span(other)


def after(argument, activation: str, residual, beta: float, out=None) -> torch.Tensor:
    """activation(argument) + beta * residual, in the type of `argument`; `out` if given.

    The only place where torch ends a product, so that all calls of a kind have the same bits.
    """
    if residual is None:
        if out is not None and activation in GATED:
            return torch.mul(*_pair(argument, activation), out=out)
        result = activated(argument, activation)
    else:
        done = activated(argument, activation)
        # A 0-dim residual would not affect the type in which torch adds.
        result = torch.add(done, residual.expand(done.shape), alpha=beta).to(argument.dtype)
    return result if out is None else out.copy_(result)


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """One of `ACTIVATIONS` or `GATED`, applied to `x`."""
    if activation in GATED:
        gate, up = _pair(x, activation)
        return gate * up
    functional = torch.nn.functional
    if activation == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    return getattr(functional, activation)(x) if activation else x


def _pair(x: torch.Tensor, activation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The two factors of a gated activation; the first half of the columns of `x` is the gate's."""
    gate, up = x.chunk(2, -1)
    return activated(gate, GATED[activation]), up


def mirrored(c: torch.Tensor) -> torch.Tensor:
    """The lower triangle of `c` [..., N, N] with its diagonal, mirrored above.

    Derivatives are those of `c`, which the caller says is symmetric.
    """
    result = c.clone()
    result.detach().copy_(c.tril() + c.tril(-1).mT)
    return result
