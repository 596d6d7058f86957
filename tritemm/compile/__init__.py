"""Code of any rung for any architecture, without a GPU."""
