"""Seeded fault simulation: short histories full of faults, and invariants that hold in all of them.

A seed determines a script (`script.py`): the online nodes of each round, the faults of each client, and when
the server is killed. `world.py` simulates the clients and the network, `watch.py` checks the invariants after
each round, and `play.py` runs a script once without kills and once with them and compares the two runs.
"""
