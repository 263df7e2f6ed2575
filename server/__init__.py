"""The ServerApp: makes and starts the strategy of a run, evaluates the model and writes the run's files."""
