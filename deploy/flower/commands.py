"""Builds the command lines of Flower's SuperLink, SuperNode and executor.

Besides this module, only `deploy.flower.patches` knows the options of these programs. This module
imports the standard library only.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

LAUNCHER = "deploy.flower.launch"  # the module that runs Flower's programs with patches
APP_SERVER = "cohort-app-server"  # the program `deploy.flower.patches.apps.app_server`
APP_SERVERS = "COHORT_APP_SERVERS"  # environment variable; "0" turns app servers off
# Environment variables of a SuperLink that shares a PostgreSQL database: the name of its folder and machine,
# and the fingerprint of its authority (SHA-256 of `ca.crt`, in hexadecimal).
FRONT_END, AUTHORITY = "COHORT_FRONT_END", "COHORT_AUTHORITY"
# Three environment variables of Flower's programs. Each holds the path of a file or folder:
REGISTRY = "COHORT_REGISTRY"  # the server's folder; the SuperLink accepts the invitations in it
TRUST = "COHORT_TRUST"  # the file with the hash of the only bundle that a SuperNode runs
CONTROL_SECRET = "COHORT_CONTROL_SECRET"  # the file with the secret of a SuperLink's control API
INVITATION_HEADER = "cohort-invitation"  # the header in which a device sends the token of its invitation
NO_START = "flower-superlink does not start:"  # the last line of its output begins so if it says why
STOP_RUN = signal.SIGUSR1  # tells a ServerApp that somebody stops its run
# The beginning of the SuperLink's answer to a request whose time stamp does not fit.
WRONG_CLOCK = "Invalid timestamp: this device's clock"
# The words with which a SuperNode logs that it accepts or refuses a bundle, that a request has failed and is
# repeated, that it has succeeded after all, and that the server is none of ours.
ACCEPTED_BUNDLE, REFUSED_BUNDLE = "Accepted bundle", "Refused bundle"
CONNECTION_FAILED, CONNECTED_AGAIN = "Connection attempt failed", "Connection successful"
NO_GRPC = "does not speak gRPC as Cohort's servers do"


def patched(command: Sequence[str], *, installed: bool = True) -> list[str]:
    """Return the command that runs one of Flower's programs with this project's patches.

    `installed`: whether this project is installed in the environment of this Python. If not, Python imports
    this project from the working directory. If it is installed, Python does not import from the working
    directory, which may hold another project's folder `deploy`. (default: installed)
    """
    return [*python("-m", LAUNCHER, installed=installed), *command]


def python(*arguments: str, installed: bool = True) -> list[str]:
    """Return the command that runs this Python with some arguments. `patched` explains `installed`."""
    return [sys.executable, *(("-P",) if installed else ()), *arguments]


def superlink(
    *,
    control: tuple[str, int],
    fleet: tuple[str, int],
    keys: Path,
    database: Path | str,
    secret: Path | None = None,
) -> list[str]:
    """Return the command of a SuperLink that serves over TLS and admits only registered SuperNodes.

    `control`: the address and port of two APIs: the control API for `flwr`, which the variables of `guarded`
    protect, and the runtime API for executors. `fleet`: the address and port of the Fleet API, which
    SuperNodes use. `keys`: the folder with `ca.crt`, `server.pem` and `server.key`. `database`: the
    database's file, which the SuperLink makes if it is missing, or the address of a PostgreSQL database, for
    which it needs `shared`. `secret`: the file with the secret that authenticates an executor (`superexec`).
    The executor starts the ServerApps, so they survive a restart of the SuperLink. (default: the SuperLink
    starts the ServerApps itself)
    """
    return [
        *("flower-superlink", "--host", control[0], "--port", str(control[1])),
        *("--fleet-api-address", f"{fleet[0]}:{fleet[1]}"),
        *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.pem")),
        *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
        *("--database", str(database), "--disable-runtime-dependency-installation"),
        *(("--isolation", "process", "--superexec-auth-secret-file", str(secret)) if secret else ()),
    ]


def guarded(secret: Path, registry: Path | None = None) -> dict[str, str]:
    """Return the environment variables that make a SuperLink's control API demand a secret.

    With these variables, a SuperLink without `deploy.flower.patches.guards.local_apis` ends at once.

    `secret`: the file with the secret, which is one line of text. `flwr_cli.write_connection` gives `flwr`
    the secret. `registry`: the server's folder, which holds its clients and invitations
    (`deploy.flower.registered_clients`). (default: no device can join by invitation)
    """
    accepts = {} if registry is None else {REGISTRY: str(registry)}
    return {
        CONTROL_SECRET: str(secret),
        "FLWR_OIDC_ENABLED": "1",
        # Otherwise gRPC would log a line for each request whose headers are too long.
        "GRPC_VERBOSITY": "NONE",
        **accepts,
    }


def shared(home: str, authority: str) -> dict[str, str]:
    """Return the environment variables with which a SuperLink shares a PostgreSQL database with others.

    `home`: names its folder and machine. `authority`: the fingerprint of its authority's certificate.
    """
    return {FRONT_END: home, AUTHORITY: authority}


def superexec(*, control: str, authority: Path, secret: Path) -> list[str]:
    """Return the command of an executor: a program that starts ServerApps for a SuperLink."""
    return [
        *("flower-superexec", "--runtime-api-address", control),
        *("--root-certificates", str(authority), "--superexec-auth-secret-file", str(secret)),
    ]


def supernode_options(*, fleet: str, authority: Path, key: Path, node_config: str) -> list[str]:
    """Return the command-line options of a SuperNode."""
    return [
        *("--superlink", fleet, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key), "--node-config", node_config),
    ]


def supernode(*arguments: str, host: str, port: int) -> list[str]:
    """Return the command of a SuperNode."""
    return ["flower-supernode", *arguments, "--host", host, "--port", str(port)]
