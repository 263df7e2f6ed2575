"""The experiments of the DELTA paper."""
