"""Federations without a network: Flower's strategies and client apps in one process, on simulated time."""
