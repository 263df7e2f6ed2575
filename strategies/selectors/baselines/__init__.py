"""Baselines: uniform (McMahan et al. 2017), by data (Li et al. 2020), all clients, and the optimal p."""
