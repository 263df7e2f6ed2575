"""The patch of `flwr-clientapp`: requests go over a channel to its SuperNode."""

from __future__ import annotations

from deploy.flower.patches.shared import USED_BY_CHANNEL, retry_soon, use_channel

_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
USED = (f"{_CLIENTAPP}:pull_and_inflate_object_from_tree", *USED_BY_CHANNEL)


def patch() -> None:
    """Use the channel, and ask soon again for a part of a message that is missing."""
    use_channel()
    retry_soon(_CLIENTAPP, "pull_and_inflate_object_from_tree")
