"""The experiments of the FLICS paper."""
