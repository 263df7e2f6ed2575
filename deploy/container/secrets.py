"""The role `secrets`: makes the certificates and secrets of a cluster in Kubernetes, and prints its Secrets.

The files stay in the folder that COHORT_VOLUMES names. The authority's key is only there, and not among the
Secrets. When the role runs again, it prints the same Secrets, with new certificates if the old ones lack a
name or expire within a month.
"""

import json
import secrets
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
    OPERATOR_SECRET,
    PUBLIC,
    SERVER,
)
from deploy.container.setup import prepare, write_secret
from deploy.tls import certificates

DATABASE_HOST = "database"  # the name of PostgreSQL's Service
USAGE = "usage: python -m deploy.container secrets NAME...    (the names and addresses that devices use)"
_OWN, _OF_DATABASE = SERVER / "private", DATABASE_PASSWORD.parent
# The files of each Secret.
SECRETS = {
    "authority": (AUTHORITY,),
    "superlink": tuple(_OWN / name for name in ("ca.crt", "server.pem", "server.key")),
    "executor": (EXECUTOR_SECRET,),
    "operator": (OPERATOR_SECRET,),
    "database": (DATABASE_PASSWORD, _OF_DATABASE / "server.pem", _OF_DATABASE / "server.key"),
}


def main() -> int:
    """Make what is missing, and print the Secrets as JSON. Return 2 if that is not possible."""
    names = sys.argv[2:]
    if not names:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        with redirect_stdout(sys.stderr):  # the output is for `kubectl apply -f -`
            _make(names)
        manifests = [_secret(name, files) for name, files in SECRETS.items()]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=1))
    return 0


def _make(names: list[str]) -> None:
    PUBLIC.mkdir(parents=True, exist_ok=True)
    prepare(PUBLIC, _OWN, KEYS / "private", [FLEET_HOST, CONTROL_HOST, *names], 0)
    write_secret(EXECUTOR_SECRET, secrets.token_bytes(32))
    write_secret(OPERATOR_SECRET, secrets.token_hex(32).encode())
    write_secret(DATABASE_PASSWORD, secrets.token_hex(32).encode())
    certificate = _OF_DATABASE / "server.pem"
    if not (
        certificate.exists() and certificates.is_valid_for(certificate, [DATABASE_HOST], certificates.RENEWAL)
    ):
        certificates.renew_certificate(_OWN, [DATABASE_HOST], _OF_DATABASE)


def _secret(name: str, files: tuple[Path, ...]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"cohort-{name}"},
        "data": {file.name: b64encode(file.read_bytes()).decode() for file in files},
    }
