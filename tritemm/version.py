"""The version, alone: files that outlive a process bear it, and the package is built with it."""

__version__ = "0.2.0"
