"""Comparisons with named peers, and the papers' experiments."""
