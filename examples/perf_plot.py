"""A quick plot of speed over size, as in Triton's tutorials: `python examples/perf_plot.py`.

`do_bench` times one provider after another, whatever the card's temperature, and checks
nothing. `python -m perf sweep` makes the measurements that this project claims: checked,
interleaved, at a settled clock.
"""

import sys
from pathlib import Path

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where cuda_reference is
import cuda_reference
import tritemm

CUDA = "wgmma_cluster"  # of cuda_reference.ladder(); mma_async_stage4 if there is no WGMMA
PROVIDERS = {
    "tritemm.matmul": tritemm.matmul,
    f"CUDA {CUDA}": lambda a, b: cuda_reference.matmul(a, b, kernel=CUDA),
    "cuBLAS": torch.matmul,
}


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["M", "N", "K"],
        x_vals=[2**i for i in range(8, 15)],
        x_log=True,
        xlabel="M = N = K (NT, fp16): a quick look, by do_bench",
        line_arg="provider",
        line_vals=list(PROVIDERS),
        line_names=list(PROVIDERS),
        ylabel="TFLOP/s",
        plot_name="quick-look",
        args={},
    )
)
def benchmark(M, N, K, provider):
    a = torch.randn(M, K, device="cuda", dtype=torch.float16)
    w = torch.randn(N, K, device="cuda", dtype=torch.float16)
    run = lambda: PROVIDERS[provider](a, w.mT)  # noqa: E731
    times = triton.testing.do_bench(run, quantiles=[0.5, 0.8, 0.2])  # milliseconds
    return tuple(2e-9 * M * N * K / ms for ms in times)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("examples/perf_plot.py needs a CUDA device, and torch sees none", file=sys.stderr)
        sys.exit(2)
    Path("build").mkdir(exist_ok=True)
    benchmark.run(print_data=True, save_path="build")
