"""Running it for real: the `cohort` command line, a federation on this machine, its certificates."""
