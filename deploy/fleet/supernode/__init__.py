"""The SuperNode's side of the Fleet API: its loop, its connection, and the apps and objects it fetches."""
