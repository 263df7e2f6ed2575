"""Whether a server is ready for devices and runs: its SuperLink answers, and lists its nodes."""

import ssl
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse

from deploy.tls.probe import unreachable

PROBE_INTERVAL = 10.0  # s between two connections to the SuperLink
NODES_INTERVAL = 30.0  # s between two requests for the nodes; the SuperLink logs each request
STATES = ("registered", "online", "offline")
"""The states that are counted. A node in the state "registered" has never been online."""
_MEDIA_TYPE = "application/protobuf"
_LARGEST = 1 << 26  # the most bytes of an answer
TIMEOUT = 5.0  # s that the SuperLink may take to answer


@dataclass(frozen=True)
class SuperLink:
    """Where a server's SuperLink answers."""

    control: str
    """HOST:PORT of the control API."""
    fleet: str
    """HOST:PORT of the Fleet API."""
    fleet_name: str
    """The name or address for which the certificate of the Fleet API must be valid."""
    authority: Path
    """The certificate of the authority that signed the SuperLink's certificate."""
    secret: Path
    """The file with the secret that the control API demands."""


class Readiness:
    """The last answer of a SuperLink.

    `problem`: why the server is not ready for devices and runs; "" if it is ready. `nodes`: the number of
    nodes in each state; None if the SuperLink did not answer.
    """

    def __init__(self, superlink: SuperLink) -> None:
        self.problem = "the SuperLink has not been asked yet"
        self.nodes: Counter[str] | None = None
        self._superlink = superlink
        self._probed = self._asked = -NODES_INTERVAL  # time.monotonic(), s

    def step(self) -> None:
        """Ask the SuperLink, at most once in `PROBE_INTERVAL` seconds."""
        if time.monotonic() - self._probed >= PROBE_INTERVAL:
            self._probed = time.monotonic()
            self.problem = self._probe()

    def _probe(self) -> str:
        """Return why the SuperLink is not ready, "" if it is; count its nodes once in `NODES_INTERVAL`."""
        each = self._superlink
        for who, server, name in (
            ("the operator", each.control, None),
            ("devices", each.fleet, each.fleet_name),
        ):
            if problem := unreachable(server, each.authority, TIMEOUT, name):
                self.nodes = None
                return f"the SuperLink does not answer {who}: {problem}"
        if self.nodes is None or time.monotonic() - self._asked >= NODES_INTERVAL:
            try:
                self.nodes = count_nodes(each.control, each.authority, each.secret, TIMEOUT)
            except (OSError, ValueError) as error:
                self.nodes = None
                return f"the SuperLink does not list its nodes: {error}"
            self._asked = time.monotonic()
        return ""


def count_nodes(control: str, authority: Path, secret: Path, timeout: float) -> Counter[str]:
    """Return how many nodes a SuperLink has in each state of `STATES`, with one HTTP request.

    This costs less than a `flwr` command. The first parameters are as in `SuperLink`; `timeout` holds for the
    connection and for each part of the answer, in s. Raises OSError or ValueError without a valid answer.
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
