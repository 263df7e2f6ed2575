"""The duration of a round without any training, see `measure`."""
