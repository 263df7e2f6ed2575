"""How long a federation with slow clients takes to reach an accuracy: simulated, and over real processes."""
