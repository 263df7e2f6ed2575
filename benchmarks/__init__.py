"""Comparisons with named peers, and experiments of papers. `benchmarks.command` has a command for each."""
