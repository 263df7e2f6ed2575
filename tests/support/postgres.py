"""A PostgreSQL of the tests, with its data in a folder of its own."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from flwr.superlink.federation import NoOpFederationManager

from deploy.fleet import factories
from deploy.fleet.duties.duties import Duties
from deploy.flower.commands import AUTHORITY, FRONT_END
from deploy.processes.groups import wait_until

psycopg = pytest.importorskip("psycopg")  # an extra

SETTINGS = {  # nothing that a test writes must survive the machine
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
}
PASSWORD = "correct horse"


def programs():
    """Return the folder of PostgreSQL's programs, or None."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


class Postgres:
    """A server for databases that one test each uses.

    PostgreSQL refuses root: there it runs as `nobody`, who could not enter a folder of pytest.
    """

    def __init__(self):
        self._programs = programs()
        if self._programs is None:
            pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
        self.folder = Path(tempfile.mkdtemp(prefix="cohort-pg-", dir="/tmp"))  # a socket's path is short
        self._user = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self._data = self.folder / "data"
        self._count = 0
        self._run("initdb", "-D", self._data, "-U", "cohort", "-A", "trust", "--no-sync", "-E", "UTF8")
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all guarded scram-sha-256\n{rules.read_text()}")
        self.process = None
        self.start()
        self.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")

    def _run(self, name, *arguments):
        command = [self._programs / name, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._user)

    def start(self):
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [self._programs / "postgres", "-D", self._data, "-k", self.folder, *options]
        log = self.folder / "log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=self.folder, **self._user
            )
        assert wait_until(self._answers, 30), log.read_text()

    def stop(self):
        """End all connections and the server."""
        self.process.send_signal(2)  # "fast": it does not wait for its clients
        self.process.wait(30)

    def end(self):
        self.stop()
        shutil.rmtree(self.folder)

    def _answers(self):
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, name, user="cohort"):
        return f"postgresql://{user}@/{name}?host={self.folder}"

    def execute(self, statement, url=None):
        with psycopg.connect(url or self.url("postgres"), autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def database(self, *, empty=False):
        """Return the address of a new database with the tables of this version, or of an empty one."""
        if not self._count:
            self.execute("CREATE DATABASE made")  # Flower's migrations take 2 s
            state = shared(self.url("made"))
            for each in (state, state.objects):
                each._engine.dispose()
            self.execute("DELETE FROM cohort_server", self.url("made"))
        self._count += 1
        name = f"test_{self._count}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {'template1' if empty else 'made'}")
        return self.url(name)


def shared(url, duties=None, home="here", authority="a" * 64):
    """Return the state of a new front end in a database."""
    before = {name: os.environ.get(name) for name in (FRONT_END, AUTHORITY)}
    os.environ.update({FRONT_END: home, AUTHORITY: authority})
    try:
        return factories.make(url, NoOpFederationManager(), duties or Duties()).state()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
