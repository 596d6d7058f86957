"""The operators that torch sees: schemas, derivatives, transforms, sharded tensors."""
