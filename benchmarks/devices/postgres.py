"""A PostgreSQL of this machine's installation, with its data in a folder of its own."""

from __future__ import annotations

import importlib
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from deploy.processes.groups import wait_until
from deploy.processes.ports import LOOPBACK, free_ports

STATISTICS = {"shared_preload_libraries": "pg_stat_statements", "max_connections": "200"}
START = 30.0  # s until it answers


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, or None if it is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


class Postgres:
    """A database server, which runs for as long as the `with` block, or until `end`.

    PostgreSQL refuses root: there it runs as `nobody`, who could not enter a private folder. Without a
    password, only who may enter its folder reaches it, through a socket. Over TCP (`tcp`), a password is
    needed.

    `settings`: of PostgreSQL, beside its defaults. `tcp`: whether it also listens on this machine's loopback.
    `rules`: the first lines of pg_hba.conf.
    Raises RuntimeError if PostgreSQL is not installed, or does not start.
    """

    def __init__(self, settings: Mapping[str, str], *, tcp: bool = False, rules: str = "") -> None:
        found = programs()
        if found is None:
            raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
        self._programs = found
        self.folder = Path(tempfile.mkdtemp(prefix="cohort-pg-", dir="/tmp"))  # a socket's path is short
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self.data = self.folder / "data"
        self._port = free_ports(1)[0]
        listen = {"listen_addresses": LOOPBACK if tcp else "", "port": str(self._port)}
        self._options = [part for each in {**settings, **listen}.items() for part in ("-c", "=".join(each))]
        password = secrets.token_hex(16)
        given, self._passfile = self.folder / "password", self.folder / "pgpass"
        given.write_text(password)
        self._passfile.write_text(f"*:*:*:cohort:{password}")
        self._passfile.chmod(0o600)
        self.run(
            *("initdb", "-D", self.data, "-U", "cohort", "--no-sync", "-E", "UTF8"),
            *("--auth-local", "trust", "--auth-host", "scram-sha-256", "--pwfile", given),
        )
        known = self.data / "pg_hba.conf"
        known.write_text(rules + known.read_text())
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self, name: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs as its user, and wait for its end."""
        command = [self._programs / name, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._user)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command: list[str | Path] = [
            self._programs / "postgres",
            "-D",
            self.data,
            "-k",
            self.folder,
            *self._options,
        ]
        log = self.folder / "log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=self.folder, **self._user
            )
        if not wait_until(self._answers, START):
            raise RuntimeError(f"PostgreSQL does not answer:\n{log.read_text()}")

    def stop(self) -> None:
        """End all connections and the server."""
        self.process.send_signal(2)  # "fast": it does not wait for its clients
        self.process.wait(30)

    def end(self) -> None:
        """Stop the server, and remove its data."""
        self.stop()
        shutil.rmtree(self.folder)

    def url(self, name: str, user: str = "cohort") -> str:
        """Return the address of a database, through the socket."""
        return f"postgresql://{user}@/{name}?host={self.folder}&port={self._port}"

    def tcp_url(self, name: str) -> str:
        """Return the address of a database, over TCP."""
        return f"postgresql://cohort@{LOOPBACK}:{self._port}/{name}?passfile={self._passfile}"

    def execute(self, statement: str, url: str | None = None) -> list[Any]:
        """Execute a statement in a database, and return the rows that it finds."""
        with _driver().connect(url or self.url("postgres"), autocommit=True) as connection:
            found = connection.execute(statement)
            return list(found.fetchall()) if found.description else []

    def _answers(self) -> bool:
        try:
            _driver().connect(self.url("postgres")).close()
        except _driver().OperationalError:
            return False
        return True


def _driver() -> Any:
    return importlib.import_module("psycopg")
