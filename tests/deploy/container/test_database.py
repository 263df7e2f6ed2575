"""The SuperLinks of a cluster share a PostgreSQL database, whose password is on no command line."""

import stat
from pathlib import Path

import pytest
import yaml

from deploy import container
from deploy.container import superlink
from deploy.fleet.storage import shared_state
from deploy.flower.commands import AUTHORITY, FRONT_END

from ...support.environments import ROOT

ADDRESS = "postgresql://cohort@database/cohort?sslmode=verify-full"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("postgresql://cohort:secret@database/cohort", "COHORT_DATABASE: holds a password"),
        ("mysql://cohort@database/cohort", "COHORT_DATABASE = mysql://"),
        ("postgresql://database:port/cohort", "COHORT_DATABASE: must be an address"),
    ],
)
def test_a_wrong_address_is_refused_in_one_line_that_names_the_variable(address, why, monkeypatch, capsys):
    monkeypatch.setenv("COHORT_DATABASE", address)
    assert superlink.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(why)
    assert "secret" not in line


def test_without_the_variable_the_database_is_the_file_on_the_volume(tmp_path, monkeypatch):
    assert superlink.database_from_environment({"COHORT_DATABASE": " "}) is None
    monkeypatch.setattr(superlink, "STARTS", tmp_path / "starts")
    monkeypatch.setattr(superlink, "CONTROL_HOST", "localhost")
    command = superlink._command()
    assert command[command.index("--database") + 1] == str(superlink.DATABASE)
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_the_password_is_in_a_private_file_and_all_front_ends_have_one_name(tmp_path, monkeypatch):
    monkeypatch.setattr(superlink, "DATABASE_PASSWORD", tmp_path / "password")
    monkeypatch.setattr(superlink, "AUTHORITY", tmp_path / "ca.crt")
    (tmp_path / "ca.crt").write_text("certificate")
    found = superlink.sharing()
    assert found.keys() == {FRONT_END, AUTHORITY}  # for another way to log in, such as a certificate
    (tmp_path / "password").write_text("se:cr\\et\n")
    (tmp_path / "password").chmod(0o440)  # as Kubernetes makes it
    found = superlink.sharing()
    assert found[FRONT_END] == superlink.FRONT_END
    passwords = Path(found["PGPASSFILE"])
    assert passwords.read_text() == "*:*:*:*:se\\:cr\\\\et\n"
    assert stat.S_IMODE(passwords.stat().st_mode) == 0o600

    monkeypatch.setattr(superlink, "STARTS", tmp_path / "starts")
    monkeypatch.setenv("COHORT_LISTEN", "0.0.0.0")
    command = superlink._command(ADDRESS)
    assert command[command.index("--database") + 1] == ADDRESS
    assert command[command.index("--host") + 1] == "0.0.0.0"


class Loader(yaml.SafeLoader):
    """Reads the tags of Compose."""


Loader.add_constructor("!override", lambda loader, node: loader.construct_mapping(node, deep=True))
Loader.add_constructor("!reset", lambda loader, node: "reset")


def test_the_files_of_the_cluster_fit_each_other():
    cluster = yaml.load((ROOT / "docker-compose.cluster.yml").read_text(), Loader)
    services = cluster["services"]
    balancer = (ROOT / "deploy" / "container" / "haproxy.cfg").read_text()

    # Clients reach the balancer alone, under the SuperLink's names.
    networks = {name: service.get("networks") for name, service in services.items()}
    (alias,) = networks["superlink"]["front-ends"]["aliases"]
    assert not {"fleet", "control"} & {*networks["superlink"], *networks["database"]}
    assert services["superlink"]["ports"] == "reset"
    assert networks["balancer"]["fleet"]["aliases"] == [container.FLEET_HOST]
    assert networks["balancer"]["control"]["aliases"] == [container.CONTROL_HOST]
    assert f"bind :{container.FLEET_PORT}\n" in balancer
    assert f"bind {container.CONTROL_HOST}:{container.CONTROL_PORT}\n" in balancer
    for port in (container.FLEET_PORT, container.CONTROL_PORT):
        assert f"server-template superlink 8 {alias}:{port}\n" in balancer
    assert all(cluster["networks"][name]["internal"] for name in ("front-ends", "database"))
    assert str(container.AUTHORITY) in balancer
    hosts = {container.FLEET_HOST, container.CONTROL_HOST}
    assert set(services["superlink"]["extra_hosts"]) == {f"{host}:127.0.0.1" for host in hosts}

    # The password is a file, which three services can read.
    mounted = {
        name
        for name, service in services.items()
        if any(each.split(":")[1] == str(container.DATABASE) for each in service.get("volumes", ()))
    }
    assert mounted == {"setup", "superlink", "database"}
    given = services["database"]["environment"]
    assert given["POSTGRES_PASSWORD_FILE"] == str(container.DATABASE_PASSWORD)
    assert "POSTGRES_PASSWORD" not in given
    for name in ("setup", "superlink"):
        address = services[name]["environment"]["COHORT_DATABASE"]
        assert superlink.database_from_environment({"COHORT_DATABASE": address}) == address

    # Eight SuperLinks have a state, a store and a connection each.
    most = int(services["database"]["command"][-1].removeprefix("max_connections="))
    assert most > 8 * (2 * (shared_state.POOL + shared_state.MORE) + 1)
