"""The guard of a run: compares reports and updates with recent ones; clips, rejects and quarantines."""
