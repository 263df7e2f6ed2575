"""Counts a SuperLink's nodes by state with one HTTP request, which costs less than a `flwr` command."""

from __future__ import annotations

import ssl
import urllib.request
from collections import Counter
from pathlib import Path

from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse

STATES = ("registered", "online", "offline")
"""The states that are counted. A node in the state "registered" has never been online."""
_MEDIA_TYPE = "application/protobuf"
_LARGEST = 1 << 26  # the most bytes of an answer


def count_nodes(control: str, authority: Path, secret: Path, timeout: float) -> Counter[str]:
    """Return how many nodes a SuperLink has in each state of `STATES`.

    `control`: HOST:PORT of the control API. `authority`: the file with the certificate of the authority that
    signed the SuperLink's certificate. `secret`: the file with the secret that the control API demands.
    `timeout`: seconds to wait for the connection, and for each part of the answer.
    """
    request = urllib.request.Request(
        f"https://{control}/v1/control/list-nodes",
        data=ListNodesRequest().SerializeToString(),
        headers={
            "authorization": f"Bearer {secret.read_text().strip()}",
            "content-type": _MEDIA_TYPE,
            "accept": _MEDIA_TYPE,
        },
    )
    context = ssl.create_default_context(cafile=authority)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),  # the SuperLink is never behind the proxy of the environment
        urllib.request.HTTPSHandler(context=context),
    )
    with opener.open(request, timeout=timeout) as response:
        content = response.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{control}: its answer is larger than {_LARGEST} bytes")
    answer = ListNodesResponse()
    try:
        answer.ParseFromString(content)
    except Exception as error:  # protobuf's DecodeError is no ValueError
        raise ValueError(f"{control}: its answer cannot be read: {error}") from error
    found = Counter(dict.fromkeys(STATES, 0))
    found.update(node.status for node in answer.nodes_info if node.status in STATES)
    return found
