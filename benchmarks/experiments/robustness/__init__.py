"""Experiments of this project itself: the cost of lying clients, and of noise on reports."""
