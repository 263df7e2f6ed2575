"""Decides how long a round waits for replies, and which clients are quarantined for silence."""
