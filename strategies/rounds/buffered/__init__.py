"""Buffered rounds: which clients are asked when places become free, and the weights of their updates."""
