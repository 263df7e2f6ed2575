"""The experiments of the Power-of-Choice paper."""
