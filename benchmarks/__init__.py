"""Comparisons with named peers, and the papers' experiments; `benchmarks.command` lists them all."""
