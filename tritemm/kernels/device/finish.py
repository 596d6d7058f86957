"""What becomes of sums before C is stored: activation(alpha * sum + bias) + beta * residual.

The one place of it, for kernels in Triton and in Gluon. All is done in the accumulator's type, in
fp32 where that is fp16; of a plain product nothing is left of it when it is compiled.
"""

import triton
import triton.language as tl

from ...machine import interpreter

#: True when kernels run in Triton's interpreter, which knows no PTX.
INTERPRETED = tl.constexpr(interpreter.INTERPRETED)
#: Columns that lie together on 16 bytes, of 16 bits each.
VECTOR = tl.constexpr(8)


@triton.jit
def finish(sums, extra, b0, b1, offs_m, offs_n, M, N,
           BIAS: tl.constexpr, ACTIVATION: tl.constexpr):  # fmt: skip
    """What C gets at `offs_m` and `offs_n` of batch (b0, b1), before it is rounded.

    `extra`: addresses of the bias and the residual, alpha, beta, and the strides of the residual;
    None for what isn't there. `BIAS` says along what the bias runs: rows ("m") or columns ("n").
    """
    loaded = load_extra(extra, b0, b1, offs_m, offs_n, M, N, BIAS)
    return finish_with(sums, extra, loaded, ACTIVATION)


@triton.jit
def load_extra(extra, b0, b1, offs_m, offs_n, M, N, BIAS: tl.constexpr,
               LINES: tl.constexpr = False):  # fmt: skip
    """Those that there are of the bias, as a row or a column, and the residual; as of `finish`.

    `LINES`: N is a multiple of `VECTOR`, and the residual is stored by rows on 16-byte boundaries.
    Triton sees both by itself where it has the kernel's own arguments, and loads several elements
    at a time.
    """
    loaded = ()
    if LINES:
        N = N // VECTOR * VECTOR
    if extra[0] is not None:
        if BIAS == "n":
            ptrs = extra[0] + offs_n
            if LINES:
                ptrs = tl.max_contiguous(tl.multiple_of(ptrs, 16), VECTOR)
            bias = tl.load(ptrs, mask=offs_n < N, other=0.0)[None, :]
        else:
            bias = tl.load(extra[0] + offs_m, mask=offs_m < M, other=0.0)[:, None]
        loaded += (bias,)
    if extra[1] is not None:
        mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        # int64: batches may lie 2**31 elements apart
        ptr = extra[1] + tl.cast(b0, tl.int64) * extra[4] + tl.cast(b1, tl.int64) * extra[5]
        if LINES:
            ptrs = ptr + offs_m[:, None] * extra[6] + offs_n[None, :]
            ptrs = tl.max_contiguous(tl.multiple_of(ptrs, (1, 16)), (1, VECTOR))
        else:
            ptrs = ptr + offs_m[:, None] * extra[6] + offs_n[None, :] * extra[7]
        loaded += (tl.load(ptrs, mask=mask, other=0.0),)
    return loaded


@triton.jit
def finish_with(sums, extra, loaded, ACTIVATION: tl.constexpr):
    """`finish`, of what `load_extra` gave."""
    if extra[2] is not None:
        sums = wide(sums) * extra[2]
    if extra[0] is not None:
        sums = wide(sums)
        sums += loaded[0].to(sums.dtype)
    if ACTIVATION != "":
        sums = activate(wide(sums), ACTIVATION)
    if extra[1] is not None:
        sums = wide(sums)
        residual = loaded[len(loaded) - 1].to(sums.dtype)
        if extra[3] is not None:
            residual *= extra[3]
        sums += residual
    return sums


@triton.jit
def wide(sums):
    """In fp32 what was summed in fp16."""
    if sums.dtype == tl.float16:
        sums = sums.to(tl.float32)
    return sums


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """One of `problem.ACTIVATIONS`, of each element; NaN stays NaN."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "gelu":
        x = gelu(x)
    elif ACTIVATION == "gelu_tanh":
        # x * (1 + tanh(y)) / 2 is x * sigmoid(2 y), with y = sqrt(2 / pi) * (x + 0.044715 x^3)
        x = x * sigmoid(x * (1.5957691216057308 + 0.07135481282553495 * x * x))
    elif ACTIVATION == "silu":
        x = x * sigmoid(x)
    return x


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), in 5 instructions."""
    return reciprocal(1 + power_of_2(x * -1.4426950408889634))


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
    return x * reciprocal(1 + power_of_2(x * q))


@triton.jit
def reciprocal(x):
    """1 / x of positive x, to 1 ulp."""
    if INTERPRETED:
        x = 1 / x
    else:
        x = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1
        )
    return x


@triton.jit
def power_of_2(x):
    """2 ** x, to 2 ulp."""
    if INTERPRETED:
        x = tl.exp2(x)
    else:
        x = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1
        )
    return x
