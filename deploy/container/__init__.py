"""The roles of the containers, in docker-compose.yml and in Kubernetes: `python -m deploy.container ROLE`.

A client container must take little memory, so the role `client` imports only the standard library and
cryptography. A role that needs other packages imports them in the module of the role.
"""

import os
from pathlib import Path

VOLUMES = Path(os.environ.get("COHORT_VOLUMES", "/volumes"))
PUBLIC = VOLUMES / "public"  # the authority's certificate and the clients' public keys
SERVER = VOLUMES / "server"  # the private keys of the SuperLink and of the authority, and their certificates
EXECUTOR = VOLUMES / "executor"  # the secret with which the executor (see `serverapp`) authenticates itself
OPERATOR = VOLUMES / "operator"  # the secret that the SuperLink's control API demands
KEYS = VOLUMES / "keys"  # the clients' private keys, which only `setup` can read
LEASES = VOLUMES / "leases"  # a file for each client name (see `leases`), and the socket of the key service
STATE = VOLUMES / "state"  # the SuperLink's SQLite database, and the names of the clients that it knows
DATABASE = VOLUMES / "database"  # the password of the PostgreSQL database that several SuperLinks share
DEVICES = VOLUMES / "devices"  # the registered and the revoked devices
PAGE = VOLUMES / "page"  # the secret of the live page's address
RESULTS = VOLUMES / "results"  # histories, models, figures
DATA = VOLUMES / "data"  # data sets other than the digits

AUTHORITY = PUBLIC / "ca.crt"
EXECUTOR_SECRET = EXECUTOR / "private" / "secret"
OPERATOR_SECRET = OPERATOR / "private" / "secret"
DATABASE_PASSWORD = DATABASE / "private" / "password"
READY = Path("/tmp/ready")  # this file exists while the container is ready

# The SuperLink's host name and port: for the Fleet API in the network `fleet` of docker-compose.yml, and for
# the control API in the network `control`. Clients are only in the network `fleet`, so they reach no other
# API.
FLEET_HOST, FLEET_PORT = "superlink", 9092
CONTROL_HOST, CONTROL_PORT = "control", 8000


def client_names(count: int) -> list[str]:
    """Return the names of the clients in containers: "client-00", "client-01" and so on.

    The numbers have leading zeros, so that the names sort in the order of the numbers.
    """
    width = max(2, len(str(count - 1)))
    return [f"client-{index:0{width}d}" for index in range(count)]
