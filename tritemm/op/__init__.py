"""The operators of a product, to torch: schemas, derivatives, transforms, sharded tensors."""
