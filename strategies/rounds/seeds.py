"""The seeds of what clients do in a round."""

from ..numerics.streams import generator


def client_seed(seed: int, round: int, client: int, purpose: str = "client") -> int:
    """Return the seed, in [0, 2^63), of a client's local training in a round, or of its "loss"."""
    return int(generator(seed, round, f"{purpose}-{client}").integers(2**63))
