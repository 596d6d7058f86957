"""The card of the primer's pictures: what its file and sm_90's limits say, and NVIDIA's datasheets.

What no other file of the repository knows is of the H200's datasheet (device memory), of the H100
whitepaper, whose chip it has (L2, lanes, schedulers), and of the CUDA programming guide's table of
compute capabilities (shared memory and L1).
"""

import torch

from tritemm.arch import gpus, sm80

DEVICE = gpus.named("NVIDIA H200")
PHYSICS = gpus.physics(DEVICE)
#: FLOP per second of 16-bit tensor cores at the settled clock, and bytes per second of a copy.
DENSE, COPY = gpus.flop_rate(torch.bfloat16, "ieee", DEVICE), PHYSICS.copy_rate
#: FLOP for each byte above which arithmetic is the limit.
RIDGE = DENSE / COPY
#: Threads of a warp; sub-partitions of an SM, and of each the lanes for fp32.
WARP, PARTS, LANES = 32, 4, 32
#: FLOP per cycle of one sub-partition's tensor core.
TENSOR = gpus.flop_per_clock(torch.bfloat16, "ieee", DEVICE) / DEVICE.sms / PARTS
#: Bytes: registers of an SM; its shared memory and L1 cache; of L2; of device memory.
REGISTERS, ON_SM, L2, MEMORY = 4 * sm80.REGISTERS, 256 * 2**10, 50 * 10**6, 141 * 10**9
#: Warps that an SM can hold.
WARPS = sm80.THREADS // WARP
#: Bytes that an SM's shared memory serves in a cycle, and all of them in a second.
BANKS = 128
SHARED_RATE = BANKS * DEVICE.sms * PHYSICS.clock
#: Seconds until a load's bytes arrive, and bytes per second, as pages of the tutorial say:
#: 21_scaled has cycles of shared memory, docs/cost_model.md the latency of tiles, which L2 has more
#: often than not, 14_gemv that of memory; 03_tiled what the fastest kernels draw from L2.
SHARED_CYCLES, L2_LATENCY, MEMORY_LATENCY = 30, 0.3e-6, 0.5e-6
L2_DRAWN = 5e12
