"""Sweeps: a grid of trials from a TOML file, on local cores or a Ray cluster; tables, tests, figures."""
