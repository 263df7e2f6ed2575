"""Seeded faults: short histories of everything that can go wrong, and what must hold in all of them.

A seed is a script (`script.py`): who is there in each round, and what each of them does wrong, and when the
server is killed. `world.py` plays the clients and the network of it, `watch.py` checks each round, `play.py`
runs a script once undisturbed and once with its kills, and compares.
"""
