"""The command for devices outside the cluster: registers, revokes and lists them, as `cohort server` does."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from deploy.container import DEVICES, STATE
from deploy.container.superlink import CONNECTION, connect
from deploy.flower.flwr_cli import flwr
from deploy.hosting.server import STRANGER, Server, ServerError

USAGE = "usage: python -m deploy.container devices {register NAME KEY | revoke NAME | list [--json]}"


class Cluster(Server):
    """The server of the devices that join this cluster from outside. Its folder is on a volume."""

    def states(self) -> dict[str, str]:
        """Return the state of each device, by name.

        Nodes that are not devices should be the cluster's own clients, and are left out. If there are more of
        these nodes than the cluster has clients, they are listed, and a warning is added.
        """
        states = super().states()
        others = [name for name in states if name.startswith(STRANGER)]
        own = len(list((STATE / "registered").glob("*")))
        devices = {name: state for name, state in states.items() if name not in others}
        if len(others) <= own:
            return devices
        warning = f"nodes that are not devices: {len(others)}; clients of the cluster: {own}"
        return {**states, "WARNING": warning}

    def described(self) -> dict[str, Any]:
        """Return the devices, the number of other nodes, and the number of the cluster's own clients."""
        nodes = self.nodes()
        devices = [asdict(node) for node in nodes if not node.name.startswith(STRANGER)]
        own = len(list((STATE / "registered").glob("*")))
        return {"devices": devices, "other_nodes": len(nodes) - len(devices), "own_clients": own}

    def command(self, *words: str) -> str:
        """Return the command line that gives this cluster a command."""
        command = ("docker", "compose", "exec", "superlink", "python", "-m", "deploy.container", "devices")
        return shlex.join((*command, *words))

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command on this container's SuperLink, and return the answer."""
        answer = flwr(*arguments, CONNECTION, environment=os.environ)
        if not answer["success"]:
            raise ServerError(str(answer["error-message"]).strip())
        return answer


def main() -> int:
    """Run the command that the command line names; return the exit code."""
    cluster = Cluster(DEVICES, hosts=())
    cluster.prepare_clients()
    connect()  # in Kubernetes, no SuperLink has done it here
    try:
        print(_answer(cluster, sys.argv[2:]))
    except (ServerError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _answer(cluster: Cluster, arguments: Sequence[str]) -> str:
    """Execute a command, and return the text to print."""
    match arguments:
        case ["register", name, *key] if key:
            if (STATE / "registered" / name).exists():
                raise ValueError(f"name = {name}: belongs to a client inside the cluster")
            node = cluster.register(name, " ".join(key))
            return f"{name} is registered (node {node}); it comes online by itself"
        case ["revoke", name]:
            cluster.revoke(name)
            return f"{name} is revoked"
        case ["list", "--json"]:
            return json.dumps(cluster.described())
        case ["list"]:
            return "\n".join(f"{name:<30} {state}" for name, state in cluster.states().items())
        case _:
            raise ValueError(USAGE)
