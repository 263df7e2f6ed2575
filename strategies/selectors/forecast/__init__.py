"""Forecast, the default selector. It is not from a paper."""
