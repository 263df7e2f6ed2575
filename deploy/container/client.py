"""One client: a SuperNode with a name, a key and a part of the data that no other container has."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from deploy.container import AUTHORITY, FLEET_HOST, FLEET_PORT, KEYS, LEASES, client_names, leases
from deploy.container.supervisor import ContainerSupervisor, say
from deploy.flower import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK = 2.0  # seconds between two attempts to get a free name


def main() -> int:
    """Take a client's name, and keep its SuperNode running."""
    names = client_names(int(os.environ["COHORT_CLIENTS"]))
    lease = _wait_for_a_name(names)
    say(f"this is {lease.name}")
    command = _command(lease.name, names)
    return ContainerSupervisor(lambda: command, ready_line="SuperNode ID:").supervise()


def _wait_for_a_name(names: Sequence[str]) -> leases.Lease:
    me = socket.gethostname()
    lease = leases.take(LEASES, names, me)
    if lease is None:
        say(f"all {len(names)} client names (COHORT_CLIENTS) are taken; waiting until one is free")
    while lease is None:
        time.sleep(LOOK)
        lease = leases.take(LEASES, names, me)
    return lease


def _command(name: str, names: Sequence[str]) -> list[str]:
    partition = f"partition-id={names.index(name)} num-partitions={len(names)}"
    options = commands.supernode_options(
        fleet=f"{FLEET_HOST}:{FLEET_PORT}",
        authority=AUTHORITY,
        key=KEYS / "private" / name,
        node_config=f'client-id="{name}" {partition}',
    )
    return commands.python("-m", "deploy.device.node", *options, installed=False)
