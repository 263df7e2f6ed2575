"""Runs `flwr` commands: connects them to a SuperLink, sets their environment, reads their JSON answers."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from deploy.flower.commands import LAUNCHER
from deploy.flower.config import write_config
from deploy.flower.fork_client import ForkServer, Gone, start_fork_server
from deploy.json_text import parse_json
from deploy.processes.groups import POLL_INTERVAL, wait_until
from deploy.tls.certificates import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploy.flower.config import ConfigValue

TIMEOUT = 60.0  # seconds after which a `flwr` command is killed
UNAVAILABLE = "is unavailable"  # part of Flower's error message about a SuperLink that it cannot reach


def write_connection(
    home: Path, name: str, settings: Mapping[str, ConfigValue], secret: Path | None = None
) -> None:
    """Write Flower's config.toml with one connection, which is the default connection.

    `home`: the folder that FLWR_HOME names. It is made if it is missing. `name`: the connection's name in
    `flwr` commands. `settings`: the connection's settings. `remote` returns the settings of a connection to a
    SuperLink. `secret`: the file with the secret that the SuperLink demands (`commands.guarded`). The secret
    is written into Flower's credentials.yaml (mode 0600) as an access token, which `flwr` then sends.
    (default: the SuperLink demands no secret)
    """
    home.mkdir(parents=True, exist_ok=True)
    header = f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\n'
    write_config(home / "config.toml", settings, header)
    if secret is not None:
        credentials = {
            "authn-type": "oidc",
            "oidc-access-token": secret.read_text().strip(),
            "oidc-refresh-token": "none",
        }
        account = f"flower.account-auth.{settings['address']}"
        encoded = {
            f"{account}.{key}": base64.b64encode(value.encode()).decode()
            for key, value in credentials.items()
        }
        new = home / "credentials.new"
        new.unlink(missing_ok=True)  # left by an interrupted call
        # Flower reads the file as YAML. JSON is valid YAML.
        write_private(new, json.dumps(encoded).encode())
        new.replace(home / "credentials.yaml")


def remote(control: str, authority: Path) -> dict[str, ConfigValue]:
    """Return the settings of a connection to the control API at HOST:PORT over TLS."""
    return {"address": control, "root-certificates": str(authority)}


def flwr(*arguments: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a `flwr` command in a new process that imports Flower, and return its answer; see `Flwr.ask`."""
    return Flwr(environment).ask(*arguments)


class Flwr:
    """Runs `flwr` commands.

    Each command imports Flower, which takes a second of CPU time. After a call of `fork`, commands no longer
    import Flower.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._server: ForkServer | None = None
        self._gone = False  # whether the fork server has ended by itself

    def fork(self) -> None:
        """Start a fork server, which imports Flower once and forks all later commands (not on Windows)."""
        if sys.platform != "win32":
            self._server = start_fork_server(LAUNCHER, ("flwr",), self._environment)

    def close(self) -> None:
        """End the fork server. Later commands import Flower again."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def start(self, *arguments: str, output: int, errors: int) -> subprocess.Popen[bytes] | _Forked:
        """Start a `flwr` command, and return its process."""
        command = ("flwr", *arguments)
        if self._server is not None and not self._gone:
            try:
                return _Forked(
                    self._server,
                    self._server.run(
                        command, environment=self._environment, output=(output, errors), own_session=True
                    ),
                )
            except Gone:
                self._gone = True
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=self._environment
        )

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command and return its JSON answer.

        Returns the answer. If the command failed, "success" is false and "error-message" is the reason. The
        reason contains `UNAVAILABLE` if `flwr` could not reach the SuperLink or did not end within `TIMEOUT`.
        """
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            started = self.start(
                *arguments, "--format", "json", output=output.fileno(), errors=errors.fileno()
            )
            try:
                if not wait_until(lambda: started.poll() is not None, TIMEOUT):
                    return {"success": False, "error-message": f"flwr {arguments[0]} {UNAVAILABLE}"}
            finally:
                started.kill()
                started.wait()
            said, complaint = (_content(file) for file in (output, errors))
        try:
            # `flwr supernode register` prints a sentence before the JSON.
            answer: dict[str, Any] = parse_json(said[said.index("{") :])
        except ValueError:
            message = (complaint or said).strip()
            return {"success": False, "error-message": f"flwr {arguments[0]}: {message}"}
        return {"success": False, "error-message": str(answer), **answer}


class _Forked:
    """The process of a command that a fork server has forked."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self._pid = server, pid

    def poll(self) -> int | None:
        return self._server.returncode(self._pid)

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the process has ended since `poll`
                os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(POLL_INTERVAL)
        return code


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")


def flower_environment(home: Path, temporary: Path) -> dict[str, str]:
    """Return an environment in which Flower's programs write into two folders only and send no telemetry.

    Connections on this machine use no proxy. A process uses one thread for numerical work unless
    OMP_NUM_THREADS is set. Variables that force colours, as Jupyter sets them, are left out, because colours
    would spoil the JSON that `flwr` prints. All other variables are copied from this process.

    The PATH begins with the folder of this Python's programs, which it lacks if the virtual environment is
    not active: Flower finds its programs by the PATH. `home`, `temporary`: the two folders.
    """
    here = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1", "localhost"]))
    return {
        **{name: value for name, value in os.environ.items() if name not in _COLOURS},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "TMPDIR": str(temporary),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "no_proxy": here,
        "NO_PROXY": here,
        # All clients share the cores of this machine. They are fastest in total if each has one thread.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
