"""Code of any rung for any architecture, with no GPU."""
