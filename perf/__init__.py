"""Measure the rungs against cuBLAS and each other; `python -m perf --help`."""
