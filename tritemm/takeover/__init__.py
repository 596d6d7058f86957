"""Takes over torch's own calls on request: which calls, and how."""
