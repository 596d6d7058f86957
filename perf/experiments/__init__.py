"""The experiments of `python -m perf`: each its command, its race, its tables, its picture.

A new one is a module with `register(commands)`, which adds its parser with `cli.add_command`, and a
word in `perf.__main__`; where it only lists problems it is a `race.Preset`. What it measures it
races with `session.run`, as a list of `session.Task`; `VIEWS`, by name, say which rows its tables
and pictures show, and `show` and `docs.generate` take them there. What two of them share is a
module of `perf`.
"""
