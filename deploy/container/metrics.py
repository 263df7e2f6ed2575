"""The role `metrics`: offers metrics to Prometheus on a port that clients cannot reach.

`python -m deploy.container metrics healthy` is the health check of this role, which is healthy while the
metrics are collected.
"""

import signal
import sys
import urllib.error
import urllib.request

from deploy.container import (
    AUTHORITY,
    CONTROL_HOST,
    CONTROL_PORT,
    FLEET_HOST,
    FLEET_PORT,
    OPERATOR_SECRET,
    RESULTS,
)
from deploy.container.superlink import starts
from deploy.container.supervisor import say
from deploy.metrics.collector import Sources
from deploy.metrics.http_endpoint import PORT, serving
from deploy.metrics.readiness import SuperLink


def main() -> int:
    """Offer the metrics until the container is stopped. Return 2 if the port cannot be bound."""
    if sys.argv[2:] == ["healthy"]:
        return _check()
    superlink = SuperLink(
        control=f"{CONTROL_HOST}:{CONTROL_PORT}",
        # This container is not in the network `fleet`. In the network `control`, the SuperLink has the name
        # CONTROL_HOST.
        fleet=f"{CONTROL_HOST}:{FLEET_PORT}",
        fleet_name=FLEET_HOST,
        authority=AUTHORITY,
        secret=OPERATOR_SECRET,
    )
    sources = Sources(RESULTS, superlink, starts=lambda: {"superlink": starts()})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with serving(f"0.0.0.0:{PORT}", sources):
            say(f"metrics at port {PORT}; outside: docker compose port metrics {PORT}")
            while True:
                signal.pause()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def _check() -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=5):
            return 0
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
