"""What users call: torch's semantics and checks in front of the operators."""
