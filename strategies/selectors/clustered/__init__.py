"""Clustered sampling (Fraboni, Vidal, Kameni, Lorenzi 2021)."""
