"""A server for devices: its folder, addresses, certificates and clients."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from deploy.device.default_folder import default_folder
from deploy.device.invitation import Invitation, check_name
from deploy.fleet.storage import postgres
from deploy.fleet.storage.shared_registry import SharedRegistry, connected
from deploy.flower.app_folder import app_folder
from deploy.flower.flwr_cli import flower_environment, flwr, remote, write_connection
from deploy.flower.registered_clients import DAY, Registry
from deploy.flower.submission import bundle_hash
from deploy.json_text import parse_json
from deploy.processes.ports import LOOPBACK
from deploy.tls import certificates
from deploy.tls.addresses import check_server
from deploy.tls.probe import REFUSED, unreachable
from strategies.checkpoint import replacing

CONNECTION = "cohort-server"  # the name of the SuperLink in Flower's config.toml
FILE = "server.json"  # the file with the settings of a server
DATABASE = "superlink.db"  # the SuperLink's database, unless it is in PostgreSQL
REVOKED = "revoked.json"  # the file with the names of revoked clients
DATA = "COHORT_DATA"  # the environment variable with the folder of the data
STRANGER = "node-"  # the prefix of names of nodes that are not registered here; no client's name has it
_NEVER = "N/A"  # how Flower writes a missing time
FLEET_PORT, CONTROL_PORT = 9092, 9093  # Flower's defaults
PAGE_PORT = 9094  # of the live page


class ServerError(RuntimeError):
    """The server cannot do what the operator asked. The message says why."""


def default_server_folder() -> Path:
    """Return the folder of a server for which the operator names none."""
    return default_folder("cohort-server")


@dataclass(frozen=True)
class Server:
    """A server's folder and addresses, and what the operator can do with the server.

    The folder holds:

    - `server.json`: the fields of this class;
    - `pki/`: certificates, keys and secrets;
    - `flwr/`: the Flower home of `flwr`, with the connection to the SuperLink and the control API's secret;
    - `programs/`: the Flower home of the other programs;
    - `clients/` and `invitations/`: see `deploy.flower.registered_clients`;
    - `revoked.json`: the names of revoked clients;
    - `superlink.db`: the SuperLink's database, unless it is in PostgreSQL;
    - `logs/`, `runs/` (or a link to the folder `Server.runs`), and `tmp/` for temporary files;
    - `apps/`: the working directory of ServerApps, for the files that an app writes by itself.
    """

    folder: Path
    """The server's folder."""
    hosts: tuple[str, ...]
    """Host names and IP addresses under which devices reach the server. Invitations hold the first."""
    port: int = FLEET_PORT
    """The port of the Fleet API, which devices use (1 to 65535)."""
    control_port: int = CONTROL_PORT
    """The port of the control API, which only this machine can reach (1 to 65535)."""
    listen: str = "0.0.0.0"
    """The IP address on which the Fleet API listens. (default: all addresses of this machine)"""
    metrics: str = ""
    """The address of the metrics for Prometheus, as PORT or HOST:PORT; "" if there are no metrics."""
    database: str = ""
    """The address of a PostgreSQL database; "" for `superlink.db` in the folder."""
    runs: str = ""
    """The folder of the runs, on shared storage, to which `runs` in the server's folder leads; "" if there is
    none, so that the server's folder holds the runs."""

    @property
    def address(self) -> str:
        """The first host and the port for devices, as host:port, or [address]:port for an IPv6 address."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def local_fleet(self) -> str:
        """The address at which this machine itself reaches the Fleet API, as host:port."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.listen, self.listen)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def control(self) -> str:
        """The address of the control API for `flwr` and the executor of ServerApps, as host:port."""
        return f"{LOOPBACK}:{self.control_port}"

    @property
    def authority(self) -> Path:
        """The file with the authority's certificate, with which devices verify the server."""
        return self.folder / "pki" / "ca.crt"

    @property
    def fingerprint(self) -> str | None:
        """The SHA-256 of the authority's certificate, in hexadecimal; None if there is none yet."""
        if not self.authority.exists():
            return None
        return hashlib.sha256(self.authority.read_bytes()).hexdigest()

    @property
    def home(self) -> str:
        """The name of this folder on this machine, among the front ends that share a database."""
        return f"{socket.gethostname()}:{self.folder}"

    @property
    def place(self) -> str:
        """The name of the folder of the runs, the same at all front ends that have this folder."""
        return self.runs or f"{self.home}/runs"

    @property
    def control_secret(self) -> Path:
        """The file with the secret that the control API demands."""
        return self.folder / "pki" / "control.secret"

    @property
    def page_secret(self) -> Path:
        """The file with the secret of the live page's address."""
        return self.folder / "pki" / "page.secret"

    @property
    def registry(self) -> Registry:
        """The registered and the invited clients."""
        return self.shared_registry or Registry(self.folder)

    @property
    def shared_registry(self) -> SharedRegistry | None:
        """The same of a server with PostgreSQL, else None."""
        return connected(self.folder, self.database) if self.database else None

    @property
    def addresses(self) -> list[str]:
        """The addresses at which devices reach the server: that of this front end first."""
        shared = self.shared_registry
        return list(dict.fromkeys([self.address, *(shared.addresses() if shared else ())]))

    @classmethod
    def load(cls, folder: Path) -> Server:
        """Return the server whose settings `save` wrote into a folder."""
        _check_owner(folder)
        try:
            saved = parse_json((folder / FILE).read_text())
            return cls(folder, **{**saved, "hosts": tuple(saved["hosts"])})
        except FileNotFoundError:
            raise ServerError(
                f"dir = {folder}: there is no server here; "
                f"`{_command(folder, 'up', '--host', 'NAME')}` starts one, and --dir names another folder"
            ) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ServerError(f"{folder / FILE}: cannot be read: {error}") from error

    def check_database(self) -> None:
        """Check whether this server can use its PostgreSQL database, if it has one. Nothing is changed."""
        if not self.database:
            return
        try:
            postgres.check(self.database, self.fingerprint)
        except postgres.DatabaseError as error:
            raise ServerError(str(error)) from error

    def save(self) -> str | None:
        """Write the server's settings, and those other files that are missing or out of date.

        Returns "made" or "renewed" if the server's certificate was made or renewed, None if it was kept.
        """
        try:
            check_server(self.address)
        except ValueError as error:
            raise ServerError(
                f"host = {self.hosts[0]!r}, port = {self.port}: must be a name or an address, and a port"
            ) from error
        keys = self.folder / "pki"
        certificates.private_folder(self.folder)
        done = None
        if not (keys / "server.pem").exists():
            try:
                certificates.write_certificates(keys, self.hosts, renewable=True)
            except FileExistsError as error:
                raise ServerError(
                    f"{error.filename}: exists without {keys / 'server.pem'}: the first start was "
                    f"interrupted, or files were lost. If no device has joined yet, delete {keys}"
                ) from None
            done = "made"
        elif not certificates.is_valid_for(keys / "server.pem", self.hosts, certificates.RENEWAL):
            if not (keys / certificates.AUTHORITY_KEY).exists():
                raise ServerError(
                    f"{keys / certificates.AUTHORITY_KEY}: is needed to renew the certificate; put it back"
                )
            certificates.renew_certificate(keys, self.hosts)
            done = "renewed"
        certificates.keep_private(keys / "executor.secret", secrets.token_bytes(32))
        certificates.keep_private(self.control_secret, secrets.token_hex(32).encode())
        (self.folder / "logs").mkdir(exist_ok=True)
        self._place_runs()
        self.prepare_clients()
        connection = remote(self.control, self.authority)
        write_connection(self.folder / "flwr", CONNECTION, connection, self.control_secret)
        settings = asdict(self)
        del settings["folder"]
        with replacing(self.folder / FILE) as file:
            file.write(json.dumps(settings, indent=1).encode())
        return done

    def check_runs(self) -> None:
        """Check whether the runs can be in the folder that the operator named. Nothing is changed."""
        runs = self.folder / "runs"
        if not self.runs:
            return
        if not self.database:
            raise ServerError(f"runs = {self.runs}: needs --database, with which front ends share runs")
        # Not made here: a folder that is missing may be storage that is not mounted.
        if not Path(self.runs).is_dir() or not os.access(self.runs, os.W_OK):
            raise ServerError(f"runs = {self.runs}: must be a folder in which this user may write")
        if self._linked and not runs.is_symlink() and runs.is_dir() and any(runs.iterdir()):
            raise ServerError(f"runs = {self.runs}: {runs} holds runs already; move them there first")

    def _place_runs(self) -> None:
        self.check_runs()
        runs = self.folder / "runs"
        if runs.is_symlink() and str(runs.readlink()) != self.runs:
            runs.unlink()
        if not self._linked:
            runs.mkdir(exist_ok=True)
        elif not runs.is_symlink():
            if runs.exists():
                runs.rmdir()
            runs.symlink_to(self.runs)

    @property
    def _linked(self) -> bool:
        """Whether `runs` in the server's folder is a link. It is none if storage is mounted there."""
        return self.runs not in ("", str(self.folder / "runs"))

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Inside a `with` block, keep other processes from starting this server."""
        import fcntl  # not at the top: Windows, where no server runs, lacks it

        _check_owner(self.folder)
        certificates.private_folder(self.folder)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ServerError(
                    f"dir = {self.folder}: the server of this folder is running already"
                ) from None
            yield
        finally:
            os.close(folder)

    def prepare_clients(self) -> None:
        """Make the folders and the file that `invite`, `register` and `revoke` need, if they are missing."""
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        self.registry.prepare()
        if not self.revoked_file.exists():
            self._write_revoked(set())

    def environment(self, home: str = "flwr") -> dict[str, str]:
        """Return the environment of Flower's programs.

        `home`: the name of the Flower home in the server's folder: "flwr" for `flwr`, which needs the control
        API's secret, and "programs" for other programs, which must not have it. (default: "flwr")
        """
        environment = flower_environment(self.folder / home, self.folder / "tmp")
        if data := environment.get(DATA):  # ServerApps have another working directory
            environment[DATA] = str(Path(data).absolute())
        return environment

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command for this server's SuperLink, and return the JSON answer of the command."""
        self.check_is_up()
        answer = flwr(*arguments, CONNECTION, environment=self.environment())
        if not answer["success"]:
            raise ServerError(str(answer["error-message"]).strip())
        return answer

    def command(self, *words: str) -> str:
        """Return the command line that gives this server a command, with --dir if it is needed."""
        return _command(self.folder, *words)

    def check_is_up(self) -> None:
        """Check that the SuperLink runs."""
        problem = unreachable(f"{certificates.LOOPBACK[1]}:{self.control_port}", self.authority, 1.0)
        if problem and problem.startswith(REFUSED):
            raise ServerError(f"the server on port {self.control_port} of this machine: {problem}")
        if problem:
            raise ServerError(
                f"nothing answers on port {self.control_port} of this machine; "
                f"is `{self.command('up')}` running?"
            )

    def bundle(self, app: Path | None = None) -> str:
        """Return the SHA-256 hash of the bundle that Flower builds from an app, in hexadecimal."""
        return bundle_hash(app or app_folder(), self.environment(), self.folder)

    def client(self, name: str) -> Path:
        """Return the path of a client's file. The file exists if the client is registered."""
        return self.registry.client(check_name(name))

    def register(self, name: str, public_key: str) -> str:
        """Register a public key under the name of a client, and return the client's node id.

        If the client is registered with this key already, nothing changes.
        """
        if (node := self.registry.node_of(self.client(name).stem, public_key)) is not None:
            return node
        self._check_free(name)
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
        self.registry.record(name, node, public_key)
        self._write_revoked(self._revoked() - {name})
        return node

    def invite(self, name: str, file: Path, days: float, bundle: str) -> None:
        """Write an invitation, a file with which one device can register its key under a client's name.

        `days`: the number of days until the invitation expires. `bundle`: the hash of the bundle of the only
        app that the device is to run, or "" for any app.
        """
        self._check_free(name)
        if file.exists():
            raise ServerError(f"out = {file}: must be a new file, but exists")
        token = self.registry.invite(name, days * DAY)
        expires = datetime.fromtimestamp(self.registry.invited()[name]).astimezone()
        try:
            servers, authority = ",".join(self.addresses), self.authority.read_text()
            Invitation(name, servers, authority, token, f"{expires:%F %T %z}", bundle).write(file)
        except BaseException:
            self.registry.withdraw(name)
            raise
        self._write_revoked(self._revoked() - {name})

    def _check_free(self, name: str) -> None:
        """Raise ServerError if a new client cannot get this name; remove expired invitations of the name."""
        if taken := self.registry.taken(check_name(name)):
            raise ServerError(f"name = {name}: {taken}; `{self.command('revoke', name)}` frees the name")
        self.registry.withdraw(name)

    def revoke(self, name: str) -> None:
        """Revoke a client: refuse its key from now on, close its connection, and withdraw its invitations.

        `name`: the client's name. For a node of the SuperLink that is not registered by this server:
        `STRANGER` and the node id.
        """
        if name.startswith(STRANGER) and name in self.states():
            self.flwr("supernode", "unregister", name.removeprefix(STRANGER))
            return
        file = self.client(name)
        withdrawn = self.registry.withdraw(name)
        if not file.exists():
            if node := self.clients().get(name):  # which another front end has registered
                self.flwr("supernode", "unregister", node)
                self._write_revoked(self._revoked() | {name})
                return
            if withdrawn:
                return
            known = ", ".join(self.clients()) or "none"
            raise ServerError(f"name = {name}: no such client; registered clients: {known}")
        if (node := self.registry.clients().get(name)) is None:
            raise ServerError(
                f"{file}: is damaged, so the client's node is not known; "
                f"`{self.command('list')}` shows it as "
                f"{STRANGER}ID: revoke that, and then delete the file"
            )
        if self.states()[name] not in ("unregistered", "unknown"):  # else an earlier call was interrupted
            self.flwr("supernode", "unregister", node)
        self._write_revoked(self._revoked() | {name})
        file.unlink()

    @property
    def revoked_file(self) -> Path:
        """The file with a JSON list of the revoked clients.

        A client that is invited or registered again is removed from the list.
        """
        return self.folder / REVOKED

    def _revoked(self) -> set[str]:
        if not self.revoked_file.exists():
            return set()
        try:
            return set(parse_json(self.revoked_file.read_text()))
        except (ValueError, TypeError) as error:
            raise ServerError(f"{self.revoked_file}: cannot be read: {error}") from None

    def _write_revoked(self, names: set[str]) -> None:
        with replacing(self.revoked_file) as file:
            file.write(json.dumps(sorted(names)).encode())

    def clients(self) -> dict[str, str]:
        """Return the node id of each registered client of all front ends, under the client's name."""
        clients = self.registry.clients()
        if shared := self.shared_registry:
            known = set(clients.values())
            others = {name: id for id, name in shared.names().items() if id not in known}
            clients = dict(sorted({**others, **clients}.items()))
        return clients

    def states(self) -> dict[str, str]:
        """Return the state of each client, under its name; `nodes` explains the states and the errors."""
        return {node.name: node.state for node in self.nodes()}

    def nodes(self) -> list[Node]:
        """Return the clients and nodes of this server.

        The order is:

        - the registered clients, with the state that the SuperLink reports: registered, online or offline;
          "unknown" if the SuperLink does not list the client;
        - the invited clients, with the time at which their invitation expires;
        - nodes of the SuperLink that are not registered by this server, under the name `STRANGER` and their
          node id.
        """
        listed = {str(node["node-id"]): node for node in self.flwr("supernode", "list")["nodes"]}
        clients = self.clients()
        found = [_node(name, id, listed.pop(id, {"status": "unknown"})) for name, id in clients.items()]
        for name, expires in self.registry.invited().items():
            if name not in clients:
                when = "until" if expires > time.time() else "expired:"
                found.append(Node(name, f"invited, {when} {datetime.fromtimestamp(expires):%F %R}"))
        for id, node in listed.items():
            if node["status"] != "unregistered":
                stranger = _node(f"{STRANGER}{id}", id, node)
                found.append(replace(stranger, state=f"{stranger.state}, not registered here"))
        return found


@dataclass(frozen=True)
class Node:
    """A registered or invited client, or a node that is not registered here."""

    name: str
    state: str
    node_id: str | None = None
    """The id that the SuperLink gave the node; None for an invited client."""
    last_seen: str | None = None
    """When the node was last online, in UTC; None if it was never online, or the SuperLink does not know."""


def _command(folder: Path, *words: str) -> str:
    option = () if folder == default_server_folder() else ("--dir", str(folder))
    return shlex.join(("cohort", "server", *words, *option))


def _check_owner(folder: Path) -> None:
    """Raise ServerError if a server's folder, or its folder of keys, belongs to another user."""
    for each in (folder, folder / "pki"):
        if why := certificates.foreign_owner(each):
            raise ServerError(f"dir = {each}: {why}")


def _node(name: str, id: str, listed: Mapping[str, Any]) -> Node:
    """Return a node from its entry in Flower's list."""
    state, seen = str(listed["status"]), str(listed.get("offline-at", _NEVER))
    if state == "online":
        seen = f"{datetime.now(UTC):%F %TZ}"
    return Node(name, state, id, None if seen == _NEVER else seen)
