"""The first role to run: checks the settings, then makes missing certificates and keys."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from pathlib import Path

from deploy.container import (
    CONTROL_HOST,
    EXECUTOR_SECRET,
    FLEET_HOST,
    KEYS,
    PUBLIC,
    READY,
    RESULTS,
    SERVER,
    client_names,
)
from deploy.container.settings import planned
from deploy.container.supervisor import say
from deploy.tls import certificates


def main() -> int:
    """Prepare the volumes, then sleep: with --exit-code-from, a container that exits stops all others."""
    try:
        trials = planned(RESULTS)
        count = int(trials[0].run_config["num-clients"])
        names = [FLEET_HOST, CONTROL_HOST, *os.environ.get("COHORT_NAMES", "").split()]
        prepare(PUBLIC, SERVER / "private", KEYS / "private", names, count)
        write_secret(EXECUTOR_SECRET)
        _check_writable(RESULTS)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except PermissionError as error:
        reason = f"{error.filename}: user {os.getuid()} (COHORT_USER) has no access"
        print(f"{reason}; `docker compose down -v` removes volumes of another user", file=sys.stderr)
        return 2
    say(f"{count} clients, {' and '.join(trial.name for trial in trials)}: everything is ready")
    READY.touch()
    os.execvp("sleep", ["sleep", "infinity"])
    return 0  # not reached


def prepare(public: Path, server: Path, keys: Path, names: list[str], num_clients: int) -> None:
    """Make the certificates and client keys that are missing.

    Parameters
    ----------
    public : Path
        Gets the authority's certificate and the clients' public keys.
    server : Path
        Gets the SuperLink's certificate and its private key.
    keys : Path
        Gets the clients' private keys.
    names : list[str]
        The SuperLink's names. If its certificate lacks one or expires soon, the authority signs a new
        certificate, which clients and devices accept as before.
    num_clients : int
        Number of clients in the cluster.

    Raises
    ------
    PermissionError
        If one of the folders belongs to another user.
    """
    certificate = server / "server.pem"  # the last to be written
    if not (certificate.exists() and (server / certificates.AUTHORITY_KEY).exists()):
        shutil.rmtree(server, ignore_errors=True)
        certificates.write_certificates(server, names, renewable=True)
        say(f"made a certificate for {', '.join(names)}")
    elif not certificates.is_valid_for(certificate, names, certificates.RENEWAL):
        certificates.renew_certificate(server, names)
        say(f"renewed the certificate, for {', '.join(names)}")
    _copy(server / "ca.crt", public / "ca.crt")
    for name in client_names(num_clients):
        if not (keys / name).exists():
            certificates.write_client_key(keys, name)
        _copy(keys / f"{name}.pub", public / f"{name}.pub")


def write_secret(path: Path) -> None:
    """Make the secret that the SuperLink shares with its executor, if it is missing."""
    certificates.private_folder(path.parent)
    if not path.exists():
        certificates.write_private(path, secrets.token_bytes(32))


def _copy(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    new = target.with_name(f"{target.name}.new")
    shutil.copyfile(source, new)
    new.replace(target)


def _check_writable(folder: Path) -> None:
    probe = folder / f".{socket.gethostname()}"
    probe.touch()
    probe.unlink()
