"""The SuperLink's health check: passes if the SuperLink is ready and both of its ports answer over TLS."""

import sys

from deploy.container import AUTHORITY, CONTROL_HOST, CONTROL_PORT, FLEET_HOST, FLEET_PORT, READY
from deploy.tls.probe import unreachable

TIMEOUT = 3.0  # seconds for each port to answer


def main() -> int:
    """Return 0 if the SuperLink is healthy; else print the problem and return 1."""
    if not READY.exists():
        print("not ready yet", file=sys.stderr)
        return 1
    for server in (f"{CONTROL_HOST}:{CONTROL_PORT}", f"{FLEET_HOST}:{FLEET_PORT}"):
        if problem := unreachable(server, AUTHORITY, TIMEOUT):
            print(f"{server}: {problem}", file=sys.stderr)
            return 1
    return 0
