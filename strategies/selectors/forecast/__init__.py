"""Forecast, the default selector; not from a paper."""
