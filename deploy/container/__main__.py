"""`python -m deploy.container ROLE` runs a service of docker-compose.yml, or a command in its container."""

import importlib
import sys

ROLES = {
    "setup": "check the settings, make certificates and keys, and hand keys to clients",
    "superlink": "run the SuperLink, and register the clients' keys",
    "serverapp": "run the executor of ServerApps",
    "client": "run a SuperNode under a client name that no other container holds",
    "run": "submit the run, follow it to its end, draw the figure",
    "metrics": "offer metrics to Prometheus",
    "page": "show the runs in a browser, on a port of the operator's side only",
    "healthy": "check that the SuperLink is ready",
    "devices": "register, revoke or list devices outside the cluster (in the SuperLink's container)",
}


def main() -> int:
    """Run the role that the command line names. Return its exit code, or 2 if there is no such role."""
    if len(sys.argv) < 2 or sys.argv[1] not in ROLES:
        print("usage: python -m deploy.container ROLE", file=sys.stderr)
        for name, what in ROLES.items():
            print(f"  {name:<10} {what}", file=sys.stderr)
        return 2
    role = sys.argv[1]
    module = importlib.import_module(f"deploy.container.{role}")
    return int(module.main())


if __name__ == "__main__":
    sys.exit(main())
