"""How `flwr` reaches a SuperLink, its environment, and its calls with a JSON answer."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from deploy.flower.config import write_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from deploy.flower.config import ConfigValue

TIMEOUT = 60.0  # seconds for a `flwr` command
UNAVAILABLE = "is unavailable"  # part of Flower's message when it cannot reach the SuperLink


def write_connection(home: Path, name: str, settings: Mapping[str, ConfigValue]) -> None:
    """Write Flower's config.toml with one connection, which is the default.

    Parameters
    ----------
    home : Path
        FLWR_HOME; made if it is missing.
    name : str
        The connection's name in `flwr` commands.
    settings : Mapping[str, ConfigValue]
        Its settings; see `remote` for those of a SuperLink.
    """
    home.mkdir(parents=True, exist_ok=True)
    header = f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\n'
    write_config(home / "config.toml", settings, header)


def remote(control: str, authority: Path) -> dict[str, ConfigValue]:
    """Return the settings of a connection to the control API at HOST:PORT over TLS."""
    return {"address": control, "root-certificates": str(authority)}


def flwr(*arguments: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a `flwr` command and return its JSON answer.

    Parameters
    ----------
    *arguments : str
        The command, with the name of the connection.
    environment : Mapping[str, str]
        Its PATH finds `flwr`, its FLWR_HOME holds the connection.

    Returns
    -------
    dict[str, Any]
        "success" is false if the command failed; "error-message" then gives the reason, and contains
        `UNAVAILABLE` if the SuperLink did not answer within `TIMEOUT`.
    """
    try:
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"success": False, "error-message": f"flwr {arguments[0]} {UNAVAILABLE}"}
    try:
        # `flwr supernode register` prints a sentence before the JSON.
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        message = (done.stderr or done.stdout).strip()
        return {"success": False, "error-message": f"flwr {arguments[0]}: {message}"}
    return {"success": False, "error-message": str(answer), **answer}


def flower_environment(path: list[Path], home: Path, temporary: Path) -> dict[str, str]:
    """Return an environment in which Flower's programs write into two folders only and send no telemetry.

    Parameters
    ----------
    path : list[Path]
        Folders that precede this environment's PATH.
    home, temporary : Path
        Flower's home, and the folder for temporary files.
    """
    here = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1", "localhost"]))
    return {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, path), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "TMPDIR": str(temporary),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "no_proxy": here,
        "NO_PROXY": here,
        # All clients share this machine's cores: together they are fastest with one thread each.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
