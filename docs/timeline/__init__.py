"""What the warps of one SM do, moment by moment, read off its clock by the kernels themselves."""
