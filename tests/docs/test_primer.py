"""The primer: its kernels against torch, and its numbers and pictures against what they are of."""

import inspect
import re

import pytest
import torch

from docs import excerpt
from docs.pictures import access, h200, masked, roofline, split, waves
from docs.primer import kernels, occupancy
from docs.primer.__main__ import main
from docs.site.links import ROOT
from tritemm.problem import INTERPRETED

PAGE = ROOT / "docs" / "tutorial" / "00_primer.md"
DEVICE = "cpu" if INTERPRETED else "cuda"


def guarded(n, beyond=64):
    """A vector of NaN, and the buffer that it begins."""
    buffer = torch.full((n + beyond,), float("nan"), device=DEVICE)
    return buffer[:n], buffer


def random(*shape):
    """Normal numbers, with NaN behind the last."""
    values, _ = guarded(torch.Size(shape).numel())
    return values.normal_().view(shape)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 13, 32])
@pytest.mark.parametrize("block", [1, 4, 16])
def test_add(n, block):
    x, y = random(n), random(n)
    out, buffer = guarded(n)
    assert torch.equal(kernels.add(x, y, out, block), x + y)
    assert buffer[n:].isnan().all()


def test_without_a_mask_it_writes_past_the_end():
    """And only there, and only where n is no multiple of the block."""
    for n, written in ((10, 2), (12, 0)):
        x, y = random(n + 2)[:n], random(n + 2)[:n]
        out, buffer = guarded(n)
        buffer.fill_(-1)
        assert torch.equal(kernels.add_unmasked(x, y, out, block=4), x + y)
        assert (buffer[n:] != -1).sum() == written


@pytest.mark.parametrize("shape", [(1, 1), (4, 8), (5, 11), (9, 3), (17, 8)])
def test_relu_takes_any_strides(shape):
    x = random(*shape)
    for view in (x, x.T, x[::2], x[:, ::3], x[:1].expand(3, -1)):
        assert torch.equal(kernels.relu(view), view.relu())


#: M, N and K. A program for each element is slow in the interpreter.
FEW = [(1, 1, 1), (5, 3, 7), (2, 9, 4)]
MANY = [(1, 1, 1), (16, 16, 8), (5, 19, 3), (35, 18, 20)]


@pytest.mark.parametrize(
    ("multiply", "M", "N", "K"),
    [
        *((kernels.matmul_by_elements, *sizes) for sizes in FEW),
        *((kernels.matmul_by_tiles, *sizes) for sizes in MANY),
    ],
)
def test_products(multiply, M, N, K):
    for a in (random(M, K), random(K, M).T):
        for b in (random(K, N), random(N, K).T):
            exact = a.double() @ b.double()
            # Each of K products and sums is rounded once.
            bound = 2 * K * 2**-24 * (a.double().abs() @ b.double().abs())
            assert ((multiply(a, b) - exact).abs() <= bound).all()


def test_the_command_prints_what_the_page_says(capsys):
    main()
    said = re.search(r"```console\n\$ python -m docs.primer\n```\n\n```text\n(.*?)```",
                     PAGE.read_text(), re.DOTALL)  # fmt: skip
    assert capsys.readouterr().out == said[1]


@pytest.mark.host
@pytest.mark.once
def test_every_block_of_python_is_an_excerpt():
    text = excerpt.filled(PAGE.read_text(), {"exercise": ""})
    excerpts = re.findall(r"^<!-- code: \S+ \| .+ -->\n```python$", text, re.MULTILINE)
    assert len(excerpts) == text.count("```python") > 6


# The pictures


@pytest.mark.host
@pytest.mark.once
def test_the_ragged_tile_is_what_relu_reads():
    """Where a matrix holds its own offsets, relu of the elements that are drawn returns them."""
    offsets, mask = masked.tile()
    x = torch.arange(float(masked.M * masked.STRIDE)).view(masked.M, masked.STRIDE)
    found = x[:, : masked.N][4:, 8:]
    assert offsets[mask].tolist() == found.flatten().tolist()
    sizes = inspect.signature(kernels.relu).parameters
    assert [sizes[name].default for name in ("block_m", "block_n")] == list(mask.shape)


@pytest.mark.host
@pytest.mark.once
def test_sectors_are_counted():
    assert [len(access.sectors(stride)) for stride in access.STRIDES] == [4, 8, 32]
    assert [access.used(stride) for stride in (1, 2, 8, 1000)] == [1, 1 / 2, 1 / 8, 1 / 8]


@pytest.mark.host
@pytest.mark.once
@pytest.mark.parametrize(("M", "N"), [*waves.PRODUCTS, (128, 256 * 133)])
def test_waves_are_the_scheduler_s(M, N):
    own = waves.waves(M, N)
    assert sum(own) == waves.tiles(M, N) and all(n == h200.DEVICE.sms for n in own[:-1])
    share = sum(own) / (len(own) * h200.DEVICE.sms)
    assert share == pytest.approx(split.used("scheduler", 1, sum(own)))


@pytest.mark.host
@pytest.mark.once
def test_a_measured_product_is_under_the_roof():
    """But for a copy, which reads and writes, and is a little slower than a read."""
    found = roofline.points()
    assert [point.intensity > h200.RIDGE for point in found] == [False, False, True, True]
    for point in found:
        assert 0.3 < 1e12 * point.tflops / roofline.allowed(point.intensity) < 1.1


@pytest.mark.host
@pytest.mark.once
def test_programs_of_an_sm():
    assert occupancy.programs(warps=8, registers=32, shared=0) == 8  # all 64 warps
    assert occupancy.programs(warps=8, registers=33, shared=0) == 6  # which take 40 each
    assert occupancy.programs(warps=1, registers=8, shared=0) == 32
    assert occupancy.programs(warps=4, registers=32, shared=h200.DEVICE.shared) == 1
    assert occupancy.programs(warps=8, registers=120, shared=100 * 1024) == 2  # question 5


@pytest.mark.host
@pytest.mark.once
def test_the_page_has_the_numbers_of_the_card():
    text = " ".join(PAGE.read_text().split())
    sms, clock = h200.DEVICE.sms, h200.PHYSICS.clock
    lost = h200.MEMORY_LATENCY * clock * h200.PARTS * h200.TENSOR
    assert lost == pytest.approx(3e6, rel=0.05)
    for words in (
        f"An H200 has {sms} SMs.",
        f"the 32 lanes of a sub-partition do {2 * h200.LANES}. Its tensor core does "
        f"{h200.TENSOR:.0f}, with",
        f"at most {h200.DEVICE.shared // 1024} KB of shared memory",
        f"some {h200.MEMORY_LATENCY * clock:.0f} cycles to arrive",
        f"share of the {h200.WARPS} for which",
        f"tensor cores can do {h200.DENSE / 1e12:.0f} TFLOP/s, and its memory moves "
        f"{h200.COPY / 1e12:.2f} TB/s. The quotient, {h200.RIDGE:.0f} FLOP",
        f"8192 x 8192 does {roofline.intensity(8192, 8192, 8192):.0f} operations",
        f"are {roofline.intensity(128, 4096, 4096):.0f} FLOP for each byte",
        "With 144 tiles, the second wave has {1}, and".format(*waves.waves(3072, 1536)),
    ):
        assert words in text, words
    assert roofline.intensity(1, 6144, 4096) == pytest.approx(1, abs=0.001)
