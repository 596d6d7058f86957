"""How long a kernel is expected to take: a model, and its numbers for each GPU."""
