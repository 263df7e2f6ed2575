"""The command lines of Flower's programs: the one place that knows their options. Standard library only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LAUNCHER = "deploy.flower.launch"  # the module that runs patched programs


def patched(command: Sequence[str], *, installed: bool = True) -> list[str]:
    """Return the command that runs one of Flower's programs with this project's patches.

    Parameters
    ----------
    command : Sequence[str]
        The program and its arguments.
    installed : bool
        Whether this project is installed. If not, it is imported from the working directory, and only then:
        another project's folder `deploy` must not be taken for this one's.
    """
    return [*python("-m", LAUNCHER, installed=installed), *command]


def python(*arguments: str, installed: bool = True) -> list[str]:
    """Return the command that runs this Python; see `patched` for `installed`."""
    return [sys.executable, *(("-P",) if installed else ()), *arguments]


def superlink(
    *,
    control: tuple[str, int],
    fleet: tuple[str, int],
    keys: Path,
    database: Path,
    secret: Path | None = None,
) -> list[str]:
    """Return the command of a SuperLink that admits registered SuperNodes only, over TLS.

    Parameters
    ----------
    control : tuple[str, int]
        The address and port for `flwr` and executors. Whoever reaches it may register keys and submit runs.
    fleet : tuple[str, int]
        The address and port for SuperNodes.
    keys : Path
        The folder with `ca.crt`, `server.pem` and `server.key`.
    database : Path
        Its file; made if it is missing.
    secret : Path | None
        The file with the secret that authenticates an executor of ServerApps (`superexec`). ServerApps then
        survive a restart of the SuperLink. (default: ServerApps are the SuperLink's own children)
    """
    return [
        *("flower-superlink", "--host", control[0], "--port", str(control[1])),
        *("--fleet-api-address", f"{fleet[0]}:{fleet[1]}"),
        *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.pem")),
        *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
        *("--database", str(database), "--disable-runtime-dependency-installation"),
        *(("--isolation", "process", "--superexec-auth-secret-file", str(secret)) if secret else ()),
    ]


def superexec(*, control: str, authority: Path, secret: Path) -> list[str]:
    """Return the command of an executor of ServerApps.

    Parameters
    ----------
    control : str
        HOST:PORT of the SuperLink's control API.
    authority : Path
        The certificate of the authority that signed the SuperLink's.
    secret : Path
        The file that the SuperLink was started with.
    """
    return [
        *("flower-superexec", "--runtime-api-address", control),
        *("--root-certificates", str(authority), "--superexec-auth-secret-file", str(secret)),
    ]


def supernode_options(*, fleet: str, authority: Path, key: Path, node_config: str) -> list[str]:
    """Return the options of a SuperNode.

    Parameters
    ----------
    fleet : str
        HOST:PORT of the SuperLink's Fleet API.
    authority : Path
        The certificate of the authority that signed the SuperLink's.
    key : Path
        The private key that authenticates the SuperNode.
    node_config : str
        The node config as `key=value ...`, or the path of its TOML file.
    """
    return [
        *("--superlink", fleet, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key), "--node-config", node_config),
    ]


def supernode(*arguments: str, host: str, port: int) -> list[str]:
    """Return the command of a SuperNode with these options, whose ClientApps reach it at `host`:`port`."""
    return ["flower-supernode", *arguments, "--host", host, "--port", str(port)]
