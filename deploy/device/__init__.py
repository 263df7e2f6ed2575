"""A device that joins a federation: its key, its invitation, and its SuperNode under a supervisor."""
