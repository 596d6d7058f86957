"""The commands of `python -m perf`, a module each."""
