"""The SuperLink: the Fleet API for clients, and all other APIs on the control network only."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from deploy.container import (
    AUTHORITY,
    CONTROL_HOST,
    CONTROL_PORT,
    DEVICES,
    EXECUTOR_SECRET,
    FLEET_PORT,
    PUBLIC,
    SERVER,
    STATE,
    client_names,
)
from deploy.container.supervisor import ContainerSupervisor
from deploy.flower import commands
from deploy.flower.flwr_cli import remote, write_connection
from deploy.flower.registration import registration_command
from deploy.hosting.server import Server

CONNECTION = "cluster"  # the SuperLink's name in Flower's config.toml
REGISTRATION_TIMEOUT = 60.0  # seconds


def main() -> int:
    """Keep the SuperLink running; the clients' keys are registered after each start."""
    connect()
    Server(DEVICES, hosts=()).prepare_clients()
    return ContainerSupervisor(
        _command,
        ready_line="Uvicorn running on",
        on_ready=_register,
        hidden=lambda line: b"[uvicorn.access]" in line and b'" 200' in line,
    ).supervise()


def connect() -> None:
    """Let `flwr` commands in this container find the SuperLink."""
    settings = remote(f"{CONTROL_HOST}:{CONTROL_PORT}", AUTHORITY)
    write_connection(Path(os.environ["FLWR_HOME"]), CONNECTION, settings)


def _command() -> list[str]:
    command = commands.superlink(
        # The address of the control network only: whoever reaches this port may submit runs and register
        # keys, so it must not listen in the clients' network.
        control=(socket.gethostbyname(CONTROL_HOST), CONTROL_PORT),
        fleet=("0.0.0.0", FLEET_PORT),
        keys=SERVER / "private",
        database=STATE / "superlink.db",
        # ServerApps run in another container, and so survive a restart of this one.
        secret=EXECUTOR_SECRET,
    )
    return commands.patched(command, installed=False)


def _register() -> None:
    keys = [PUBLIC / f"{name}.pub" for name in client_names(int(os.environ["COHORT_CLIENTS"]))]
    command = registration_command(CONNECTION, keys, STATE / "registered", installed=False)
    subprocess.run(command, check=True, timeout=REGISTRATION_TIMEOUT)
