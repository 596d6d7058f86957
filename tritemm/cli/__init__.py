"""The commands of `python -m tritemm`."""
