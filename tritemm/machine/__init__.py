"""What there is of this machine: Triton, its interpreter, the driver; what is missing."""
