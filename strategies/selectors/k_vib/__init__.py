"""K-Vib (Zeng et al. 2025)."""
