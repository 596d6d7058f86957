"""The rungs of the Triton ladder, one file each; `tritemm/rungs.py` registers them."""
