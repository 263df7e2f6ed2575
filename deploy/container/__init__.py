"""The roles of the containers in docker-compose.yml; `python -m deploy.container ROLE` is the entry point.

What stays in memory beside a client uses the standard library only; other packages are imported by the roles
that need them.
"""

import os
from pathlib import Path

VOLUMES = Path(os.environ.get("COHORT_VOLUMES", "/volumes"))
PUBLIC = VOLUMES / "public"  # the authority's certificate and the clients' public keys
SERVER = VOLUMES / "server"  # the SuperLink's private key
EXECUTOR = VOLUMES / "executor"  # the secret that lets the executor run ServerApps
KEYS = VOLUMES / "keys"  # the clients' private keys
LEASES = VOLUMES / "leases"  # the client name that each container holds
STATE = VOLUMES / "state"  # the SuperLink's database
DEVICES = VOLUMES / "devices"  # the registered and the revoked devices
RESULTS = VOLUMES / "results"  # histories, models, figures
DATA = VOLUMES / "data"  # data sets other than the digits

AUTHORITY = PUBLIC / "ca.crt"
EXECUTOR_SECRET = EXECUTOR / "private" / "secret"
READY = Path("/tmp/ready")  # exists while the container is ready

# Names of the SuperLink in the two networks: clients reach the Fleet API and nothing else.
FLEET_HOST, FLEET_PORT = "superlink", 9092
CONTROL_HOST, CONTROL_PORT = "control", 8000


def client_names(count: int) -> list[str]:
    """Return the names of the cluster's own clients, padded so that they sort as numbers do."""
    width = max(2, len(str(count - 1)))
    return [f"client-{index:0{width}d}" for index in range(count)]
