"""Pure functions on arrays: random streams, projections, weighted sampling. No state, no selector."""
