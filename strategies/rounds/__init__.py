"""The round pipeline on arrays: select, examine, judge, weight, aggregate, learn, record."""
