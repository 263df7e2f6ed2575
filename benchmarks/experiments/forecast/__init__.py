"""The experiments on the selector `forecast`: mostly on synthetic streams of update norms."""
