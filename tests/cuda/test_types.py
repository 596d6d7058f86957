"""Each instruction of the type table on a GPU, exact or in budget; what is wrong is told."""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import pytest
import torch

from cuda_reference import types
from cuda_reference.types.run import ALIGNMENT, RANGES
from cuda_reference.types.table import DTYPES, TABLE, held_by
from tritemm import budget

pytestmark = [pytest.mark.host, pytest.mark.once]

DEVICE = "cuda"
MIN, MAX = -(2**31), 2**31 - 1
#: The first entry that is satfinite, of f64, ...: what a test needs one of.
ONE = {entry.ptx.split(".")[0] + "." + entry.a: entry for entry in reversed(TABLE)}


def alike(entry):
    """The entry without what must not change a result: layouts in memory."""
    return dataclasses.replace(entry, a_layout="", b_layout="", swizzle=0, a_in_registers=False)


def groups(entries, key):
    """Lists of the entries whose keys are equal."""
    found = {}
    for entry in entries:
        found.setdefault(key(entry), []).append(entry)
    return found


def on_gpu(entries):
    """A test on a GPU that has them, of entries of one source and one set of types at a time."""
    found = groups(entries, lambda e: (e.source.removeprefix("types/"), e.a, e.b, e.d))
    sets = [pytest.param(group, id="-".join(key)) for key, group in found.items()]

    def marked(test):
        test = pytest.mark.usefixtures("can_run")(test)
        return pytest.mark.gpu(pytest.mark.parametrize("entries", sets)(test))

    return marked


@pytest.fixture
def can_run(loads, entries):
    if reason := types.why_not(entries[0], torch.cuda.get_device_capability()):
        pytest.skip(reason)


# References


def values(shape, type_):
    """Random values of a PTX type on the CPU, over the whole range of an integer."""
    dtype = DTYPES[type_]
    if type_ == "b1":
        return torch.rand(shape) < 0.4
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        low, high = RANGES.get(type_, (limits.min, limits.max))
        return torch.randint(low, high + 1, shape, dtype=dtype)
    # A mean that is not zero makes a missing term visible, a slope makes a swap visible.
    normal = torch.randn(shape, dtype=torch.float64) + torch.linspace(-0.5, 0.7, shape[-1])
    return to_tf32(normal.float()) if type_ == "tf32" else normal.to(dtype)


def small_integers(shape, type_, largest):
    """Integers whose products and sums every float type holds."""
    return torch.randint(-largest, largest + 1, shape).double().to(DTYPES[type_])


def to_tf32(x):
    """To nearest, halves away from zero: 10 bits are left of the fraction."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def products(entry, a, b):
    """A B in fp64, or in int64: what one instruction adds to C. fp64 holds all its sums."""
    x, y = entry.scale_a * a.double(), entry.scale_b * b.double()
    exact = x @ (1 - y) + (1 - x) @ y if entry.op == "xor" else x @ y
    return exact if a.is_floating_point() else exact.long()


def added(entry, c, more):
    """C plus the products, as the integer instructions add: clamped once, or modulo 2^32."""
    total = entry.scale_d * c.long() + more
    if entry.satfinite:
        return total.clamp(MIN, MAX).int()
    return ((total - MIN) % 2**32 + MIN).int()


def near_the_limits(entry, a, b):
    """C of s32 such that some of the sums overflow and others do not."""
    more = products(entry, a, b)
    distance = (torch.rand(more.shape) * 2 * more.abs().double().mean()).long()
    above = torch.rand(more.shape) < 0.5
    c = torch.where(above, MAX - distance, MIN + distance)
    sums = entry.scale_d * c + more
    over = (sums > MAX) | (sums < MIN)
    assert bool(over.any() and not over.all()) == bool(entry.scale_d)
    return c.int()


def rounded(x, mode):
    """A Fraction in fp64."""
    nearest = float(x)  # ties to even
    if mode in ("", "rn") or Fraction(nearest) == x:
        return nearest
    below = nearest if nearest < x else math.nextafter(nearest, -math.inf)
    above = math.nextafter(below, math.inf)
    return {"rm": below, "rp": above, "rz": below if x > 0 else above}[mode]


def chain(a, b, c, mode):
    """fp64 as DMMA adds: a chain of fused multiply-adds from C, in the order of K."""
    m, k = a.shape
    a, b, d = a.tolist(), b.tolist(), c.tolist()
    for row, col, i in itertools.product(range(m), range(len(d[0])), range(k)):
        exact = Fraction(a[row][i]) * Fraction(b[i][col]) + Fraction(d[row][col])
        d[row][col] = rounded(exact, mode)
    return torch.tensor(d, dtype=torch.float64)


@functools.cache
def f64_operands():
    draw = torch.Generator().manual_seed(64)
    shapes = ((8, 4), (4, 8), (8, 8))
    return tuple(torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)


def test_rounding_modes_differ():
    """The data tells every mode from every other, and a chain from other orders of K."""
    a, b, c = f64_operands()
    results = [chain(a, b, c, mode) for mode in ("rn", "rz", "rm", "rp")]
    results.append(chain(a.flip(1), b.flip(0), c, "rn"))
    results.append((a[:, :, None] * b).sum(1) + c)
    for one, other in itertools.combinations(results, 2):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other)
    assert torch.equal(chain(a, b, c, ""), results[0])
    assert bool((results[2] <= results[0]).all() and (results[0] <= results[3]).all())


def accumulator(entry):
    """What the instruction adds in. Hopper adds fp8 with about 14 bits: fp16 is the type below."""
    half = entry.c == entry.d == "f16" or entry.a in ("e4m3", "e5m2")
    return torch.float64 if entry.d == "f64" else torch.float16 if half else torch.float32


def verdict(entry, d, a, b, c):
    """The budget of D with C as one more term: [A | c] [b ; 1] for each column c of C, b of B."""
    n = entry.shape[1]
    a, c = entry.scale_a * entry.scale_b * a.double(), entry.scale_d * c.double()
    lefts = torch.cat([a.expand(n, -1, -1), c.T[:, :, None]], 2)
    rights = torch.cat([b.double().T[:, :, None], torch.ones(n, 1, 1, dtype=torch.double)], 1)
    return budget.check(d.T[:, :, None], lefts, rights, accumulate=accumulator(entry))


@pytest.mark.parametrize("name", ["wmma.f16", "mma.bf16", "wgmma.tf32", "wgmma.e4m3"])
def test_the_check_rejects_wrong_results(name):
    """C left out, a row of K left out, B turned round, one element off: each is told."""
    entry = ONE[name]
    m, n, k = entry.shape
    a, b, c = values((m, k), entry.a), values((k, n), entry.b), values((m, n), entry.c)
    dtype, right = DTYPES[entry.d], a.double() @ b.double()
    one_off = (right + c.double()).to(dtype)
    one_off[1, 2] += one_off[1, 2].abs() + 1
    assert verdict(entry, (right + c.double()).to(dtype), a, b, c).ok
    assert not verdict(entry, right.to(dtype), a, b, c).ok
    short = a.double()[:, 1:] @ b.double()[1:] + c.double()
    assert not verdict(entry, short.to(dtype), a, b, c).ok
    turned = a.double() @ b.double().flip(1) + c.double()
    assert not verdict(entry, turned.to(dtype), a, b, c).ok
    assert not verdict(entry, one_off, a, b, c).ok


# On a GPU


def ones(lines, length, dtype):
    """Bytes, all ones, and lines of elements in them, with space between that is aligned."""
    pitch = -(-length * dtype.itemsize // ALIGNMENT) * ALIGNMENT + ALIGNMENT
    storage = torch.full((lines, pitch), 255, dtype=torch.uint8, device=DEVICE)
    return storage, storage.view(dtype)[:, :length]


def run(entry, a, b, c):
    """D on the CPU, from memory full of ones (NaN; -1), of which nothing but D may change."""
    m, n, _ = entry.shape
    dtype = DTYPES[entry.d]
    storage, out = ones(m + 2, n, dtype)
    out = out[1:-1]
    operands = (x if x.device.type == DEVICE else x.to(DEVICE) for x in (a, b, c))
    assert types.multiply(entry, *operands, out=out) is out
    after = storage.cpu()
    d = after.view(dtype)[1:-1, :n].clone()
    after[1:-1, : n * dtype.itemsize] = 255
    assert bool((after == 255).all()), f"{entry.name} wrote outside D"
    return d


def wrong(entries, operands, judge):
    """What is wrong with each entry's D: `judge(entry, d)` says, or returns None.

    The entries differ only in layouts, so their results are most often the same bits.
    """
    on_device = [x.to(DEVICE) for x in operands]
    right = []
    for entry in entries:
        d = run(entry, *on_device)
        if any(torch.equal(d, one) for one in right):
            continue
        reason = judge(entry, d)
        if reason is None:
            right.append(d)
        else:
            yield f"{entry.name}: {reason}"


def differences(want):
    def judge(entry, d):
        same = d == want
        if bool(same.all()):
            return None
        at = tuple((~same).nonzero()[0].tolist())
        count = int((~same).sum())
        return (
            f"{count} of {d.numel()} are wrong; at {at}: {d[at].item()!r}, not {want[at].item()!r}"
        )

    return judge


def report(problems):
    problems = list(problems)
    assert not problems, "\n".join([f"{len(problems)} entries are wrong:", *problems[:20]])


def check(entries, drawn):
    """Those that are alike on the same operands: `drawn(entry)` has them, and a judge of D."""
    report(itertools.chain(*(wrong(e, *drawn(e[0])) for e in groups(entries, alike).values())))


def operands_of(entry, draw=values):
    m, n, k = entry.shape
    return draw((m, k), entry.a), draw((k, n), entry.b), draw((m, n), entry.c)


def is_float(entry):
    """Whether its sums are judged by the budget: of f64 those with more terms than a chain has."""
    return entry.d in ("f16", "f32") or (entry.d == "f64" and entry.shape != (8, 8, 4))


@on_gpu(e for e in TABLE if is_float(e))
def test_floats_are_within_budget(entries):
    def drawn(entry):
        a, b, c = operands_of(entry)

        def judge(entry, d):
            found = verdict(entry, d, a, b, c)
            return None if found.ok else found.message

        return (a, b, c), judge

    check(entries, drawn)


@on_gpu(e for e in TABLE if is_float(e))
def test_floats_are_exact_on_small_integers(entries):
    """No rounding can hide a term that is missing or in the wrong place."""

    def drawn(entry):
        m, n, k = entry.shape
        a, b = small_integers((m, k), entry.a, 3), small_integers((k, n), entry.b, 3)
        c = small_integers((m, n), entry.c, 99)
        want = (products(entry, a, b) + entry.scale_d * c.double()).to(DTYPES[entry.d])
        return (a, b, c), differences(want)

    check(entries, drawn)


@on_gpu(e for e in TABLE if e.d == "f64" and e.shape == (8, 8, 4))
def test_f64_rounds_as_asked(entries):
    a, b, c = f64_operands()

    def drawn(entry):
        return (a, b, c), differences(chain(a, b, c, entry.rounding))

    check(entries, drawn)


@on_gpu(e for e in TABLE if e.d == "s32")
def test_integers_are_exact(entries):
    """Modulo 2^32, or clamped; C is near the limits."""

    def drawn(entry):
        m, n, k = entry.shape
        a, b = values((m, k), entry.a), values((k, n), entry.b)
        c = near_the_limits(entry, a, b)
        return (a, b, c), differences(added(entry, c, products(entry, a, b)))

    check(entries, drawn)


def one_n():
    """All entries, but of wgmma those of one N."""
    for entry in TABLE:
        if entry.instruction != "wgmma" or entry.shape[1] == (8 if entry.modified else 24):
            yield entry


def signed_integers():
    """Entries of integers whose products can be negative, in one swizzle."""
    for entry in TABLE:
        if {entry.a, entry.b} & {"s8", "s4"} and entry.swizzle == 0:
            yield entry


def up_and_down(entry):
    """Operands with positive products, and the ones whose products are their negatives."""
    m, n, k = entry.shape
    a = torch.randint(1, 8, (m, k)).to(DTYPES[entry.a])
    b = torch.randint(1, 8, (k, n)).to(DTYPES[entry.b])
    return (a, b), ((-a, b) if entry.a.startswith("s") else (a, -b))


@on_gpu(signed_integers())
def test_satfinite_clamps_at_every_step(entries):
    """Up and then down again from near the limit: the order of the steps changes the sum."""
    problems = []
    for entry in entries:
        up, down = up_and_down(entry)
        more = products(entry, *up)
        c = (MAX - more // 2).int()
        up_first = run(entry, *down, run(entry, *up, c))
        down_first = run(entry, *up, run(entry, *down, c))
        want = (MAX - more).int() if entry.satfinite else c
        assert bool((want != c).all()) == entry.satfinite
        for order, d, expected in (("up", up_first, want), ("down", down_first, c)):
            if reason := differences(expected)(entry, d):
                problems.append(f"{entry.name}, {order} first: {reason}")
    report(problems)


@on_gpu(signed_integers())
def test_satfinite_clamps_only_the_result(entries):
    """Within one instruction the sum passes the limit and comes back."""
    problems = []
    for entry in entries:
        (a, b), (minus_a, minus_b) = up_and_down(entry)
        half = entry.shape[2] // 2
        a = torch.cat([a[:, :half], minus_a[:, :half]], 1)
        b = torch.cat([b[:half], minus_b[:half]], 0)
        c = torch.full(entry.shape[:2], MAX, dtype=torch.int32)
        assert not products(entry, a, b).any()
        for order, k in (("up", slice(None)), ("down", torch.arange(2 * half).flip(0))):
            if reason := differences(c)(entry, run(entry, a[:, k], b[k], c)):
                problems.append(f"{entry.name}, {order} first: {reason}")
    report(problems)


@on_gpu(e for e in TABLE if e.d in ("f16", "f32", "f64") and (e.shape[0] < 64 or e.shape[1] == 24))
def test_nan_and_infinity_reach_d(entries):
    """NaN in A fills its row of D; an infinity in C stays where it is; all else is finite."""

    def drawn(entry):
        m, n, k = entry.shape
        a, b, c = (x.double() for x in operands_of(entry))
        a[m - 2, k - 1] = math.nan
        c[1, n - 3] = -math.inf
        special = torch.zeros(m, n)
        special[m - 2] = math.nan
        special[1, n - 3] = -math.inf

        def judge(entry, d):
            got = torch.where(d.isfinite(), 0.0, d.float())
            return None if torch.equal(got.nan_to_num(7.0), special.nan_to_num(7.0)) else str(got)

        held = (entry.a, entry.b, entry.c)
        return [x.to(DTYPES[type_]) for x, type_ in zip((a, b, c), held, strict=True)], judge

    check(entries, drawn)


@on_gpu(e for e in TABLE if e.scale_d == 0 and is_float(e))
def test_c_is_not_read_where_scale_d_is_0(entries):
    """NaN in C would be in D."""

    def drawn(entry):
        a, b, c = operands_of(entry, lambda shape, type_: small_integers(shape, type_, 3))
        want = products(entry, a, b).to(DTYPES[entry.d])
        return (a, b, c.fill_(math.nan)), differences(want)

    check(entries, drawn)


@on_gpu(e for e in one_n() if e.a == "tf32")
def test_tf32_is_rounded_not_truncated(entries):
    def drawn(entry):
        m, n, k = entry.shape
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)
        want = run(entry, to_tf32(a), to_tf32(b), c)
        truncated = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
        assert not torch.equal(want, run(entry, *truncated, c))
        return (a, b, c), differences(want)

    check(entries, drawn)


@on_gpu(e for e in TABLE if e.instruction == "wmma" and (e.a_layout, e.b_layout) == ("row", "col"))
def test_wmma_loads_c_and_stores_d_by_columns_too(entries):
    """The same bits, with guards beside columns of D."""
    problems = []
    for entry in entries:
        a, b, c = (x.to(DEVICE) for x in operands_of(entry))
        want = types.multiply(entry, a, b, c)
        m, n, _ = entry.shape
        dtype = DTYPES[entry.d]
        for c_layout, d_layout in (("col", "row"), ("row", "col"), ("col", "col")):
            layouts = {"c_layout": c_layout, "d_layout": d_layout}
            got = types.multiply(entry, a, b, c, **layouts)
            assert got.stride(1 if d_layout == "row" else 0) == 1
            lines, length = (n, m) if d_layout == "col" else (m, n)
            storage, out = ones(lines, length, dtype)
            out = out.mT if d_layout == "col" else out
            assert types.multiply(entry, a, b, c, out, **layouts) is out
            untouched = bool((storage[:, length * dtype.itemsize :] == 255).all())
            if not (torch.equal(got, want) and torch.equal(out, want) and untouched):
                problems.append(f"{entry.name}: C {c_layout}, D {d_layout}")
    report(problems)


@on_gpu(held_by("types/wmma_cpp"))
def test_the_functions_of_cuda_cpp_do_what_the_instructions_do(entries):
    """satf near the limits, each layout of A and B, and the accumulators in both layouts."""
    problems = []
    for entry, c_layout, d_layout in itertools.product(entries, ("row", "col"), ("row", "col")):
        m, n, k = entry.shape
        a, b = values((m, k), entry.a), values((k, n), entry.b)
        c = near_the_limits(entry, a, b)
        got = types.multiply(
            entry, *(x.to(DEVICE) for x in (a, b, c)),
            c_layout=c_layout, d_layout=d_layout, source="types/wmma_cpp",
        )  # fmt: skip
        if not torch.equal(got.cpu(), added(entry, c, products(entry, a, b))):
            problems.append(f"{entry.name}: C {c_layout}, D {d_layout}")
    report(problems)


@on_gpu([ONE["wmma.bf16"]])
def test_any_strides_a_new_result_and_streams(entries):
    """Operands of other strides; D in new memory; on the current stream, in its order."""
    (entry,) = entries
    a, b, c = (x.to(DEVICE) for x in operands_of(entry))
    want = types.multiply(entry, a, b, c)
    assert verdict(entry, want.cpu(), a.cpu(), b.cpu(), c.cpu()).ok
    apart = a.new_zeros(a.shape[0] + 1, 2 * a.shape[1] + 1)
    apart[1:, 1::2] = a
    assert torch.equal(want, types.multiply(entry, apart[1:, 1::2], b.mT.contiguous().mT, c))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = a.clone()
        d = types.multiply(entry, late, b, c)
    stream.synchronize()
    assert torch.equal(want, d)


@on_gpu([ONE["wmma.f16"]])
def test_results_that_can_not_be_written(entries):
    (entry,) = entries
    m, n, _ = entry.shape
    operands = [x.to(DEVICE) for x in operands_of(entry)]
    dtype = DTYPES[entry.d]
    for out in (
        torch.empty(n, m, dtype=dtype, device=DEVICE).mT,
        torch.empty(m, n + 1, dtype=dtype, device=DEVICE)[:, :n],
        torch.empty(m * n + 1, dtype=dtype, device=DEVICE)[1:].view(m, n),
    ):
        with pytest.raises(ValueError, match="side by side in rows that begin on multiples of 32"):
            types.multiply(entry, *operands, out=out)
