"""Admission: which replies and objects a node may send, and the log of refused requests."""
