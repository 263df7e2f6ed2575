"""A PostgreSQL of the tests, with its data in a folder of its own."""

import os

import pytest
from flwr.superlink.federation import NoOpFederationManager

from benchmarks.devices import postgres
from deploy.fleet import factories
from deploy.fleet.duties.duties import Duties
from deploy.flower.commands import AUTHORITY, FRONT_END

pytest.importorskip("psycopg")  # an extra

SETTINGS = {  # nothing that a test writes must survive the machine
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
}
PASSWORD = "correct horse"


class Postgres(postgres.Postgres):
    """A server for databases that one test each uses."""

    def __init__(self, settings=(), **options):
        if postgres.programs() is None:
            pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
        self._count = 0
        super().__init__({**SETTINGS, **dict(settings)}, rules="local all guarded scram-sha-256\n", **options)
        self.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")

    @property
    def environment(self):
        """The variables with which PostgreSQL's programs find this server, as its administrator."""
        path = f"{self._programs}:{os.environ['PATH']}"
        return {"PATH": path, "PGHOST": str(self.folder), "PGPORT": str(self._port), "PGUSER": "cohort"}

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
