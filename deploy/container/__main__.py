"""`python -m deploy.container ROLE`: what a service of docker-compose.yml does."""

from __future__ import annotations

import importlib
import sys

ROLES = {
    "setup": "settings checked; certificates and keys made; then it sleeps",
    "superlink": "the SuperLink, once it is up with the clients' keys registered",
    "serverapp": "the executor of ServerApps",
    "client": "a SuperNode, as one of the clients that no other container is",
    "run": "submits the run, follows it to its end, draws the figure",
    "healthy": "the SuperLink's health check",
    "devices": "register, revoke and list devices from outside; in the SuperLink's container",
}


def main() -> int:
    """Do what the command line says; return the exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in ROLES:
        print("usage: python -m deploy.container ROLE", file=sys.stderr)
        for name, what in ROLES.items():
            print(f"  {name:<10} {what}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"deploy.container.{sys.argv[1]}")
    return int(module.main())


if __name__ == "__main__":
    sys.exit(main())
