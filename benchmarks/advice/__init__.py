"""How often the intervals and the advice of `cohort advise` are right."""
