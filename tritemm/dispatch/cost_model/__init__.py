"""The predicted time of a kernel: a model, and its constants for each GPU."""
