"""`flwr-clientapp`: requests over the channel to its SuperNode."""

from __future__ import annotations

from deploy.flower.patches.shared import USED_BY_CHANNEL, retry_soon, use_channel

_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
USED = (f"{_CLIENTAPP}:pull_and_inflate_object_from_tree", *USED_BY_CHANNEL)


def patch() -> None:
    """Use the channel, and soon retry to fetch a missing part of a message."""
    use_channel()
    retry_soon(_CLIENTAPP, "pull_and_inflate_object_from_tree")
