"""The experiments of `python -m perf`: each its command, its race, its tables, its picture."""
