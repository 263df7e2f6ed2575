"""A server's folder: addresses, certificates and registered clients."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from deploy.device.invitation import Invitation, check_name, check_server
from deploy.flower.flwr_cli import flower_environment, flwr, remote, write_connection
from deploy.processes.ports import LOOPBACK
from deploy.tls import certificates
from deploy.tls.reach import serves
from strategies.checkpoint import replacing

CONNECTION = "cohort"  # the name of the SuperLink in Flower's config.toml
FILE = "server.json"
REVOKED = "revoked.json"
FLEET_PORT, CONTROL_PORT = 9092, 9093  # Flower's defaults


class ServerError(RuntimeError):
    """The server cannot do what was asked; the message says why."""


@dataclass(frozen=True)
class Server:
    """A server's folder and addresses.

    The folder holds `server.json` (this), `pki/` (certificates and keys), `flwr/` (Flower's home, with the
    connection to the SuperLink), `clients/` (a file for each registered client), the SuperLink's database,
    the logs and the folders of the runs.
    """

    folder: Path
    hosts: tuple[str, ...]
    """Names and addresses under which devices reach the server; invitations contain the first."""
    port: int = FLEET_PORT
    """Port of the Fleet API."""
    control_port: int = CONTROL_PORT
    """Port of the API for `flwr`, on this machine only."""
    listen: str = "0.0.0.0"
    """Address on which the Fleet API listens."""

    @property
    def address(self) -> str:
        """The address for devices, as host:port."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def control(self) -> str:
        """The address for `flwr` and the executor of ServerApps, as host:port."""
        return f"{LOOPBACK}:{self.control_port}"

    @property
    def authority(self) -> Path:
        """The certificate of the authority, with which devices verify the server."""
        return self.folder / "pki" / "ca.crt"

    @classmethod
    def load(cls, folder: Path) -> Server:
        """Read what `save` wrote.

        Raises
        ------
        ServerError
            If the folder holds no server.
        """
        try:
            saved = json.loads((folder / FILE).read_text())
            return cls(folder, **{**saved, "hosts": tuple(saved["hosts"])})
        except FileNotFoundError:
            raise ServerError(
                f"dir = {folder}: there is no server here; `cohort server up --host NAME` starts one"
            ) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ServerError(f"{folder / FILE}: cannot be read: {error}") from error

    def save(self) -> str | None:
        """Write the files that are missing or out of date; return "made" or "renewed" for a new certificate.

        Raises
        ------
        ServerError
            If the host or the port is invalid.
        """
        try:
            check_server(self.address)
        except ValueError as error:
            raise ServerError(f"host = {self.hosts[0]!r}: must be a name or an address") from error
        keys = self.folder / "pki"
        certificates.private_folder(self.folder)
        done = None
        if not (keys / "server.pem").exists():
            certificates.write_certificates(keys, self.hosts, renewable=True)
            done = "made"
        elif not certificates.is_valid_for(keys / "server.pem", self.hosts, certificates.RENEWAL):
            certificates.renew_certificate(keys, self.hosts)
            done = "renewed"
        if not (keys / "executor.secret").exists():
            certificates.write_private(keys / "executor.secret", secrets.token_bytes(32))
        for name in ("logs", "runs"):
            (self.folder / name).mkdir(exist_ok=True)
        self.prepare_clients()
        write_connection(self.folder / "flwr", CONNECTION, remote(self.control, self.authority))
        settings = asdict(self)
        del settings["folder"]
        with replacing(self.folder / FILE) as file:
            file.write(json.dumps(settings, indent=1).encode())
        return done

    def prepare_clients(self) -> None:
        """Make the folders and the file that `register` and `revoke` need."""
        for name in ("clients", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not self.revoked_file.exists():
            self._write_revoked(set())

    def environment(self) -> dict[str, str]:
        """Return the environment of Flower's programs."""
        programs = [Path(sys.executable).parent]
        return flower_environment(programs, self.folder / "flwr", self.folder / "tmp")

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command against the SuperLink and return its answer.

        Raises
        ------
        ServerError
            If the SuperLink does not run, or refuses.
        """
        self.check_is_up()
        answer = flwr(*arguments, CONNECTION, environment=self.environment())
        if not answer["success"]:
            raise ServerError(str(answer["error-message"]).strip())
        return answer

    def check_is_up(self) -> None:
        """Check that the SuperLink runs.

        Raises
        ------
        ServerError
            If it does not.
        """
        if not serves(self.control_port, self.authority):
            raise ServerError(
                f"nothing answers on port {self.control_port} of this machine; is `cohort server up` running?"
            )

    def client(self, name: str) -> Path:
        """Return the file of a client, which exists if the client is registered."""
        return self.folder / "clients" / f"{check_name(name)}.json"

    def register(self, name: str, public_key: str) -> str:
        """Register a public key as the client `name`; return the node id.

        Raises
        ------
        ServerError
            If the name or the key is in use or invalid, or the SuperLink does not run.
        """
        file = self.client(name)
        if file.exists():
            raise ServerError(
                f"name = {name}: registered already; `cohort server revoke {name}` frees the name"
            )
        try:
            serialization.load_ssh_public_key(public_key.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ServerError(
                f"key = {public_key!r}: must be the public key that the device printed: {error}"
            ) from None
        key = self.folder / "tmp" / f"{name}.pub"
        key.write_text(f"{public_key}\n")
        try:
            node = str(self.flwr("supernode", "register", "--name", name, str(key))["node-id"])
        finally:
            key.unlink()
        client = {
            "node-id": node,
            "public-key": public_key,
            "registered": f"{datetime.now().astimezone():%F %T %z}",
        }
        file.write_text(json.dumps(client, indent=1))
        self._write_revoked(self._revoked() - {name})
        return node

    def invite(self, name: str, file: Path) -> None:
        """Make and register a key for the client `name`, and write the invitation that holds it.

        Raises
        ------
        ServerError
            As `register`, or if the file exists.
        """
        if file.exists():
            raise ServerError(f"out = {file}: must be a new file, but exists")
        key = certificates.write_client_key(self.folder / "tmp", f"{check_name(name)}-{secrets.token_hex(4)}")
        public = key.with_name(f"{key.name}.pub")
        try:
            # Written before the name is registered: a wrong path must not use up the name.
            Invitation(name, self.address, self.authority.read_text(), key.read_text()).write(file)
            try:
                self.register(name, public.read_text().strip())
            except BaseException:
                file.unlink()
                raise
        finally:
            key.unlink()
            public.unlink()

    def revoke(self, name: str) -> None:
        """Remove a client: its key is no longer accepted, and its connection is closed.

        Raises
        ------
        ServerError
            If there is no such client, or the SuperLink does not run.
        """
        file = self.client(name)
        if not file.exists():
            known = ", ".join(sorted(each.stem for each in file.parent.glob("*.json"))) or "none"
            raise ServerError(f"name = {name}: must be a registered client: {known}")
        self.flwr("supernode", "unregister", json.loads(file.read_text())["node-id"])
        self._write_revoked(self._revoked() | {name})
        file.unlink()

    @property
    def revoked_file(self) -> Path:
        """A JSON list of the revoked clients that have not been registered again."""
        return self.folder / REVOKED

    def _revoked(self) -> set[str]:
        return set(json.loads(self.revoked_file.read_text())) if self.revoked_file.exists() else set()

    def _write_revoked(self, names: set[str]) -> None:
        with replacing(self.revoked_file) as file:
            file.write(json.dumps(sorted(names)).encode())

    def states(self) -> dict[str, str]:
        """Return the SuperLink's state of each registered client: registered, online or offline."""
        states = {
            str(node["node-id"]): str(node["status"]) for node in self.flwr("supernode", "list")["nodes"]
        }
        files = sorted((self.folder / "clients").glob("*.json"))
        return {file.stem: states.get(json.loads(file.read_text())["node-id"], "unknown") for file in files}
