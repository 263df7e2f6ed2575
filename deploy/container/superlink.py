"""The role `superlink`: runs the SuperLink. Clients reach only its Fleet API, over a network of their own.

If COHORT_DATABASE names a PostgreSQL database, several SuperLinks are one server behind a balancer. The
password is in a file, `DATABASE_PASSWORD`. It is on no command line and in no variable, where whoever may
inspect the container would see it.
"""

import contextlib
import fcntl
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from deploy.container import (
    AUTHORITY,
    CONTROL_HOST,
    CONTROL_PORT,
    DATABASE_PASSWORD,
    DEVICES,
    EXECUTOR_SECRET,
    FLEET_PORT,
    OPERATOR_SECRET,
    PUBLIC,
    SERVER,
    STATE,
    client_names,
)
from deploy.container.supervisor import ContainerSupervisor, say
from deploy.fleet.storage import postgres
from deploy.flower import commands
from deploy.flower.corrupt_database import move_aside_if_corrupt
from deploy.flower.flwr_cli import remote, write_connection
from deploy.flower.key_registration import registration_command
from deploy.hosting.server import Server
from deploy.tls.certificates import write_private
from strategies.checkpoint import replacing

CONNECTION = "cohort-cluster"  # the SuperLink's name in Flower's config.toml
REGISTRATION_TIMEOUT = 60.0  # seconds to register the clients' keys
# The environment variable with the address or name at which the SuperLink listens for the control API.
# (default: `CONTROL_HOST`, its own address in the control network, which clients cannot reach)
LISTEN = "COHORT_LISTEN"
VARIABLE = "COHORT_DATABASE"  # the environment variable with the address of the database
# The front ends of a cluster have one name: an executor gets the runs that were submitted to any of them.
FRONT_END = "cluster"
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


def database_from_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of the database; None if the environment names none.

    Raises ValueError if the address is not valid, or holds a password.

    `environment`: the environment variables, by name. (default: those of this process)
    """
    text = environment.get(VARIABLE, "").strip()
    try:
        return postgres.checked_url(text) if text else None
    except ValueError as error:
        raise ValueError(str(error).replace("database", VARIABLE, 1)) from None


def sharing() -> dict[str, str]:
    """Return the environment variables with which the SuperLink shares the database with others."""
    fingerprint = hashlib.sha256(AUTHORITY.read_bytes()).hexdigest()
    found = commands.shared(FRONT_END, fingerprint)
    if DATABASE_PASSWORD.exists():  # else the address names another way to log in, such as a certificate
        # libpq ignores a file that others than its owner may read, as Kubernetes makes them
        passwords = Path(tempfile.mkdtemp(), "pgpass")  # /tmp is in memory
        write_private(passwords, pgpass(DATABASE_PASSWORD.read_text().strip()).encode())
        found["PGPASSFILE"] = str(passwords)
    return found


def pgpass(password: str) -> str:
    r"""Return the content of libpq's password file with one password for all databases.

    Examples
    --------
    >>> pgpass("a:b\\c")
    '*:*:*:*:a\\:b\\\\c\n'
    """
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    return f"*:*:*:*:{escaped}\n"
