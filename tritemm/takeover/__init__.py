"""torch's own calls, taken over on request: which of them, and by what way."""
