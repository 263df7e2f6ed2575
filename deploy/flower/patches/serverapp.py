"""The patch of `flwr-serverapp`: a channel to its SuperLink, and some failures no longer end the run."""

from __future__ import annotations

import importlib

from deploy.flower.patches import joined_objects
from deploy.flower.patches.shared import (
    INFLATABLE,
    USED_BY_CHANNEL,
    USED_TO_GIVE_UP,
    USED_TO_RETRY,
    give_up_without_parts,
    retry_after_500,
    retry_soon,
    use_channel,
)

_GRID = "flwr.superlink.grid.http_grid"
USED = (*USED_TO_RETRY, *USED_TO_GIVE_UP, f"{_GRID}:pull_objects", *joined_objects.USED, *USED_BY_CHANNEL)


def patch() -> None:
    """Use the channel, fetch missing parts of a message soon or give up, and survive a locked database."""
    retry_after_500()
    use_channel()
    give_up_without_parts(_GRID)
    retry_soon(_GRID, "pull_objects")
    joined_objects.join_requests(
        importlib.import_module(_GRID), importlib.import_module(INFLATABLE), at_once=1
    )
