"""The role `client`: a SuperNode with a name, a key and a part of the data that no other container has."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.container import AUTHORITY, FLEET_HOST, FLEET_PORT, LEASES, client_names, key_service, leases
from deploy.container.client_variables import node_config
from deploy.container.supervisor import ContainerSupervisor, say
from deploy.flower import commands
from deploy.tls.certificates import write_private

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK = 2.0  # seconds between two attempts to get a free name


def main() -> int:
    """Take a free client name, and keep the client's SuperNode running until the container is stopped."""
    names = client_names(int(os.environ["COHORT_CLIENTS"]))
    lease = _wait_for_a_name(names)
    say(f"this is {lease.name}")
    key = Path(tempfile.mkdtemp(), "key")  # /tmp is in memory, see docker-compose.yml
    answer = key_service.ask_until_answered(LEASES, lease.descriptor, socket.gethostname())
    write_private(key, answer.encode())
    command = _command(lease.name, names, key)
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


def _command(name: str, names: Sequence[str], key: Path) -> list[str]:
    number = names.index(name)
    partition = f"partition-id={number} num-partitions={len(names)}"
    mine = "".join(f" {key}={json.dumps(value)}" for key, value in node_config(number).items())
    options = commands.supernode_options(
        fleet=f"{FLEET_HOST}:{FLEET_PORT}",
        authority=AUTHORITY,
        key=key,
        node_config=f'client-id="{name}" {partition}{mine}',
    )
    return commands.python("-m", "deploy.device.supernode", *options, installed=False)
