"""This project's own experiments on the cost of lying clients and of noise on reports."""
