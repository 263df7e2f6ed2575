"""The role `client`: a SuperNode with a name, a key and a part of the data that no other container has."""

import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

from client.device_limits import properties_of
from deploy.container import AUTHORITY, FLEET_HOST, FLEET_PORT, LEASES, client_names, leases
from deploy.container.supervisor import ContainerSupervisor, say
from deploy.flower import commands
from deploy.tls.certificates import write_private

LOOK = 2.0  # seconds between two attempts to get a free name
# The entry of a client's node config that each environment variable sets.
VARIABLES = {
    "COHORT_GROUPS": "group",
    "COHORT_PRIVATE_GROUPS": "private-group",
    "COHORT_COSTS": "cost",
    "COHORT_ENERGIES": "energy",
    "COHORT_PROPERTIES": "properties",
}
# Settings of selectors that the clients themselves report if the environment variable is set.
REPORTED = {"COHORT_COSTS": "costs", "COHORT_ENERGIES": "energies"}


def main() -> int:
    """Take a free client name, and keep the client's SuperNode running until the container is stopped."""
    names = client_names(int(os.environ["COHORT_CLIENTS"]))
    lease = _wait_for_a_name(names)
    say(f"this is {lease.name}")
    key = Path(tempfile.mkdtemp(), "key")  # /tmp is in memory, see docker-compose.yml
    answer = leases.ask_until_answered(LEASES, lease.descriptor, socket.gethostname())
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


def node_config(number: int, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the node config entries that the environment variables set for one client.

    A variable holds one or more values, separated by blanks. The clients take these values in turn: if there
    are k values, client number m gets value m mod k. A variable that is missing or empty sets no entry.

    `environment`: the environment, with any of `VARIABLES`. (default: the environment of this process)
    """
    config: dict[str, Any] = {}
    for variable, name in VARIABLES.items():
        if not (values := environment.get(variable, "").split()):
            continue
        value = values[number % len(values)]
        if name.endswith("group"):
            if not value.isprintable() or not re.fullmatch(r"""[^\s"'\\]{1,128}""", value):
                raise ValueError(f'{variable} = {value!r}: must be names without quotes: "north south"')
            config[name] = value
            continue
        if name == "properties":
            properties_of({name: value})
            if not value.isprintable() or set(value) & set("\"'\\"):
                raise ValueError(f"{variable} = {value!r}: must be without quotes: charging=true,region=eu")
            config[name] = value
            continue
        try:
            config[name] = float(value)
        except ValueError:
            config[name] = nan
        if not 0 <= config[name] < inf:
            raise ValueError(f'{variable} = {value!r}: must be finite numbers of at least 0: "1 2.5"')
    return config
