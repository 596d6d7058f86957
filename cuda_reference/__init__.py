"""Hand-written CUDA twins of the Triton rungs, behind the same contract (`tritemm.spec.Kernel`)."""
