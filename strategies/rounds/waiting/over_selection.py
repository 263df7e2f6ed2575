"""Over-selection: select more clients than needed, and go on once enough of them have replied."""

from math import ceil

from ...selectors import Selection

ENOUGH_REPLIED = "enough others had replied"
"""Why there is no reply of a client for which an over-selected round did not wait."""


def over_selected(clients_per_round: int, over_selection: float) -> float | None:
    """Return ``clients_per_round`` times ``over_selection``, rounded up; None (that number) if that is 1."""
    return float(ceil(clients_per_round * over_selection)) if over_selection > 1 else None


def enough_replies(selection: Selection, clients_per_round: int, quorum: int) -> int:
    """Return the number of usable replies after which an over-selected round may go on.

    Let K be ``clients_per_round``. If S clients were selected in D > K draws, the number is S K/D, rounded
    up. With D <= K draws, the number is S. In both cases, the number is at least the quorum, and at most S.
    """
    size, draws = selection.clients.size, int(selection.counts.sum())
    share = size if draws <= clients_per_round else -(-size * clients_per_round // draws)
    return min(size, max(share, quorum))
