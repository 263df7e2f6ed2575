"""Comparisons of selectors: plans and trains the trials, compares and draws the results, gives advice."""
