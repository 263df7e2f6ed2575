"""The steps of a round on arrays: select, examine, guard, weight, aggregate, learn and record."""
