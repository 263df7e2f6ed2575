"""Over-selection: select more clients than needed, and go on once enough of them have replied."""

from math import ceil

from ..selectors import Selection


def over_selected(clients_per_round: int, over_selection: float) -> float | None:
    """Return the budget of a round, K times ``over_selection``, rounded up; None without over-selection."""
    return float(ceil(clients_per_round * over_selection)) if over_selection > 1 else None


def enough_replies(selection: Selection, clients_per_round: int, quorum: int) -> int:
    """Return after how many replies an over-selected round may go on.

    Of S clients in D > K draws, K/D of the clients, rounded up; all of them if there are no more than K
    draws; at least the quorum.
    """
    size, draws = selection.clients.size, int(selection.counts.sum())
    share = size if draws <= clients_per_round else -(-size * clients_per_round // draws)
    return min(size, max(share, quorum))
