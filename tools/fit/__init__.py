"""The cost model's constants, found from the times of searches; for developers, not installed."""
