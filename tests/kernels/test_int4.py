"""The kernels of products with a weight of 4 bits: their configs, and what they are compiled to."""

import contextlib
import dataclasses
import itertools
import re
import tempfile

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.harness import DEVICE, assert_right
from tests.nn.test_int4 import TYPES, WIDE, exact_weight
from tritemm.arch import sm90
from tritemm.arch.roles import config_of
from tritemm.compile import pool, sass
from tritemm.compile.driver import standing_for
from tritemm.kernels import int4 as kernels
from tritemm.kernels import int4_roles
from tritemm.runtime import binding


def test_parts_of_k_are_chosen_and_any_config_is_right():
    device = dataclasses.replace(kernels.Device.of(torch.device(DEVICE)), sms=132, shared=232448)
    sizes = itertools.product(
        (1, 16, 64, 256), (8, 999, 4096, 28672), (1, 3, 40, 65, 112), (32, 128)
    )
    for m, n, steps, group in sizes:
        chosen = kernels.config(m, n, steps, group, device)
        parts = chosen["SPLIT_K"]
        assert (parts - 1) * -(-steps // parts) < steps, "a part is empty"
        if chosen["LANES"] == 1:
            assert chosen["EVEN"] and chosen["DEPTH"] == 2 - (group == 32 or m == 256 or steps % 2)
            stage = chosen["DEPTH"] * (chosen["BLOCK_N"] * 64 + chosen["BLOCK_M"] * 256)
            assert chosen["STAGES"] > 1 and stage * chosen["STAGES"] <= device.shared
    assert kernels.config(1, 4096, 112, 128, device)["SPLIT_K"] > 1
    weight, _ = exact_weight(70, 1024, 128)
    x = torch.randint(-1, 2, (11, 1024), device=DEVICE).bfloat16()
    for rows, columns, parts, warps, lanes, depth in (
        (8, 64, 8, 4, 1, 1), (8, 128, 4, 4, 1, 2), (16, 128, 3, 8, 1, 1), (16, 64, 1, 4, 1, 4),
        (8, 16, 2, 8, 8, 1), (8, 32, 3, 4, 4, 3), (16, 32, 1, 4, 4, 2), (8, 64, 2, 2, 2, 2),
    ):  # fmt: skip
        chosen = {"BLOCK_M": rows, "BLOCK_N": columns, "SPLIT_K": parts, "DEPTH": depth}
        chosen |= {"WARPS": warps, "LANES": lanes, "STAGES": 3 if lanes == 1 else 1}
        chosen["WIDTH"] = 128 if lanes == 1 and parts % 2 == 0 else 64
        chosen["EVEN"] = kernels.is_even(8, parts, lanes * depth)
        assert chosen["EVEN"] or lanes > 1
        out = x.new_full((11, 70), torch.nan)
        kernels.multiply(x, weight.packed, weight.scale, None, out, chosen)
        assert_right(out, x, weight.dequantize(WIDE).mT)


#: Columns of a tile, stages, and parts of K; rows, N and K.
CONFIGS = (128, 5, 1), (128, 2, 3), (256, 3, 1), (256, 2, 2), (64, 4, 7)
SIZES = (65, 24, 256), (200, 1001, 640), (256, 264, 8192), (700, 520, 4096), (136, 1, 512)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("group", [32, 64, 4096])
@pytest.mark.parametrize("shift", range(len(SIZES)))
def test_roles_in_any_config(shift, group, dtype):
    """Exact sums, of every element, in memory of which the rest stays as it was."""
    if not int4_roles.supports(torch.device(DEVICE)):
        pytest.skip("the device has no WGMMA")
    (rows, n, k), (columns, stages, parts) = SIZES[shift], CONFIGS[(shift + group // 32) % 5]
    chosen = config_of(128, columns, 128, 8, stages, min(parts, k // 128))
    weight, _ = exact_weight(n, k, group if k % group == 0 else 128, dtype)
    x = torch.randint(-1, 2, (rows, k), device=DEVICE).to(dtype)
    bias = torch.randint(-9, 9, (n,), device=DEVICE).to(dtype)
    sums = x.double() @ weight.dequantize(torch.double).mT
    after = (None, bias, bias.float())[(shift + group) % 3]
    want = (sums if after is None else sums + after).to(dtype)
    out = x.new_full((rows + 16, n), torch.nan)
    int4_roles.multiply(x, weight.packed, weight.scale, after, out[8:-8], chosen)
    assert torch.equal(out[8:-8], want)
    assert out[:8].isnan().all() and out[-8:].isnan().all()


def test_roles_are_given_what_fits():
    """Stages fit, parts of K have steps, and programs divide the columns that they add up."""
    device = kernels.Device("", (9, 0), 132, 232448)
    for rows, n, k in itertools.product((65, 128, 256, 384, 2048), (8, 999, 28672), (128, 5120)):
        plan = int4_roles.plan_of((rows, n, k), 128, torch.bfloat16, None, device)
        shape = plan.values["SHAPE"]
        tile, parts = (shape.BLOCK_M.value, shape.BLOCK_N.value), shape.SPLIT_K.value
        assert tile == (128, 128 if rows in (65, 128, 384) else 256)
        assert parts == 1 or k // 128 // parts >= 8
        columns = shape.EPI_N.value
        assert columns >= 16 and tile[1] // columns >= min(parts, 4)
        taken = shape.STAGES.value * int4_roles.stage_bytes(*tile) + 128 * columns * 2
        assert shape.STAGES.value >= 3 and taken + sm90.RESERVE <= device.shared
    few = int4_roles.plan_of((256, 4096, 14336), 128, torch.bfloat16, None, device)
    assert few.values["SHAPE"].SPLIT_K.value == 4 and few.grid == (128,)


def code_of(m, group, dtype, sm):
    """Registers and bytes of stack of a thread, and the instructions; not where it interprets."""
    tensors = dict.fromkeys(("x", "scale", "bias", "out"), dtype)
    tensors |= {"packed": torch.uint8, "partials": torch.float32, "counters": torch.int32}
    tensors = {name: torch.empty(8, dtype=kind, device="meta") for name, kind in tensors.items()}
    device = kernels.Device("", divmod(sm, 10), 132, 232448 if sm == 90 else 101376)
    values = {"M": m, "N": 4096, "STEPS": 112, "GROUP": group, "PDL": sm >= 90}
    values |= kernels.config(m, 4096, 112, group, device)
    values["TMA"] = values["LANES"] == 1 and sm == 90
    values |= tensors
    if values["TMA"]:
        x = torch.empty(m, 112 * 128, dtype=dtype, device="meta")
        block = [values["BLOCK_M"], values["WIDTH"]]
        values["x"] = TensorDescriptor.from_tensor(x, block)
    options = {"num_warps": values["WARPS"]}
    return instructions(kernels.int4_kernel, values, options, sm)


def code_of_roles(m, group, dtype):
    """The same of the kernel with roles."""
    device = kernels.Device("", (9, 0), 132, 232448)
    plan = int4_roles.plan_of((m, 4096, 14336), group, dtype, dtype, device)
    sizes = {"x": (m, 14336), "packed": (512, 112, 8, 64), "scale": (14336 // group, 4096)}
    there = {"packed": torch.uint8, "partials": torch.float32, "counters": torch.int32}
    for name in ("x", "out", "scale", "bias"):
        there[name] = dtype
    there = {
        name: torch.empty(sizes.get(name, (m, 4096)), dtype=kind, device="meta")
        for name, kind in there.items()
    }
    values = plan.values | plan.arguments(there)
    return instructions(int4_roles.int4_roles_kernel, values, plan.options, 90)


def instructions(kernel, values, options, sm):
    with standing_for(sm), tempfile.NamedTemporaryFile() as file:
        code = binding.compile_kernel(kernel, (1,), values, options).asm["cubin"]
        file.write(code)
        file.flush()
        usage = sass.parse_usage(sass.run_tool("cuobjdump", "-res-usage", file.name))
    return usage, sass.disassemble([code], sm)[0]


@pytest.mark.latest
def test_what_is_made_of_a_byte_stays_in_its_thread():
    """Bytes are copied and read 16 at a time, and nothing goes through shared memory after that."""
    with contextlib.closing(pool.Worker()) as worker:
        for m, group, dtype, sm, mma in (
            (1, 128, torch.bfloat16, 90, "HMMA.16816"), (4, 32, torch.half, 80, "HMMA.16816"),
            (4, 32, torch.half, 90, "HMMA.16816"),
            (8, 32, torch.bfloat16, 90, "HGMMA.64x16"), (16, 128, torch.half, 90, "HGMMA.64x16"),
            (64, 128, torch.bfloat16, 90, "HGMMA.64x64"), (64, 32, torch.half, 90, "HGMMA.64x64"),
            (16, 64, torch.bfloat16, 80, "HMMA.16816"),
        ):  # fmt: skip
            (_, stack), text = worker.ask(code_of, m, group, dtype, sm)
            loop = text[text.index(mma) : text.rindex(mma)]
            _, found = sass.count_instructions(loop)
            assert stack == 0 and not any(name.startswith(("STS", "SHFL")) for name in found)
            if m <= 4:  # straight into registers
                assert re.search(r"LDG.E\S*.128", text) and "BAR" not in loop
            else:
                assert "LDGSTS.E.BYPASS.128" in text and "LDS.128" in text
                assert ("UTMALDG" in text) == (sm == 90)
        for m, group, dtype, mma in (
            (256, 128, torch.bfloat16, "HGMMA.64x256x16"), (100, 32, torch.half, "HGMMA.64x128x16"),
        ):  # fmt: skip
            (_, stack), text = worker.ask(code_of_roles, m, group, dtype)
            assert stack == 0
            # A consumer's step: its WGMMA follow one another, since ptxas doesn't serialise them.
            step = text[text.index("LDS.128") :]
            step = step[: step.index("WARPGROUP.DEPBAR")]
            assert step.count(mma) == 8 and not re.search(r"STS|SHFL|BAR\.SYNC", step)
