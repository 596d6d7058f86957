"""What `kernels.device.triton_contract` relies on, in the PTX that Triton emits."""

import re

import pytest

from tritemm.compile import asm
from tritemm.kernels.device import cluster_mainloop, exchange, triton_contract
from tritemm.spec import Config

pytestmark = [pytest.mark.host, pytest.mark.latest]

GROUPED = {"num_stages": 4, "ORDER": "grouped"}
#: A config of each rung whose kernel addresses shared memory by itself.
CONFIGS = {
    "cluster": Config(128, 80, 64, num_warps=8, CLUSTER=2, **GROUPED),
    "cluster_pingpong": Config(64, 176, 64, num_warps=4, CLUSTER=4, **GROUPED),
    "multicast_split_k": Config(192, 96, 64, num_warps=12, CLUSTER=2, SPLIT_K=2, **GROUPED),
    "cluster_split_k": Config(128, 96, 64, num_warps=8, SPLIT_K=4, **GROUPED),
}


@pytest.fixture(
    scope="module", params=[(rung, many) for rung in CONFIGS for many in (False, True)],
    ids=lambda each: f"{each[0]}{'-batched' * each[1]}",
)  # fmt: skip
def compiled(request):
    """(job, its code); with batches, descriptors have more sizes and strides."""
    rung, many = request.param
    job = asm.Job(rung, layout="NT", batch=(3,) * many, config=CONFIGS[rung])
    (code,) = asm.compile_many([job], processes=1)
    assert isinstance(code, asm.Code), code
    return job, code


def shape_of(job):
    return job.kernel.arguments.fixed(asm.problem_of(job), job.config)["SHAPE"]


def ring_of(job):
    """Bytes of the allocation that the kernel addresses by itself."""
    gap = exchange.gap_of(shape_of(job)) if job.rung == "cluster_split_k" else 0
    return cluster_mainloop.ring_bytes(cluster_mainloop.stages_bytes(shape_of(job)) + gap)


def test_shared_memory_begins_at_a_symbol_with_the_largest_allocation(compiled):
    """The words of `keep` are stored at their distance from the symbol: so it stands first."""
    job, code = compiled
    assert re.search(r"\.extern \.shared \.align \d+ \.b8 global_smem\[\];", code.ptx)
    assert "mov.u32 %r" in code.ptx and ", global_smem;" in code.ptx
    kept = ring_of(job) - 4 * 128
    assert re.search(rf"\[%r\d+ ?\+ ?{kept}\]|, {kept};", code.ptx)


def test_nothing_else_has_a_place_in_it(compiled):
    """C's buffers, which are used at the end only, lie beside it."""
    job, code = compiled
    shape = shape_of(job)
    buffers = shape.CONSUMERS.value * shape.BUFFERS.value * 64 * shape.EPI_N.value * 2
    assert code.shared >= ring_of(job) + buffers


def test_parameters_have_the_kernel_s_name_and_their_place(compiled):
    job, code = compiled
    name = job.kernel.fn.__name__
    assert re.search(rf"\.entry {name}\(", code.ptx)
    for operand in "ab":
        tensor_map = triton_contract.tensor_map(name, operand, bool(job.batch))
        assert re.search(rf"\.param \.align \d+ \.b8 {tensor_map}\[128\]", code.ptx)
        assert re.search(rf"mov\.b64 map, {tensor_map};", code.ptx)
