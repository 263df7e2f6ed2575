"""flics."""
