"""Rounds with many devices: how long they take, and what they cost the SuperLink."""
