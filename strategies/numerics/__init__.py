"""Pure functions on arrays: draws, sampling designs, projections, allocations, trees, random streams."""
