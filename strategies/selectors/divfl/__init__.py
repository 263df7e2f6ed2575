"""DivFL (Balakrishnan et al. 2022)."""
