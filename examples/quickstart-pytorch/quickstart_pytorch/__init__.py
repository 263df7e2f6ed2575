"""Flower's quickstart in PyTorch, with Cohort's Forecast."""
