"""delta."""
