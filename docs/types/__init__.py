"""The type table in Triton's words: a kernel of one tile for each way to say a product.

They stand here, beside the page that speaks of them, because the library does not multiply with
them and `cuda_reference` holds no Triton: they are what docs/types.md shows and counts in.
"""
