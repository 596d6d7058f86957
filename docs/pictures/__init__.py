"""Pictures of docs/concepts/, drawn from the formulas that the tests hold: `python -m docs.pictures`."""
