"""Flower's programs: their command lines, connections, runs and patches."""
