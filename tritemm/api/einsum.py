"""`einsum` of two tensors as one product of views; nothing is copied if the strides allow that."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch.compiler import is_dynamo_compiling
from typing_extensions import Unpack

from ..runtime.sizes import holds, known
from .arguments import Options, check_options, pair, without_tensors
from .matmul import matmul


def einsum(
    equation: str, a: torch.Tensor, b: torch.Tensor, **options: Unpack[Options]
) -> torch.Tensor:
    """`torch.einsum` of two tensors.

    Letters that both tensors have and the result lacks form K; letters that all three have are
    batches. If a tensor's strides can't merge its own letters into one dimension, some become
    batches too, along which the other is broadcast. Only a K that can't be merged is copied.

    Args:
        equation: see `torch.einsum`; with or without "->" and "...".
        a, b: of one type and device.
        options: `kernel`, `batch_invariant`, `precision`, `accumulate`, `out_dtype`; see `matmul`.

    Raises the errors of `torch.einsum` and `matmul`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> q = torch.ones(2, 5, 3, 4, dtype=torch.float16, device=device)  # batch, token, head, size
    >>> tritemm.einsum("bqhd,bkhd->bhqk", q, q).shape
    torch.Size([2, 3, 5, 5])
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return without_tensors(einsum, equation, a, b, **options)
    check_options(einsum, options)
    # Dynamo would bypass the cache as well, and warn.
    read = _form.__wrapped__ if is_dynamo_compiling() else _form
    form = read(equation, a.dim(), b.dim())
    try:
        if a.dtype != torch.int8 or not form.alone:
            return _product(form, a, b, options)
        # A sum of int8 may not fit int8, so the product's own result type is kept.
        whole = Form.of(form.a, form.b, form.result + form.alone)
        result = _product(whole, a, b, options)
        return result.sum([*range(-len(form.alone), 0)], dtype=result.dtype)
    except (RuntimeError, TypeError):
        pair("einsum", ("a", "b"), a, b, axis=None)
        raise


def _product(form: Form, a, b, options: Options) -> torch.Tensor:
    a, b, sizes = _alike(form, a, b)
    x, rows, above = _view(a, form.a, form.batch, form.rows, form.terms)
    y, columns, beside = _view(b, form.b, form.batch, form.columns, form.terms)
    # [batch, rows that can't be merged, columns that can't be merged, rows, columns]
    for _ in beside:
        x = x.unsqueeze(-3)
    y = y.reshape(*y.shape[: len(form.batch)], *[1] * len(above), *y.shape[len(form.batch) :])
    result = matmul(x, y.mT, **options)
    have = form.batch + above + beside + rows + columns
    return result.reshape([sizes[i] for i in have]).permute([have.index(i) for i in form.result])


@dataclasses.dataclass(frozen=True)
class Form:
    """The letters of both tensors and of the result, and the role of each in the product."""

    a: str
    b: str
    result: str
    batch: str
    terms: str
    rows: str
    columns: str
    alone: str

    @staticmethod
    def of(a: str, b: str, result: str) -> Form:
        return Form(
            a, b, result,
            batch=_of(result, lambda i: i in a and i in b),
            terms=_of(a, lambda i: i in b and i not in result),
            rows=_of(a, lambda i: i in result and i not in b),
            columns=_of(b, lambda i: i in result and i not in a),
            alone=_of(a + b, lambda i: (i in a) != (i in b) and i not in result),
        )  # fmt: skip


def _of(letters: str, wanted) -> str:
    """The letters in `wanted`, each once."""
    return "".join(i for i in dict.fromkeys(letters) if wanted(i))


@functools.lru_cache
def _form(equation: str, a_dims: int, b_dims: int) -> Form:
    """Form of an equation that torch accepts for tensors of these dimensions; or its error."""
    torch.einsum(equation, torch.ones([1] * a_dims), torch.ones([1] * b_dims))
    left, arrow, right = equation.replace(" ", "").partition("->")
    a, b = left.split(",")
    # A letter for each dimension that "..." stands for, the last ones alike in both.
    first, second = (
        _DOTS[len(_DOTS) - dims + len(part.replace("...", "")) :]
        for part, dims in ((a, a_dims), (b, b_dims))
    )
    if not arrow:
        right = "..." + "".join(sorted(i for i in set(left) - {",", "."} if left.count(i) == 1))
    a, b = a.replace("...", first), b.replace("...", second)
    return Form.of(a, b, right.replace("...", max(first, second, key=len)))


#: Letters for "...": more than a tensor has dimensions, and none that an equation may use.
_DOTS = "".join(map(chr, range(0x100, 0x200)))


def _alike(form: Form, a, b) -> tuple[torch.Tensor, torch.Tensor, dict[str, int]]:
    """Both tensors with one size per letter, and the sizes; torch's error if sizes contradict."""
    sizes: dict[str, int] = {}
    for letters, t in ((form.a, a), (form.b, b)):
        own: dict[str, int] = {}
        for letter, size in zip(letters, t.shape, strict=True):
            if not holds(own.setdefault(letter, size) == size):
                raise RuntimeError(
                    f"einsum(): a subscript is repeated for sizes {own[letter]} and {size} of an "
                    f"operand of shape {list(t.shape)}; they don't match"
                )
            before = sizes.setdefault(letter, size)
            if known(before == 1):
                sizes[letter] = size
            elif not known(size == 1) and not holds(before == size):
                raise RuntimeError(
                    f"einsum(): operands do not broadcast with remapped shapes: {list(a.shape)} "
                    f"and {list(b.shape)} differ in a subscript, {before} and {size}"
                )
    return *(t.expand([sizes[i] for i in of]) for t, of in ((a, form.a), (b, form.b))), sizes


def _view(t, letters: str, batch: str, free: str, terms: str) -> tuple[torch.Tensor, str, str]:
    """`t` as [batch, unmergeable free letters, free, terms], and which free letters those are."""
    for letter in sorted({i for i in letters if letters.count(i) > 1}):  # a diagonal
        while letters.count(letter) > 1:
            i, j = letters.index(letter), letters.rindex(letter)
            t = t.diagonal(dim1=i, dim2=j)
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + letter
    alone = [i for i, letter in enumerate(letters) if letter not in batch + free + terms]
    if alone:
        t = t.sum(alone)
        letters = "".join(i for i in letters if i in batch + free + terms)
    # Largest strides first, so that adjacent letters can merge into one axis.
    strides = dict(zip(letters, t.stride(), strict=True))
    order: list[str] = []
    for letter in free:  # Dynamo can't sort symbols
        order.insert(sum(1 for i in order if strides[i] >= strides[letter]), letter)
    t = t.permute([letters.index(i) for i in (*batch, *order, *terms)])
    first = end = len(batch + free)
    while first > len(batch):
        size, step = t.shape[first - 1], t.stride(first - 1)
        whole = first == end or known(step == t.shape[first] * t.stride(first))
        if not (whole or known(size == 1)):
            break  # not known to merge with the letters after it
        first -= 1
    t = t.flatten(first, end - 1) if end > first else t.unsqueeze(first)
    t = t.flatten(first + 1) if terms else t.unsqueeze(-1)
    apart = first - len(batch)
    return t, "".join(order[apart:]), "".join(order[:apart])
