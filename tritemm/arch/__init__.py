"""What architectures can do: tiles, shared memory, registers, clusters; and why not."""
