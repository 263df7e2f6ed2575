"""What the containers of docker-compose.yml do; `python -m deploy.container ROLE` is their entry point.

The code that stays in memory beside a client is the standard library's: what needs more is imported by the
role that needs it.
"""

import os
from pathlib import Path

VOLUMES = Path(os.environ.get("COHORT_VOLUMES", "/volumes"))
PUBLIC = VOLUMES / "public"  # the authority's certificate and the clients' public keys
SERVER = VOLUMES / "server"  # the SuperLink's private key
EXECUTOR = VOLUMES / "executor"  # by which the SuperLink knows who may run ServerApps
KEYS = VOLUMES / "keys"  # the clients' private keys
LEASES = VOLUMES / "leases"  # which container is which client
STATE = VOLUMES / "state"  # the SuperLink's database
RESULTS = VOLUMES / "results"  # histories, models, figures
DATA = VOLUMES / "data"  # data sets, other than the digits

AUTHORITY = PUBLIC / "ca.crt"
EXECUTOR_SECRET = EXECUTOR / "private" / "secret"
READY = Path("/tmp/ready")  # there while the container does what it is for

# The networks' names for the SuperLink: clients reach the Fleet API and nothing else.
FLEET_HOST, FLEET_PORT = "superlink", 9092
CONTROL_HOST, CONTROL_PORT = "control", 8000


def client_names(count: int) -> list[str]:
    """Return the names of the cluster's own clients, padded so that they sort as numbers do."""
    width = max(2, len(str(count - 1)))
    return [f"client-{index:0{width}d}" for index in range(count)]
