"""The epilogue: C = activation(alpha * acc + bias) + beta * residual.

The only implementation, for kernels in Triton and in Gluon. It is computed in the accumulator's
type, or in fp32 if that is fp16; a plain product compiles to none of it. If scales cover all of K,
the accumulator is multiplied by them first.
"""

from collections import namedtuple

import triton
import triton.language as tl

from ...machine import interpreter
from .offsets import batch_offset
from .residues import residue
from .scales import a_scale, b_scale

#: True when kernels run in Triton's interpreter, which doesn't support PTX.
INTERPRETED = tl.constexpr(interpreter.INTERPRETED)
#: Elements of 16 bits in 16 bytes.
VECTOR = tl.constexpr(8)
#: Strides of C or of the residual, in elements.
Strides = namedtuple("Strides", "b0, b1, m, n")
#: A kernel's arguments for its epilogue; None for what the problem lacks. For the scales' see
#: `scales`; for the flag see `planes`.
EpilogueArgs = namedtuple(
    "EpilogueArgs",
    "bias_ptr, residual_ptr, alpha, beta, strides, "
    "scale_a_ptr, scale_b_ptr, sa_strides, sb_strides, flag_ptr",
    defaults=(None,) * 5,
)


@triton.jit
def load_operands(args, b0, b1, offs_m, offs_n, M, N, BIAS: tl.constexpr,
                  LINES: tl.constexpr = False, GATED: tl.constexpr = False,
                  A_LINES: tl.constexpr = 1, B_LINES: tl.constexpr = 1, scales=None):  # fmt: skip
    """Scales, the bias as a row or a column, and the residual: a tuple of those that exist.

    If `GATED`, the bias has N elements for the gate, then N for the factor it multiplies, and both
    are loaded, like B's scales. `LINES`: N is a multiple of `VECTOR`, and the residual is
    stored by rows on 16-byte boundaries. Triton sees both by itself where it has the kernel's own
    arguments, and loads several elements at a time. A scale covers `A_LINES` rows, or `B_LINES`
    columns; `scales` are A's, if they are loaded already.
    """
    loaded = ()
    if BIAS == "batch":
        loaded += (b0,)
    end = N // VECTOR * VECTOR if LINES else N
    if args.scale_a_ptr is not None:
        if scales is None:
            scales = a_scale(args, b1, offs_m, M, 0, A_LINES)
        loaded += (scales, b_scale(args, b1, offs_n, N, 0, B_LINES))
        if GATED:
            loaded += (b_scale(args, b1, offs_n + N, 2 * N, 0, B_LINES),)
    if args.bias_ptr is not None:
        loaded += (load_bias(args.bias_ptr, offs_m, offs_n, M, end, BIAS, LINES),)
        if GATED:
            loaded += (load_bias(args.bias_ptr + N, offs_m, offs_n, M, end, BIAS, LINES),)
    if args.residual_ptr is not None:
        mask = (offs_m[:, None] < M) & (offs_n[None, :] < end)
        ptr = args.residual_ptr + batch_offset(b0, b1, args.strides.b0, args.strides.b1)
        if LINES:
            ptrs = ptr + offs_m[:, None] * args.strides.m + offs_n[None, :]
            ptrs = tl.max_contiguous(tl.multiple_of(ptrs, (1, 16)), (1, VECTOR))
        else:
            ptrs = ptr + offs_m[:, None] * args.strides.m + offs_n[None, :] * args.strides.n
        loaded += (tl.load(ptrs, mask=mask, other=0.0),)
    return loaded


@triton.jit
def load_bias(bias_ptr, offs_m, offs_n, M, N, BIAS: tl.constexpr, LINES: tl.constexpr):
    """The bias at `offs_m` as a column, or at `offs_n` as a row."""
    if BIAS == "n":
        ptrs = bias_ptr + offs_n
        if LINES:
            ptrs = tl.max_contiguous(tl.multiple_of(ptrs, 16), VECTOR)
        bias = tl.load(ptrs, mask=offs_n < N, other=0.0)[None, :]
    else:
        bias = tl.load(bias_ptr + offs_m, mask=offs_m < M, other=0.0)[:, None]
    return bias


@triton.jit
def combine(acc, args, loaded, ACTIVATION: tl.constexpr, up=None):
    """The whole epilogue, with its operands already `loaded`.

    With `up`: activation(alpha * acc + bias) * (alpha * up + bias) + beta * residual.
    """
    if args.scale_a_ptr is not None:
        acc = acc.to(tl.float32) * (loaded[0] * loaded[1])  # the same, whichever is A
        if up is not None:
            up = up.to(tl.float32) * (loaded[0] * loaded[2])
        loaded = loaded[2:] if up is None else loaded[3:]
    if acc.dtype == tl.float16:
        acc = acc.to(tl.float32)
        if up is not None:
            up = up.to(tl.float32)
    if ACTIVATION == "residue":
        acc = residue(acc, loaded[0])
    else:
        acc = activate(scale_and_bias(acc, args, loaded), ACTIVATION)
    if up is not None:
        acc *= scale_and_bias(up, args, loaded[1:])
    if args.residual_ptr is not None:
        residual = loaded[len(loaded) - 1].to(acc.dtype)
        if args.beta is not None:
            residual *= args.beta
        acc += residual
    return acc


@triton.jit
def scale_and_bias(acc, args, loaded):
    """alpha * acc + bias, which comes first in `loaded`."""
    if args.alpha is not None:
        acc *= args.alpha
    if args.bias_ptr is not None:
        acc += loaded[0].to(acc.dtype)
    return acc


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """One of `problem.ACTIVATIONS`, applied to each element; NaN stays NaN."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "gelu":
        x = gelu(x)
    elif ACTIVATION == "gelu_tanh":
        # x * (1 + tanh(y)) / 2 is x * sigmoid(2 y), with y = sqrt(2 / pi) * (x + 0.044715 x^3)
        y = x * (1.5957691216057308 + 0.07135481282553495 * x * x)
        x = x * logistic(y * -1.4426950408889634)
    elif ACTIVATION == "silu":
        x = x * logistic(x * -1.4426950408889634)
    return x


@triton.jit
def gelu(x):
    """x * Phi(x), of the normal distribution function, in 11 instructions and two of the SFU's.

    Phi(x) is sigmoid(x * q(x^2)) for some q, whose polynomial here, times -log2(e), keeps the error
    below 1.5e-7 |x|, and to 2^-16 of the result down to x = -3. Found by linear programming.
    """
    y = x * x
    q = 3.977779385877511e-07 + y * -5.4935793691868184e-09
    q = 0.00016091347788460553 + y * (-1.1659312804112142e-05 + y * q)
    q = -2.3022103309631348 + y * (-0.10483112186193466 + y * (9.038673306349665e-05 + y * q))
    return x * logistic(x * q)


@triton.jit
def logistic(x):
    """1 / (1 + 2 ** x), from two instructions of the SFU: each to 2 ulp or 1."""
    if INTERPRETED:
        x = 1 / (1 + tl.exp2(x))
    else:
        x = special("ex2", x)
        x = special("rcp", 1 + x)
    return x


@triton.jit
def special(WORD: tl.constexpr, x):
    """An instruction of the SFU."""
    return tl.inline_asm_elementwise(
        WORD + ".approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1
    )
