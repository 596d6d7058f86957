"""What this machine has: Triton, its interpreter, the driver; and what is missing."""
