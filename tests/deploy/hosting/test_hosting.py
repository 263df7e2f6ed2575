"""A server's folder: certificates that devices need not notice, clients, and refusals with a reason."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.device.invitation import Invitation
from deploy.hosting.programs import MARK, Programs
from deploy.hosting.server import Node, Server, ServerError
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.ports import free_ports
from deploy.processes.systemd_units import verify
from deploy.tls import certificates

from ...support.devices import Running, public_key_of
from ...support.processes import wait_for
from ...support.tls import tls_server, written
from ..tls.test_certificates import verifier_for


@pytest.fixture
def server(tmp_path):
    server = Server(
        tmp_path / "server", ("fl.example.org", "10.0.0.1"), control_port=1
    )  # nothing listens on port 1
    assert server.save() == "made"
    return server


def certificate(server):
    return x509.load_pem_x509_certificate((server.folder / "pki" / "server.pem").read_bytes())


def test_settings_and_secrets_are_saved(server):
    assert Server.load(server.folder) == server
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    for name in ("ca.key", "server.key", "executor.secret", "control.secret"):
        assert stat.S_IMODE((server.folder / "pki" / name).stat().st_mode) == 0o600
    for name in server.hosts:
        verifier_for(server.authority, name).verify(certificate(server), [])


def test_secrets_that_a_power_failure_left_empty_are_made_again(server):
    secrets = [server.folder / "pki" / name for name in ("executor.secret", "control.secret")]
    before = [secret.read_bytes() for secret in secrets]
    server.save()
    assert [secret.read_bytes() for secret in secrets] == before
    for secret in secrets:
        secret.write_bytes(b"")
    server.save()
    for secret, old in zip(secrets, before, strict=True):
        assert len(secret.read_bytes()) == len(old)
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_first_start_that_was_interrupted_is_named_by_the_next_one(server):
    (server.folder / "pki" / "server.pem").unlink()
    with pytest.raises(ServerError, match="the first start was interrupted, or files were lost"):
        server.save()
    assert (server.folder / "pki" / "ca.key").exists()


def test_a_second_start_at_the_same_moment_is_refused_and_changes_nothing(server):
    before = (server.folder / "server.json").read_bytes()
    arguments = ["server", "up", "--dir", str(server.folder), "--host", "other.example.org"]
    with server.claimed():
        result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert f"dir = {server.folder}: the server of this folder is running already" in result.output
    assert (server.folder / "server.json").read_bytes() == before
    with server.claimed():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("part", ["", "pki"])
def test_a_server_in_a_folder_of_another_user_is_refused_in_one_line(server, part):
    """This user could rename `pki/` and put other keys in its place."""
    folder = server.folder / part
    os.chown(folder, 54321, 54321)
    before = (server.folder / "server.json").read_bytes()
    for command in (["up", "--host", "other.example.org"], ["up"], ["list"], ["invite", "pi-1"], ["run"]):
        result = CliRunner().invoke(cli, ["server", *command, "--dir", str(server.folder)])
        assert (result.exit_code, result.stderr) == (
            2,
            f"dir = {folder}: belongs to 54321, who could replace the keys in it: run this as 54321, name "
            f"another folder, or first: chown -R root {folder}\n",
        )
    assert (server.folder / "server.json").read_bytes() == before


def test_a_new_name_or_a_near_expiry_renews_the_certificate_under_the_same_authority(server, monkeypatch):
    authority, first = server.authority.read_bytes(), certificate(server)
    assert server.save() is None
    assert certificate(server) == first
    moved = Server(server.folder, (*server.hosts, "new.example.org"), control_port=1)
    assert moved.save() == "renewed"
    second = certificate(moved)
    verifier_for(server.authority, "new.example.org").verify(second, [])
    monkeypatch.setattr(certificates, "RENEWAL", timedelta(days=400))
    assert moved.save() == "renewed"
    assert certificate(moved).serial_number != second.serial_number
    assert server.authority.read_bytes() == authority
    later = datetime.now(UTC) + timedelta(days=364)
    verifier_for(server.authority, "fl.example.org", later).verify(certificate(moved), [])


def test_the_address_for_devices(tmp_path):
    assert Server(tmp_path, ("fl.example.org", "other"), port=1234).address == "fl.example.org:1234"
    assert Server(tmp_path, ("fd00::1",)).address == "[fd00::1]:9092"
    with pytest.raises(ServerError, match="host = 'a b', port = 9092: must be a name or an address"):
        Server(tmp_path, ("a b",)).save()


def test_without_a_superlink_no_client_is_registered_and_no_key_is_left(server, tmp_path):
    key = public_key_of(certificates.write_client_key(tmp_path, "key"))
    with pytest.raises(ServerError, match=r"nothing answers on port 1 of this machine; is `cohort server up"):
        server.register("pi-1", key)
    assert list((server.folder / "tmp").iterdir()) == []
    assert list((server.folder / "clients").iterdir()) == []


def test_a_server_whose_certificate_has_expired_is_named_at_once(server, tmp_path, monkeypatch):
    files = written(tmp_path / "expired", timedelta(days=-9), timedelta(days=-1), "server")
    monkeypatch.setattr(Server, "authority", files.ca)
    with tls_server(files) as expired:
        server = replace(server, control_port=expired.port)
        with pytest.raises(ServerError, match=r"its certificate is refused: it expired on .* by a restart"):
            server.check_is_up()


def test_an_invitation_that_cannot_be_written_does_not_use_up_the_name(server, tmp_path):
    with pytest.raises(FileNotFoundError):
        server.invite("pi-1", tmp_path / "no such folder" / "pi-1.invitation", 7, "")
    server.invite("pi-1", tmp_path / "pi-1.invitation", 7, "")


def test_an_invitation_holds_a_token_of_which_the_server_keeps_a_hash(server, tmp_path, monkeypatch):
    monkeypatch.setattr(Server, "flwr", lambda *_: {"success": True, "nodes": []})
    server.invite("pi-1", tmp_path / "x", 7, 64 * "b")
    invitation = Invitation.read(tmp_path / "x")
    assert (invitation.name, invitation.server) == ("pi-1", "fl.example.org:9092")
    assert invitation.ca == server.authority.read_text()
    assert invitation.bundle == 64 * "b"
    files = [path for path in server.folder.rglob("*") if path.is_file()]
    assert not any(invitation.token in path.read_text(errors="replace") for path in files)
    assert server.registry.knows(invitation.token)
    state = server.states()["pi-1"]
    assert state.startswith("invited, until ")
    with pytest.raises(ServerError, match="name = pi-1: invited already; `cohort server revoke pi-1 --dir /"):
        server.invite("pi-1", tmp_path / "y", 7, "")
    with pytest.raises(ServerError, match="must be a new file, but exists"):
        server.invite("pi-2", tmp_path / "x", 7, "")
    server.revoke("pi-1")
    assert not server.registry.knows(invitation.token)
    server.invite("pi-1", tmp_path / "y", -1, "")
    assert server.states()["pi-1"].startswith("invited, expired: ")
    server.invite("pi-1", tmp_path / "z", 1, "")  # in the place of an expired one
    assert not server.registry.knows(Invitation.read(tmp_path / "y").token)


def test_clients_are_registered_and_revoked_and_nodes_of_others_are_listed(server, tmp_path, monkeypatch):
    asked = []

    def flwr(self, *arguments):
        asked.append(arguments)
        nodes = [{"node-id": id, "status": status} for id, status in listed.items()]
        return {"success": True, "node-id": 7, "nodes": nodes}

    listed = {"7": "online"}
    monkeypatch.setattr(Server, "flwr", flwr)
    monkeypatch.setattr(Server, "check_is_up", lambda *_: None)
    key = public_key_of(certificates.write_client_key(tmp_path, "key"))
    server.register("pi-1", key)
    assert asked[0][:4] == ("supernode", "register", "--name", "pi-1")
    assert server.states() == {"pi-1": "online"}
    asked.clear()
    assert server.register("pi-1", f"{key} a comment") == "7"  # the same key again changes nothing
    assert asked == []
    other = public_key_of(certificates.write_client_key(tmp_path, "other"))
    with pytest.raises(ServerError, match="name = pi-1: registered already; `cohort server revoke pi-1"):
        server.register("pi-1", other)
    with pytest.raises(ServerError, match="name = pi-2: no such client; registered clients: pi-1"):
        server.revoke("pi-2")

    # Somebody else has registered nodes.
    listed.update({"8": "online", "9": "unregistered"})
    assert server.states() == {"pi-1": "online", "node-8": "online, not registered here"}
    result = CliRunner().invoke(cli, ["server", "list", "--dir", str(server.folder)])
    assert result.exit_code == 1
    assert "1 registered, 1 online" in result.output
    assert "1 not registered here: find out who registered them" in result.output
    server.revoke("node-8")
    assert asked[-1] == ("supernode", "unregister", "8")
    with pytest.raises(ValueError, match="name = 'node-10'"):
        server.revoke("node-10")

    server.revoke("pi-1")
    assert asked[-1] == ("supernode", "unregister", "7")
    assert json.loads(server.revoked_file.read_text()) == ["pi-1"]
    server.register("pi-1", key)
    assert json.loads(server.revoked_file.read_text()) == []


@pytest.mark.parametrize("status", ["unregistered", None])
def test_a_revocation_that_was_interrupted_is_completed_by_the_next_call(server, monkeypatch, status):
    """The disk was full after the SuperLink had refused the key. Then it refuses to do so again."""

    def flwr(self, *arguments):
        if arguments[1] != "list":
            raise ServerError("[code: 24] Node ID not found for account.")
        return {"success": True, "nodes": [{"node-id": "7", "status": status}] if status else []}

    monkeypatch.setattr(Server, "flwr", flwr)
    server.registry.record("pi-1", "7", "a key")
    server.revoke("pi-1")
    assert server.registry.clients() == {}
    assert json.loads(server.revoked_file.read_text()) == ["pi-1"]


@pytest.mark.parametrize("content", ["", "{}", "[]", "7", '{"name": 1, "node-id"', "\udcff", "[" * 100_000])
def test_a_damaged_file_of_a_client_or_an_invitation_leaves_the_others(
    server, tmp_path, monkeypatch, content
):
    asked = []

    def flwr(self, *arguments):
        asked.append(arguments)
        nodes = [{"node-id": id, "status": "online"} for id in ("7", "8")]
        return {"success": True, "nodes": nodes}

    monkeypatch.setattr(Server, "flwr", flwr)
    server.registry.record("pi-1", "7", "a key")
    server.invite("pi-3", tmp_path / "invitation", 1, "")
    for damaged in (server.client("pi-2"), server.folder / "invitations" / "damaged.json"):
        damaged.write_bytes(content.encode(errors="surrogateescape"))
    states = server.states()
    assert (states["pi-1"], states["node-8"]) == ("online", "online, not registered here")
    assert states["pi-3"].startswith("invited, until ")
    output = CliRunner().invoke(cli, ["server", "list", "--dir", str(server.folder)]).output.splitlines()
    for file in (server.client("pi-2"), server.folder / "invitations" / "damaged.json"):
        assert sum(line.startswith(f"{file}: is damaged and ignored (") for line in output) == 1
    with pytest.raises(ServerError, match=r"pi-2\.json: is damaged, so the client's node is not known"):
        server.revoke("pi-2")
    server.revoke("pi-1")
    assert asked[-1] == ("supernode", "unregister", "7")
    server.revoke("pi-3")
    assert server.registry.invited() == {}


def test_a_serverapp_gets_no_path_to_a_secret(server):
    """Its environment is that of the executor. As the same user it could still search for them."""
    environment = Programs(server, print)._superexec.environment()
    assert environment is not None
    named = [Path(value) for value in environment.values() if value.startswith(str(server.folder))]
    found = [path for folder in named if folder != server.folder for path in folder.rglob("*")]
    assert not any(path.name in ("ca.key", "server.key", "credentials.yaml") for path in found)
    assert str(server.control_secret) not in environment.values()


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_serverapp_whose_executor_had_died_ends_with_the_server(server):
    programs = Programs(server, print)
    environment = {**os.environ, **programs._marked.mark}
    with subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True) as left:
        try:
            assert wait_until(lambda: left.pid in programs._marked.pids(), 10)
            programs.__exit__()
            assert left.wait(10) == -signal.SIGKILL
        finally:
            left.kill()


def test_a_database_of_a_newer_flower_is_refused_in_one_line(server):
    database = server.folder / "superlink.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('of-2027')")
    port, control = free_ports(2)
    programs = Programs(replace(server, port=port, control_port=control), print)
    with pytest.raises(ServerError) as refused, programs:
        pass
    assert str(refused.value).startswith(
        f"flower-superlink does not start: a newer version has changed {database} "
    )
    assert "\n" not in str(refused.value)


def test_files_of_apps_land_in_the_servers_folder(server, tmp_path, monkeypatch):
    """They landed where `cohort server up` was started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COHORT_DATA", "data")
    executor = Programs(server, print)._superexec
    assert executor.working_folder() == server.folder / "apps"
    assert (server.folder / "apps").is_dir()
    environment = executor.environment()
    assert environment is not None
    assert environment["COHORT_DATA"] == str(tmp_path / "data")  # as the operator meant it


def test_the_authoritys_key_may_be_kept_elsewhere_until_the_certificate_is_renewed(
    server, tmp_path, monkeypatch
):
    key = server.folder / "pki" / "ca.key"
    key.replace(tmp_path / "ca.key")
    assert server.save() is None
    monkeypatch.setattr(certificates, "RENEWAL", timedelta(days=400))
    with pytest.raises(ServerError, match=r"ca\.key: is needed to renew the certificate; put it back"):
        server.save()
    (tmp_path / "ca.key").replace(key)
    assert server.save() == "renewed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "there is no server here; `cohort server up --host NAME --dir "),
        (["up"], "there is no server here"),
        (["register", "pi-1", "ssh-nonsense", "AAAA"], "there is no server here"),
    ],
)
def test_a_folder_without_a_server(tmp_path, arguments, message):
    result = CliRunner().invoke(cli, ["server", *arguments, "--dir", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["register", "pi-1", "ssh-nonsense", "AAAA"], "must be the public key that the device printed"),
        (["register", "../pi", "x"], "name = '../pi': must be 1 to 64 letters"),
        (["list"], "nothing answers on port 1"),
    ],
)
def test_a_wrong_request_is_refused_with_the_reason(server, arguments, message):
    result = CliRunner().invoke(cli, ["server", *arguments, "--dir", str(server.folder)])
    assert result.exit_code == 2
    assert message in result.output


def test_a_name_cannot_command_the_terminal_that_lists_it(server, monkeypatch):
    nodes = [
        Node("pi\x1b[2J", "online\x1b]52;c;cm0gLXJmIH4=\x07"),
        Node("pi-2", "offline\u202e", "7", "2026-01-01\x1b[2J"),
    ]
    monkeypatch.setattr(Server, "nodes", lambda self: nodes)
    listed = CliRunner().invoke(cli, ["server", "list", "--dir", str(server.folder)])
    first, second = (line.split() for line in listed.output.splitlines()[1:3])
    assert first == [r"pi\x1b[2J", r"online\x1b]52;c;cm0gLXJmIH4=\x07", "never"]
    assert second == ["pi-2", r"offline\u202e", r"2026-01-01\x1b[2J"]

    def refused(self):
        raise ServerError("the SuperLink says \x1b[2J")

    monkeypatch.setattr(Server, "nodes", refused)
    listed = CliRunner().invoke(cli, ["server", "list", "--dir", str(server.folder)])
    assert listed.output == "the SuperLink says \\x1b[2J\n"


@pytest.mark.parametrize("content", [json.dumps({"hosts": ["h"], "unknown": 1}), "[]", "[" * 100_000])
def test_a_damaged_settings_file_is_refused_by_name(server, content):
    (server.folder / "server.json").write_text(content)
    with pytest.raises(ServerError, match=r"server\.json: cannot be read"):
        Server.load(server.folder)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(sys.platform != "linux", reason="a watchdog for Linux")
def test_a_killed_server_leaves_no_processes_and_can_be_started_again_at_once(tmp_path):
    folder = tmp_path / "server"
    port, control = map(str, free_ports(2))
    first = ("--host", "localhost", "--listen", "127.0.0.1", "--port", port, "--control-port", control)
    up = ("server", "up", "--dir", str(folder))
    running = Running(tmp_path / "log", *up, *first)
    try:
        running.wait_for("up at localhost:")
        another = Running(tmp_path / "another", *up)
        another.wait_for(f"dir = {folder}: the server of this folder is running already")
        assert another.process.wait(30) == 2
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        running = Running(tmp_path / "log", *up)
        running.wait_for("up at localhost:", times=2)
        assert processes_with(MARK, str(folder))
    finally:
        running.end()
    wait_for(lambda: not processes_with(MARK, str(folder)), 30, lambda: "processes are left")


def test_a_server_as_a_service_of_its_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    up = [
        "server",
        "up",
        "--host",
        "fl.example.org",
        "--dir",
        str(tmp_path / "a server"),
        "--page",
        "--systemd",
    ]
    monkeypatch.setattr("os.geteuid", lambda: 0)
    refused = CliRunner().invoke(cli, up)
    assert refused.exit_code == 2
    assert "--systemd as root: run it as the user who operates the server" in refused.output
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = CliRunner().invoke(cli, up)
    assert done.exit_code == 0, done.output
    path = tmp_path / "systemd" / "user" / "cohort-server.service"
    assert f"{path}: written\n" in done.output
    assert "systemctl --user enable --now cohort-server" in done.output
    (start,) = [line for line in path.read_text().splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(f'/cohort server up --dir "{tmp_path}/a server" --page --page-port 9094')
    assert (tmp_path / "a server" / "pki" / "ca.crt").exists()  # `invite` works before the start
    assert verify(path, system=False) == ""
