"""The role `superlink`: runs the SuperLink. Clients reach only its Fleet API, over a network of their own.

With a PostgreSQL database (`deploy.container.database`), several SuperLinks are one server. Then they are
behind a balancer, and each is reached by others than itself under its address only.
"""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

from deploy.container import (
    AUTHORITY,
    CONTROL_HOST,
    CONTROL_PORT,
    DEVICES,
    EXECUTOR_SECRET,
    FLEET_PORT,
    OPERATOR_SECRET,
    PUBLIC,
    SERVER,
    STATE,
    client_names,
)
from deploy.container.database import database_from_environment, sharing
from deploy.container.supervisor import ContainerSupervisor, say
from deploy.flower import commands
from deploy.flower.corrupt_database import move_aside_if_corrupt
from deploy.flower.flwr_cli import remote, write_connection
from deploy.flower.key_registration import registration_command
from deploy.hosting.server import Server
from strategies.checkpoint import replacing

CONNECTION = "cohort-cluster"  # the SuperLink's name in Flower's config.toml
REGISTRATION_TIMEOUT = 60.0  # seconds to register the clients' keys
# The environment variable with the address or name at which the SuperLink listens for the control API.
# (default: `CONTROL_HOST`, its own address in the control network, which clients cannot reach)
LISTEN = "COHORT_LISTEN"
STARTS = DEVICES / "superlink.starts"  # the file with the number of starts; the role `metrics` reads it
DATABASE, REGISTERED = STATE / "superlink.db", STATE / "registered"


def main() -> int:
    """Keep the SuperLink running, and register the clients' keys after each of its starts.

    Returns 2 if COHORT_DATABASE is wrong.
    """
    try:
        database = database_from_environment()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    connect()
    Server(DEVICES, hosts=()).prepare_clients()
    return ContainerSupervisor(
        partial(_command, database),
        environment=commands.guarded(OPERATOR_SECRET, DEVICES) | (sharing() if database else {}),
        ready_line="Uvicorn running on",
        on_ready=_register,
        hidden=lambda line: b"[uvicorn.access]" in line and b'" 200' in line,
    ).supervise()


def connect() -> None:
    """Write the Flower configuration with which `flwr` commands in this container reach the SuperLink."""
    settings = remote(f"{CONTROL_HOST}:{CONTROL_PORT}", AUTHORITY)
    write_connection(Path(os.environ["FLWR_HOME"]), CONNECTION, settings, OPERATOR_SECRET)


def starts() -> int:
    """Return how often the SuperLink was started since the volumes were made."""
    try:
        return int(STARTS.read_text())
    except (OSError, ValueError):  # not started yet, or the disk was full
        return 0


def _command(database: str | None = None) -> list[str]:
    with contextlib.suppress(OSError), replacing(STARTS) as file:
        file.write(str(starts() + 1).encode())
    if database is None:
        move_aside_if_corrupt(DATABASE, say, REGISTERED)
    command = commands.superlink(
        control=(socket.gethostbyname(os.environ.get(LISTEN) or CONTROL_HOST), CONTROL_PORT),
        fleet=("0.0.0.0", FLEET_PORT),
        keys=SERVER / "private",
        database=database or DATABASE,
        # ServerApps run in another container, so they survive a restart of this container.
        secret=EXECUTOR_SECRET,
    )
    return commands.patched(command, installed=False)


def _register() -> None:
    keys = [PUBLIC / f"{name}.pub" for name in client_names(int(os.environ["COHORT_CLIENTS"]))]
    command = registration_command(CONNECTION, keys, REGISTERED, installed=False)
    with REGISTERED.with_name(f"{REGISTERED.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another SuperLink may have the same volume
        subprocess.run(command, check=True, timeout=REGISTRATION_TIMEOUT)
