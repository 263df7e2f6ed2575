"""The SuperLink: the Fleet API for all, everything else on the control network alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from deploy.container import (
    AUTHORITY,
    CONTROL_HOST,
    CONTROL_PORT,
    EXECUTOR_SECRET,
    FLEET_PORT,
    PUBLIC,
    SERVER,
    STATE,
    client_names,
)
from deploy.container.supervisor import Supervisor

CONNECTION = "cluster"  # the SuperLink's name in Flower's config.toml
REGISTRATION_TIMEOUT = 60.0  # seconds


def main() -> int:
    """Keep it running; its clients' keys are registered whenever it has come up."""
    write_connection()
    return Supervisor(
        _command,
        ready_line="Uvicorn running on",
        on_ready=_register,
        hidden=lambda line: b"[uvicorn.access]" in line and b'" 200' in line,
    ).run()


def write_connection() -> None:
    """Let `flwr` commands in this container find the SuperLink."""
    home = Path(os.environ["FLWR_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{CONTROL_HOST}:{CONTROL_PORT}"\nroot-certificates = {json.dumps(str(AUTHORITY))}\n'
    )


def _command() -> list[str]:
    private = SERVER / "private"
    return [
        *(sys.executable, "-m", "deploy.flower.launch", "flower-superlink"),
        # The address that this name has here is the one in the control network: in that of the clients,
        # nobody listens on this port. Anybody who reaches it may submit runs and register keys.
        *("--host", socket.gethostbyname(CONTROL_HOST), "--port", str(CONTROL_PORT)),
        *("--fleet-api-address", f"0.0.0.0:{FLEET_PORT}"),
        *("--ssl-ca-certfile", str(private / "ca.crt"), "--ssl-certfile", str(private / "server.pem")),
        *("--ssl-keyfile", str(private / "server.key"), "--enable-supernode-auth"),
        *("--database", str(STATE / "superlink.db")),
        # ServerApps run in a container of their own, and so go on when this one is restarted.
        *("--isolation", "process", "--superexec-auth-secret-file", str(EXECUTOR_SECRET)),
    ]


def _register() -> None:
    names = client_names(int(os.environ["COHORT_CLIENTS"]))
    command = [sys.executable, "-m", "deploy.container.register", str(PUBLIC), str(STATE / "registered")]
    subprocess.run([*command, *names], check=True, timeout=REGISTRATION_TIMEOUT)
