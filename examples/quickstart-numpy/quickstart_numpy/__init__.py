"""Flower's quickstart in NumPy, with Cohort's Forecast."""
