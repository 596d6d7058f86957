"""Rung 10 rewritten for sm_100 (Blackwell): compiled, modelled in plain Python, never run."""
