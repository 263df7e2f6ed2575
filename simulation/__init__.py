"""Federations without a network: a Grid in one process, and a simulator that trains many clients at once."""
