"""Oort: clients with large losses that answer fast (Lai et al. 2021)."""
