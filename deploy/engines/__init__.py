"""Engines run the app: a local cluster, a SuperLink that runs already, or a simulation."""
