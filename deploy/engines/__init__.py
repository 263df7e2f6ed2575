"""Engines, which run the app: on a local cluster, on a running SuperLink, or in a simulation."""
