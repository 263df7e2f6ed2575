"""Processes: groups, supervisor, watchdog, ports. Standard library only."""
