"""Federations without a network: an in-process Grid, and a simulator that trains clients in batches."""
