"""Devices outside the cluster that join it: `cohort server register, revoke, list` in a container."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from deploy.container import DEVICES, STATE
from deploy.container.superlink import CONNECTION
from deploy.flower.flwr_cli import flwr
from deploy.hosting.server import Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = "usage: python -m deploy.container devices {register NAME KEY | revoke NAME | list}"


class Cluster(Server):
    """The part of a server's folder that holds the registered devices, on a volume."""

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command against this container's SuperLink."""
        answer = flwr(*arguments, CONNECTION, environment=os.environ)
        if not answer["success"]:
            raise ServerError(str(answer["error-message"]).strip())
        return answer


def main() -> int:
    """Run the command; return the exit code."""
    cluster = Cluster(DEVICES, hosts=())
    cluster.prepare_clients()
    try:
        print(_answer(cluster, sys.argv[2:]))
    except (ServerError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _answer(cluster: Cluster, arguments: Sequence[str]) -> str:
    match arguments:
        case ["register", name, *key] if key:
            if (STATE / "registered" / name).exists():
                raise ValueError(f"name = {name}: belongs to a client inside the cluster")
            node = cluster.register(name, " ".join(key))
            return f"{name} is registered (node {node}); it comes online by itself"
        case ["revoke", name]:
            cluster.revoke(name)
            return f"{name} is revoked"
        case ["list"]:
            return "\n".join(f"{name:<30} {state}" for name, state in cluster.states().items())
        case _:
            raise ValueError(USAGE)
