"""The ServerApp: makes the strategy of a run, runs it, evaluates the model and writes the run's files."""
