"""The role `setup`, the first to start: checks settings, makes certificates and keys, hands out keys.

`python -m deploy.container setup secrets NAME...` makes the certificates and secrets of a cluster in
Kubernetes, and prints its Secrets. NAME is a name or address of the server. The files stay in the folder that
COHORT_VOLUMES names. The authority's key is only there, and not among the Secrets. When it runs again, it
prints the same Secrets, with new certificates if the old ones lack a name or expire within a month.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import sys
from base64 import b64encode
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from deploy.container import (
    AUTHORITY,
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
from deploy.container.settings import trials_from_environment
from deploy.container.superlink import database_from_environment
from deploy.container.supervisor import say
from deploy.tls import certificates
from strategies.clients.printable import counted

DATABASE_HOST = "database"  # the name of PostgreSQL in the networks of a cluster
_OF_SUPERLINK, _OF_DATABASE = SERVER / "private", DATABASE_PASSWORD.parent
# The files of each of the Secrets in Kubernetes.
SECRETS = {
    "cohort-authority": (AUTHORITY,),
    "cohort-superlink": tuple(_OF_SUPERLINK / name for name in ("ca.crt", "server.pem", "server.key")),
    "cohort-executor": (EXECUTOR_SECRET,),
    "cohort-operator": (OPERATOR_SECRET,),
    "cohort-database": (DATABASE_PASSWORD, _OF_DATABASE / "server.pem", _OF_DATABASE / "server.key"),
}


def main() -> int:
    """Prepare the volumes, then hand out keys until the container is stopped.

    This role keeps running after the preparation, because Docker may stop all containers when one of them
    exits. It returns 2 if a setting or a volume is wrong.
    """
    if sys.argv[2:3] == ["secrets"]:
        return _print_secrets(sys.argv[3:])
    try:
        trials = trials_from_environment(RESULTS)
        count = int(trials[0].run_config["num-clients"])
        names = [FLEET_HOST, CONTROL_HOST, *os.environ.get("COHORT_NAMES", "").split()]
        prepare(PUBLIC, _OF_SUPERLINK, KEYS / "private", names, count)
        _write_secrets(database=database_from_environment() is not None)
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


def _print_secrets(names: list[str]) -> int:
    if not names:
        print("usage: python -m deploy.container setup secrets NAME...", file=sys.stderr)
        return 2
    try:
        PUBLIC.mkdir(parents=True, exist_ok=True)
        with redirect_stdout(sys.stderr):  # the output is for `kubectl apply -f -`
            prepare(PUBLIC, _OF_SUPERLINK, KEYS, [FLEET_HOST, CONTROL_HOST, *names], 0)
        _write_secrets(database=True)
        certificate = _OF_DATABASE / "server.pem"
        if not certificate.exists() or not certificates.is_valid_for(
            certificate, [DATABASE_HOST], certificates.RENEWAL
        ):
            certificates.renew_certificate(_OF_SUPERLINK, [DATABASE_HOST], _OF_DATABASE)
        manifests = [_secret(name, files) for name, files in SECRETS.items()]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=1))
    return 0


def _secret(name: str, files: tuple[Path, ...]) -> dict[str, Any]:
    data = {file.name: b64encode(file.read_bytes()).decode() for file in files}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def _write_secrets(*, database: bool) -> None:
    write_secret(EXECUTOR_SECRET, secrets.token_bytes(32))
    write_secret(OPERATOR_SECRET, secrets.token_hex(32).encode())
    if database:
        write_secret(DATABASE_PASSWORD, secrets.token_hex(32).encode())


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
