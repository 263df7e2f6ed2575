"""Patches of the SuperLink's database: the same effects with fewer statements, and no waiting by polling."""
