"""Comparisons of selectors: plans the trials, follows their runs, compares and draws the results."""
