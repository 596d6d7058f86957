"""The code of the rungs that read tiles from a ring, sgemm and dgemm, executed without a GPU.

Operands are small integers, of which sums are exact: products must be numpy's, element by element.
"""

import dataclasses
import random
import re

import numpy as np
import pytest
import torch

from tests.dispatch.choosing import H200, matrix, problem
from tests.kernels import ptx
from tritemm import Config
from tritemm.arch.register_tiles import DmmaTile, FfmaTile
from tritemm.compile import pool
from tritemm.compile.asm import LAYOUTS
from tritemm.rungs import find

pytestmark = pytest.mark.host
FAMILIES = {"dgemm": (DmmaTile, torch.float64, "f8"), "sgemm": (FfmaTile, torch.float32, "f4")}
#: Bytes before and behind each array, and what is in them: NaN, of either type.
APART, FILL = 1024, 0xFF


class Memory:
    """Arrays in one memory, with room between them that nobody may write."""

    def __init__(self):
        self.bytes = np.full(APART, FILL, np.uint8)
        self.places = {}

    def add(self, name, size, data=None):
        """Room for so many bytes, which begin as `data` or as NaN."""
        self.places[name] = slice(self.bytes.size, self.bytes.size + size)
        after = np.full(-size % 256 + APART, FILL, np.uint8)
        inside = np.full(size, FILL, np.uint8) if data is None else data.ravel().view(np.uint8)
        self.bytes = np.concatenate([self.bytes, inside, after])

    def array(self, name, dtype):
        return self.bytes[self.places[name]].view(dtype)

    def untouched(self):
        outside = np.ones(self.bytes.size, bool)
        for place in self.places.values():
            outside[place] = False
        return (self.bytes[outside] == FILL).all()


def parameters(kernel, args, places, code):
    """Numbers for the parameters of the code, of those of the kernel; and the tensor maps."""
    numbers, maps = [], []
    for param in kernel.fn.params:
        value = args[param.name]
        if hasattr(value, "block_shape"):
            maps.append(value)
            numbers += [len(maps) - 1, *value.shape, *value.strides]
        elif isinstance(value, torch.Tensor):
            numbers.append(places[param.name].start)
        elif not (param.is_constexpr or value is None) and (value != 1 or param.do_not_specialize):
            numbers.append(value)
    scratch = [0, 0]  # pointers that Triton adds
    return dict(zip(code.params, numbers + scratch, strict=True)), maps


def product(rung, size, layout, config, batch=(), residual=False, sms=132, together=1,
            change=lambda text: text):  # fmt: skip
    """C and what it ought to be, by the code of the rung with a `change` made to its text.

    So many programs run `together`, and others when these have ended, whatever the GPU's SMs.
    """
    kernel, (_, dtype, kind) = find(rung), FAMILIES[rung]
    more = {"residual": matrix(*size[:2], "N", dtype, batch), "beta": False} if residual else {}
    device = dataclasses.replace(H200, sms=sms)
    asked = problem(*size, layout, dtype, device, batch=batch, **more)
    made = pool.shared().submit((rung, asked, config), with_code=True).result()
    assert made.error is None, made.error
    call = kernel.prepare(asked, config, *pool.operands(asked))
    code = ptx.Code(change(made.code["ptx"]))

    M, N, K = size
    numbers = np.random.default_rng(0)
    a, b, r = (numbers.integers(-4, 5, (*batch, *shape)).astype(kind)
               for shape in ((M, K), (K, N), (M, N)))  # fmt: skip
    memory = Memory()
    memory.add("c_ptr", r.nbytes)
    memory.add("residual_ptr", r.nbytes, r)
    partials, counters = (call.args[name] for name in ("partials_ptr", "counters_ptr"))
    if counters is not None:
        memory.add("partials_ptr", partials.nbytes)
        memory.add("counters_ptr", counters.nbytes, np.zeros(counters.numel(), np.int32))
    values, boxes = parameters(kernel, call.args, memory.places, code)
    stored = (x.mT if order == "T" else x for x, order in zip((a, b), layout, strict=True))
    maps = [(x.ravel(), box) for x, box in zip(stored, boxes, strict=True)]

    (programs,) = call.grid
    order = random.Random(0)
    numbers = order.sample(range(programs), programs)
    for first in range(0, programs, together):
        places = ({"%ctaid.x": n, "%nctaid.x": programs} for n in numbers[first:][:together])
        ptx.run_together([
            ptx.Program(
                code, made.code["warps"], made.shared, values | place, maps, memory.bytes, order
            ) for place in places
        ], order)  # fmt: skip
    assert memory.untouched(), "written beside what was given"
    assert counters is None or not memory.array("counters_ptr", np.int32).any()
    return memory.array("c_ptr", kind).reshape(r.shape), a @ b + (r if residual else 0)


#: All tiles of dgemm and the smaller half of sgemm's, whose code is long; and their numbers.
CASES = [
    pytest.param(
        rung, number, tile,
        id=f"{rung}-{'x'.join(map(str, tile))}", marks=[pytest.mark.wide] if number % 3 else [],
    )
    for rung, (family, *_) in FAMILIES.items()
    for number, tile in enumerate(family.tiles)
    if rung == "dgemm" or number >= 4
]  # fmt: skip


@pytest.mark.parametrize(("rung", "number", "tile"), CASES)
def test_every_tile_is_right(rung, number, tile):
    """With a ragged C, K that ends inside of a step, and more steps than the ring has stages."""
    M, N, K, _, stages = tile
    vector = 16 // find(rung).limits.dtype.itemsize
    parts, small = 1 + number % 2, M * N < 4096
    steps = parts * (stages + stages // 2 if small else stages + 1)
    rows, columns = M + vector * (number + 1), N + (vector if small else -vector)
    found, wanted = product(
        rung, (rows, columns, steps * K - vector), LAYOUTS[number % 4],
        Config(*tile, "grouped", 8, SPLIT_K=parts),
        batch=(2,) if number in (3, 4) else (), residual=number == 5,
    )  # fmt: skip
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("sms", "together"), [(132, 1), (132, 3), (132, 10), (1, 10)])
@pytest.mark.parametrize("rung", FAMILIES)
def test_parts_are_added_in_shares_or_by_the_last(rung, sms, together):
    """Programs that wait in vain for others leave their shares to the last. Where not all programs
    fit at once, the last adds everything anyway."""
    tile = {"dgemm": (64, 32, 16, 4, 5), "sgemm": (64, 64, 16, 4, 4)}[rung]
    size = tile[0] - 4, 2 * tile[1] - 4, 5 * tile[2] + 4
    config = Config(*tile, "grouped", 8, SPLIT_K=5)
    kernel, (_, dtype, _) = find(rung), FAMILIES[rung]
    asked = problem(*size, "TN", dtype, dataclasses.replace(H200, sms=sms))
    assert kernel.arguments.fixed(asked, config)["TOGETHER"] == (sms == 132)
    found, wanted = product(rung, size, "TN", config, residual=True, sms=sms, together=together)
    assert np.array_equal(found, wanted)


WAIT = r"(mbarrier\.try_wait\S+ done, \[{}\]), (%r\d+);"
ANY = "wrong|more arrivals|deadlock"  # by the order in which warps go on
FLIPPED = r"xor.b32 odd, \2, 1; \1, odd;"
#: What is replaced in the text, and by what; and what comes of it.
FAULTS = {
    "read too early": (WAIT.format(r"%r\d+"), FLIPPED, ANY),
    "filled too late": (WAIT.format(r"full \+ \d+"), FLIPPED, "deadlock"),
    "filled too early": (r"@!done bra again;", "", ANY),
    "before the launch before has ended": ("griddepcontrol.wait;", "", "launch before"),
    "never released": (r"@one mbarrier\.arrive\.release[^;]*;", "", "deadlock"),
    "rows exchanged": (r"(mma\.sync\S+ {[^}]*},\s*{)(%rd\d+), (%rd\d+)", r"\1\3, \2", "wrong"),
    "stored without guards": (r"@%p\d+ st\.global", "st.global", "beside"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    """Those that are planted in the code of a tile that takes its ring's stages four times."""
    pattern, by, said = FAULTS[fault]

    def change(text):
        text, count = re.subn(pattern, by, text)
        assert count
        return text

    config = Config(64, 32, 16, 4, 5, "grouped", 8)
    try:
        found, wanted = product("dgemm", (50, 30, 318), "TN", config, change=change)
        became = "right" if np.array_equal(found, wanted) else "wrong"
    except AssertionError as error:
        became = str(error)
    assert re.search(said, became)
