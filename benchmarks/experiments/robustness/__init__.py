"""Experiments about this project's own methods: the cost of lying clients, and of noise on reports."""
