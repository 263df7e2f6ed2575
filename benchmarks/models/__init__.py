"""The time and the memory of a round with a large model, see `measure`."""
