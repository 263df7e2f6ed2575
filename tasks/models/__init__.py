"""The models of the tasks: one file for each kind of network."""
