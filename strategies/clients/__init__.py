"""The clients of a run: their identities, their reports, and the operator's overrides."""
