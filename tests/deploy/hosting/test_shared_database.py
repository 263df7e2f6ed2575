"""A PostgreSQL database that a server cannot use is refused in one line, and nothing is made."""

import json
import subprocess
import sys

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from flwr.supercore.state.alembic.utils import build_alembic_config
from sqlalchemy import create_engine
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.fleet.storage import postgres as addresses
from deploy.hosting.server import Server
from deploy.processes.ports import free_ports
from tests.support.postgres import PASSWORD, shared

MINE, OTHER = "a" * 64, "b" * 64


def refused(tmp_path, database, *more):
    """Return what `cohort server up` prints when it refuses a database."""
    port, control = map(str, free_ports(2))
    options = (
        "--host",
        "localhost",
        "--port",
        port,
        "--control-port",
        control,
        "--database",
        database,
        *more,
    )
    result = CliRunner().invoke(cli, ["server", "up", "--dir", str(tmp_path / "server"), *options])
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "server").exists()
    (line,) = result.output.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("postgresql://me:secret@host/name", "holds a password"),
        ("postgresql://me@host/name?password=secret", "holds a password"),
        ("mysql://me@host/name", "must begin with postgresql://"),
        ("superlink.db", "must begin with postgresql://"),
        ("postgresql://me@host:port/name", "must be an address"),
        ("postgresql://me@[::1/name", "must be an address"),
        ("postgresql://me@host/name?passfile=mine.pass", "passfile must be an absolute path"),
        ("postgresql://me@host/name?sslrootcert=ca.crt", "sslrootcert must be an absolute path"),
    ],
)
def test_an_address_that_is_not_valid_is_refused(tmp_path, address, reason):
    line = refused(tmp_path, address)
    assert reason in line
    assert "secret" not in line


def test_settings_of_the_address_take_precedence():
    url = addresses.checked_url("postgres://me@host/name?sslmode=verify-full&connect_timeout=3")
    assert url == "postgresql://me@host/name?sslmode=verify-full&connect_timeout=3"
    assert "connect_timeout" not in addresses.settings(url)
    assert addresses.settings(url)["tcp_user_timeout"] == "20000"


def test_an_unreachable_database_is_refused(tmp_path):
    (port,) = free_ports(1)
    assert "cannot be used: connection" in refused(tmp_path, f"postgresql://me@127.0.0.1:{port}/name")


def test_a_wrong_password_is_refused_and_one_from_a_file_is_not_shown(tmp_path, postgres, monkeypatch):
    monkeypatch.delenv("PGPASSWORD", raising=False)
    url = postgres.database(empty=True).replace("cohort@", "guarded@")
    file = tmp_path / "database.pass"
    address = f"{url}&passfile={file}"
    file.write_text("*:*:*:*:battery staple\n")
    file.chmod(0o600)
    line = refused(tmp_path, address)
    assert "password authentication failed" in line
    assert "battery" not in line
    file.write_text(f"*:*:*:*:{PASSWORD}\n")
    addresses.check(address, None)
    with pytest.raises(SystemExit, match="permission denied for schema public"):
        shared(address)


def test_a_missing_or_old_postgresql_and_a_missing_driver_are_refused(tmp_path, postgres, monkeypatch):
    url = postgres.database(empty=True)
    assert 'database "none" does not exist' in refused(tmp_path, postgres.url("none"))
    with monkeypatch.context() as newer:
        newer.setattr(addresses, "OLDEST", 990_000)
        assert "is too old: 99 or newer" in refused(tmp_path, url)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "psycopg", None)
        assert "pip install -c requirements.lock '.[postgres]'" in refused(tmp_path, url)


def test_a_database_of_another_program_server_or_version_is_refused(tmp_path, postgres):
    url = postgres.database(empty=True)
    postgres.execute("CREATE TABLE accounts (id INTEGER)", url)
    assert "holds tables of another program" in refused(tmp_path, url)

    url = postgres.database()
    first = shared(url, authority=MINE)
    assert "belongs to a server with another authority" in refused(tmp_path, url)
    addresses.check(url, MINE)
    with pytest.raises(SystemExit, match="belongs to a server with another authority"):
        shared(url, authority=OTHER)
    appears = f"INSERT INTO cohort_front_end VALUES ('x', 'far:/server', '1.99', {addresses.NOW} - {{}})"
    postgres.execute(appears.format(addresses.LEASE + 1), url)
    addresses.check(url, MINE)  # it has gone
    postgres.execute(f"UPDATE cohort_front_end SET seen = {addresses.NOW}", url)
    with pytest.raises(addresses.DatabaseError, match=r"far:/server runs Flower 1\.99, and this one"):
        addresses.check(url, MINE)
    first.rows("UPDATE alembic_version SET version_num = 'of-2027'")
    with pytest.raises(SystemExit, match="a newer version has changed postgresql://"):
        shared(url, authority=MINE)


STARTS = "import sys; from tests.support.postgres import shared; shared(sys.argv[1])"


@pytest.mark.slow
def test_two_front_ends_that_start_together_bring_the_tables_of_an_older_flower_up_to_date(postgres):
    url = postgres.database(empty=True)
    engine = create_engine(url.replace("://", "+psycopg://"))
    config = build_alembic_config(engine)
    newest, *_, older = list(ScriptDirectory.from_config(config).walk_revisions())[:5]
    command.upgrade(config, older.revision)
    node = "INSERT INTO node (node_id, owner_aid, owner_name, status, registered_at, heartbeat_interval, "
    postgres.execute(node + "public_key) VALUES (7, 'a', 'b', 'offline', 'then', 30, 'key')", url)
    version = "SELECT version_num FROM alembic_version"
    assert postgres.execute(version, url) == [(older.revision,)]
    starting = [
        subprocess.Popen([sys.executable, "-c", STARTS, url], stderr=subprocess.PIPE) for _ in range(2)
    ]
    for each in starting:
        said = each.communicate(timeout=300)[1]  # on a busy machine
        assert each.returncode == 0, said
    assert postgres.execute(version, url) == [(newest.revision,)]
    assert postgres.execute("SELECT node_id FROM node", url) == [(7,)]


def test_a_server_keeps_its_address_and_the_fingerprint_of_its_authority(tmp_path):
    server = Server(tmp_path / "server", ("localhost",), database="postgresql://me@host/name")
    assert server.fingerprint is None
    server.save()
    assert server.fingerprint is not None
    assert len(server.fingerprint) == 64
    loaded = Server.load(tmp_path / "server")
    assert (loaded.database, loaded.fingerprint) == (server.database, server.fingerprint)
    saved = json.loads((tmp_path / "server" / "server.json").read_text())
    del saved["database"]  # of an earlier version
    (tmp_path / "server" / "server.json").write_text(json.dumps(saved))
    assert Server.load(tmp_path / "server").database == ""
