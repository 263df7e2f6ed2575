"""The experiment of the selector `forecast`: streams of update norms."""
