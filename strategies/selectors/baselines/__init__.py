"""Baselines: uniform (McMahan et al. 2017), by data size (Li et al. 2020), all clients, optimal p."""
