"""osmd."""
