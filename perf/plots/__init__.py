"""Pictures of recorded rows, a module each; `perf.views` says which rows each shows."""
