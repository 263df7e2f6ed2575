"""The experiment on the selector `forecast`, with synthetic streams of update norms."""
