"""The role `setup`, the first to start: checks settings, makes certificates and keys, hands out keys."""

import os
import secrets
import shutil
import signal
import socket
import sys
from pathlib import Path

from deploy.container import (
    CONTROL_HOST,
    DATABASE_PASSWORD,
    EXECUTOR_SECRET,
    FLEET_HOST,
    KEYS,
    LEASES,
    OPERATOR_SECRET,
    PUBLIC,
    READY,
    RESULTS,
    SERVER,
    client_names,
    leases,
)
from deploy.container.database import database_from_environment
from deploy.container.settings import trials_from_environment
from deploy.container.supervisor import say
from deploy.tls import certificates
from strategies.clients.printable import counted


def main() -> int:
    """Prepare the volumes, then hand out keys until the container is stopped.

    This role keeps running after the preparation, because Docker may stop all containers when one of them
    exits. It returns 2 if a setting or a volume is wrong.
    """
    try:
        trials = trials_from_environment(RESULTS)
        count = int(trials[0].run_config["num-clients"])
        names = [FLEET_HOST, CONTROL_HOST, *os.environ.get("COHORT_NAMES", "").split()]
        prepare(PUBLIC, SERVER / "private", KEYS / "private", names, count)
        write_secret(EXECUTOR_SECRET, secrets.token_bytes(32))
        write_secret(OPERATOR_SECRET, secrets.token_hex(32).encode())
        if database_from_environment():
            write_secret(DATABASE_PASSWORD, secrets.token_hex(32).encode())
        leases.prepare(LEASES, client_names(count))
        _check_writable(RESULTS)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except PermissionError as error:
        reason = f"{error.filename}: user {os.getuid()} (COHORT_USER) has no access"
        print(
            f"{reason}; set COHORT_USER to the owner of the volumes, or delete the volumes and thereby all "
            "keys and results: docker compose down -v",
            file=sys.stderr,
        )
        return 2
    say(f"{counted(count, 'client')}, {' and '.join(trial.name for trial in trials)}: everything is ready")
    READY.touch()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    leases.serve(LEASES, KEYS / "private", client_names(count))
    return 0  # not reached


def prepare(public: Path, server: Path, keys: Path, names: list[str], num_clients: int) -> None:
    """Make missing certificates and client keys, and copy their public parts.

    `public`: the folder that receives the authority's certificate and the clients' public keys. `server`: the
    folder that receives the SuperLink's certificate, its private key and the authority's key. `keys`: the
    folder that receives the clients' private keys. `names`: the SuperLink's host names and addresses. If the
    SuperLink's certificate lacks one of these names or expires soon, the same authority signs a new
    certificate, so clients and devices need no change.
    """
    certificate = server / "server.pem"  # the file that is written last
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


def write_secret(path: Path, secret: bytes) -> None:
    """Write a secret that the SuperLink shares with another container. Keep the file if it exists."""
    certificates.private_folder(path.parent)
    certificates.keep_private(path, secret)


def _copy(source: Path, target: Path) -> None:
    """Copy a file. Readers of the target never see an incomplete file."""
    new = target.with_name(f"{target.name}.new")
    shutil.copyfile(source, new)
    new.replace(target)


def _check_writable(folder: Path) -> None:
    probe = folder / f".{socket.gethostname()}"
    probe.touch()
    probe.unlink()
