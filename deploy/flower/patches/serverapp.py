"""`flwr-serverapp`: requests over the channel to its SuperLink."""

from __future__ import annotations

from deploy.flower.patches.shared import (
    USED_BY_CHANNEL,
    USED_TO_RETRY,
    retry_after_500,
    retry_soon,
    use_channel,
)

_GRID = "flwr.superlink.grid.http_grid"
USED = (*USED_TO_RETRY, f"{_GRID}:pull_objects", *USED_BY_CHANNEL)


def patch() -> None:
    """Use the channel, soon retry to fetch a missing part, and survive a locked database."""
    retry_after_500()
    use_channel()
    retry_soon(_GRID, "pull_objects")
