"""A device joins, stays connected and keeps its secrets; some tests use real processes."""

import contextlib
import json
import os
import shlex
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.device import supervisor
from deploy.device.invitation import Invitation, check_name, check_server
from deploy.device.state import Device, Settings
from deploy.device.unit import unit, verify
from deploy.processes.ports import free_ports
from deploy.tls import certificates
from deploy.tls.reach import unreachable

from ...support.devices import Running, cohort, server_up, wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.write_certificates(tmp_path_factory.mktemp("pki"), ["fl.example.org"])


@pytest.fixture
def device(tmp_path: Path, authority: certificates.Certificates) -> Device:
    device = Device(tmp_path / "state")
    device.prepare(device.introduce("pi-1", "fl.example.org:9092", authority.ca))
    return device


# --- its folder -----------------------------------------------------------------------------------------


def test_a_device_makes_a_private_key_once(device: Device, authority: certificates.Certificates) -> None:
    key = (device.folder / "key").read_bytes()
    assert (mode(device.folder), mode(device.folder / "key")) == (0o700, 0o600)
    assert device.key_line().startswith("ecdsa-sha2-nistp256 ")
    assert device.settings() == Settings("pi-1", "fl.example.org:9092")
    device.prepare(replace(device.settings(), nice=3, partition="1/4"))
    device.introduce("pi-1", "elsewhere:1", authority.ca)
    assert (device.folder / "key").read_bytes() == key
    assert device.settings() == Settings("pi-1", "elsewhere:1", nice=3, partition="1/4")


def test_a_new_key_replaces_the_old_one_and_must_be_registered(device: Device) -> None:
    (device.folder / supervisor.ADMITTED).touch()
    before = device.key_line()
    device.renew_key()
    assert device.key_line() == certificates.public_key_of((device.folder / "key").read_text()) != before
    assert mode(device.folder / "key") == 0o600
    assert not (device.folder / supervisor.ADMITTED).exists()
    assert not (device.folder / "new").exists()


def test_the_settings_that_the_node_receives(device: Device, tmp_path: Path) -> None:
    import tomllib

    data = tmp_path / 'my "data".npz'
    data.touch()
    device.prepare(replace(device.settings(), data=str(data), min_battery=50, threads=2))
    assert tomllib.loads((device.folder / "node.toml").read_text()) == {
        "client-id": "pi-1",
        "secret-file": str(device.folder / "secret"),
        "pause-file": str(device.folder / "paused"),
        "min-battery": 50,
        "max-temperature": 80.0,
        "allow-metered": False,
        "data": str(data),
    }
    environment = device.environment(device.settings())
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "2"
    assert environment["FLWR_HOME"] == str(device.folder / "flwr")
    device.prepare(replace(device.settings(), data="", partition="3/10"))
    config = tomllib.loads((device.folder / "node.toml").read_text())
    assert (config["partition-id"], config["num-partitions"]) == (3, 10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nice": 20}, "nice = 20: must be between 0 and 19"),
        ({"threads": 0}, "threads = 0: must be between 1 and 1024"),
        ({"min_battery": 101}, "min-battery = 101: must be between 0 and 100"),
        ({"memory_limit": 99}, r"memory-limit = 99: must be at least 100 \(MB\)"),
        ({"partition": "10/10"}, r"partition = '10/10': must be i/N with i in 0..N-1"),
        ({"partition": "ten"}, "partition = 'ten'"),
        ({"data": __file__, "partition": "0/2"}, "partition = 0/2: cannot be combined with data"),
        ({"name": "node-7"}, "name = 'node-7': must be"),
        ({"server": "host"}, "server = 'host': must be host:port"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_allowed_values(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Settings("pi-1", "host:1"), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("server", ["h:1", "10.0.0.1:9092", "[fe80::1%eth0]:65535", "a-b.example.org:80"])
def test_a_valid_address_is_accepted(server: str) -> None:
    assert check_server(server) == server


@pytest.mark.parametrize(
    "server", ["", "h", "h:0", "h:65536", "h:x", "::1:80", "https://h:1", "a b:1", "h:²"]
)
def test_an_invalid_address_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        check_server(server)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "x" * 65, "ä", "a\n"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 64"):
        check_name(name)


def an_invitation(folder: Path, authority: certificates.Certificates, name: str = "pi-2") -> Path:
    key = certificates.write_client_key(folder / "made", name)
    path = folder / f"{name}.invitation"
    Invitation(name, "fl.example.org:9092", authority.ca.read_text(), key.read_text()).write(path)
    return path


def test_an_invitation_is_used_up_by_joining(tmp_path: Path, authority: certificates.Certificates) -> None:
    path = an_invitation(tmp_path, authority)
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    assert mode(path) == 0o600
    device = Device(tmp_path / "state")
    assert device.accept(path) == Settings("pi-2", "fl.example.org:9092")
    assert not path.exists()
    assert mode(device.folder / "key") == 0o600
    assert device.key_line() == (tmp_path / "made" / "pi-2.pub").read_text().strip()
    assert (device.folder / "ca.crt").read_bytes() == authority.ca.read_bytes()
    with pytest.raises(ValueError, match="there is no such file; each invitation works once"):
        device.accept(path)
    with pytest.raises(ValueError, match="belongs to pi-2, which has already joined"):
        device.accept(copy)
    assert copy.exists()  # a refused invitation is not used up

    # After its key was revoked, the same client is invited again and keeps its settings.
    device.prepare(replace(device.settings(), threads=2))
    (tmp_path / "again").mkdir()
    again = an_invitation(tmp_path / "again", authority)
    assert device.accept(again) == Settings("pi-2", "fl.example.org:9092", threads=2)
    assert device.key_line() == (tmp_path / "again" / "made" / "pi-2.pub").read_text().strip()
    with pytest.raises(ValueError, match="belongs to pi-2, which has already joined"):
        device.accept(an_invitation(tmp_path, authority, "pi-3"))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"cohort-invitation": 1', '"cohort-invitation": 2'),
        lambda text: text.replace('"server"', '"sever"'),
        lambda text: text.replace("pi-2", "../pi"),
        lambda text: text.replace("BEGIN CERTIFICATE", "BEGIN NOTHING"),
        lambda text: text.replace("BEGIN OPENSSH", "BEGIN NOTHING"),
    ],
)
def test_a_file_that_is_not_an_invitation_is_refused_and_nothing_is_written(
    tmp_path: Path, authority: certificates.Certificates, change: Callable[[str], str]
) -> None:
    path = an_invitation(tmp_path, authority)
    path.write_text(change(path.read_text()))
    device = Device(tmp_path / "state")
    with pytest.raises(ValueError, match=r"invitation|must hold the certificate|private key"):
        device.accept(path)
    assert path.exists()
    assert not device.has_joined


def test_a_certificate_of_no_authority_is_refused(
    tmp_path: Path, authority: certificates.Certificates
) -> None:
    for wrong in (authority.certificate, authority.key, tmp_path / "none"):
        with pytest.raises(ValueError, match=r"must hold the certificate of the authority|cannot be read"):
            Device(tmp_path / "state").introduce("pi-1", "h:1", wrong)
    assert not (tmp_path / "state").exists()


# --- the command line --------------------------------------------------------------------------------------


def run_cli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["client", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no client has joined here"),
        (["--server", "h:1"], "server, ca: must be given together"),
        (["--invitation", "x", "--server", "h:1", "--ca", "y"], "invitation = x: already contains --server"),
        (["--invitation", "x"], "invitation = x: there is no such file"),
        (["--server", "h:1", "--ca", "y"], "ca = y: cannot be read"),
        (["--nice", "30"], "nice = 30: must be between 0 and 19"),
        (["--data", "/no/such.npz"], "data = /no/such.npz: there is no such file"),
        (["--invitation", "x", "--new-key"], "invitation = x: already contains --server"),
    ],
)
def test_join_refuses_wrong_options_before_it_writes_anything(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, output = run_cli("join", "--state-dir", str(tmp_path / "state"), *arguments)
    assert code == 2
    assert message in output
    assert not (tmp_path / "state").exists()


def test_a_missing_file_can_be_replaced_and_a_damaged_one_is_named(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--state-dir", str(device.folder))
    data, other = tmp_path / "stick.npz", tmp_path / "other.npz"
    data.touch()
    other.touch()
    device.prepare(replace(device.settings(), data=str(data)))
    data.unlink()
    monkeypatch.setattr("os.execve", lambda *_: None)
    monkeypatch.setattr("os.nice", lambda _: 0)
    assert run_cli("join", *where) == (2, f"data = {data}: there is no such file\n")
    assert run_cli("pause", *where)[0] == 0
    assert run_cli("join", *where, "--data", str(other))[0] == 0
    assert device.settings().data == str(other)
    (device.folder / "client.json").write_text("")
    code, output = run_cli("join", *where)
    assert code == 2
    assert "client.json: cannot be read: " in output


@linux
def test_a_status_from_before_a_power_failure_is_ignored(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.device.cli.unreachable", lambda *_: None)
    said = {"state": "online", "text": "online as pi-1", "since": "yesterday", "pid": os.getpid()}
    for text in (json.dumps(said), json.dumps({**said, "pid": 4194304}), '{"state"', ""):
        (device.folder / supervisor.STATUS).write_text(text)
        code, output = run_cli("status", "--state-dir", str(device.folder))
        assert (code, output.splitlines()[0]) == (1, "pi-1: not running")


def test_pause_resume_and_status(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--state-dir", str(device.folder))
    assert run_cli("pause", *where) == (0, "pi-1 is paused\n")
    monkeypatch.setattr("deploy.device.cli.unreachable", lambda *_: "connection refused")
    code, output = run_cli("status", *where)
    assert code == 1
    assert output.splitlines()[:3] == [
        "pi-1: not running",
        "training: no, paused by its user",
        "server: fl.example.org:9092, connection refused",
    ]
    assert run_cli("resume", *where) == (0, "pi-1 takes part again\n")
    assert "whenever the server asks" in run_cli("status", *where)[1]
    code, output = run_cli("pause", "--state-dir", "/no/such")
    assert code == 2
    assert "no client has joined here" in output


# --- the unit of systemd -----------------------------------------------------------------------------------


def test_the_unit_has_the_limits_and_restarts(device: Device) -> None:
    settings = replace(device.settings(), nice=5, threads=2, memory_limit=300)
    text = unit(settings, Path("/var/lib/cohort client%"), system=True)
    lines = text.splitlines()
    for line in ("Restart=always", "Nice=5", "CPUQuota=200%", "MemoryMax=300M", "DynamicUser=yes"):
        assert line in lines
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    assert start.endswith('client join --state-dir "/var/lib/cohort client%%"')
    assert "MemoryMax" not in unit(device.settings(), device.folder, system=False)
    with pytest.raises(ValueError, match="must lie in /var/lib for a system unit"):
        unit(settings, device.folder, system=True)


@pytest.mark.skipif(not Path("/usr/bin/systemd-analyze").exists(), reason="no systemd here")
@pytest.mark.parametrize("system", [True, False])
def test_systemd_accepts_the_unit(device: Device, tmp_path: Path, system: bool) -> None:
    path = tmp_path / "cohort-client.service"
    path.write_text(unit(replace(device.settings(), memory_limit=300), Path("/var/lib/c"), system=system))
    assert verify(path, system=system) == ""
    path.write_text(path.read_text().replace("Restart=always", "Restart=sometimes"))
    assert "sometimes" in verify(path, system=system)  # the unit was verified


# --- reaching the server -----------------------------------------------------------------------------------


@contextlib.contextmanager
def tls_server(files: certificates.Certificates) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_the_reasons_why_a_server_cannot_be_reached(
    authority: certificates.Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = authority.ca
    (closed,) = free_ports(1)
    assert unreachable(f"127.0.0.1:{closed}", ca) == "connection refused"
    with tls_server(authority) as port:
        assert unreachable(f"127.0.0.1:{port}", ca) is None
        assert unreachable(f"localhost:{port}", ca) is None
        assert "cannot be resolved" in str(unreachable(f"no-such-host.invalid:{port}", ca))
        foreign = certificates.write_certificates(tmp_path / "foreign").ca
        refused = unreachable(f"127.0.0.1:{port}", foreign)
        assert refused is not None
        assert refused.startswith("its certificate is refused: ")
        assert "this device's clock: 20" in refused
        assert "ca.crt belongs to another server" in refused
        other_name = unreachable(f"127.0.0.2:{port}", ca)
        assert (
            "certificate is refused: IP address mismatch" in str(other_name)
            or other_name == "connection refused"
        )
    monkeypatch.setattr(certificates, "VALIDITY", timedelta(seconds=-1))
    expired = certificates.write_certificates(tmp_path / "expired", renewable=True)
    with tls_server(expired) as port:
        refused = str(unreachable(f"127.0.0.1:{port}", expired.ca))
        assert refused.startswith("its certificate is refused: certificate has expired")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert unreachable(address, ca, timeout=0.2) == "no answer within 0.2 s"
    with socket.create_server(("127.0.0.1", 0)) as plain:
        answer = threading.Timer(0, lambda: plain.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        answer.start()
        no_tls = unreachable(f"127.0.0.1:{plain.getsockname()[1]}", ca)
        assert str(no_tls).startswith("TLS failed: ")
        answer.join()


# --- the supervisor ----------------------------------------------------------------------------------------


class Supervised:
    """A supervisor in a process of its own, with a script in place of the SuperNode."""

    def __init__(self, device: Device, node: str, changes: str = "") -> None:
        self.folder = device.folder
        script = f"""
            import sys
            from pathlib import Path
            from deploy.device import supervisor
            supervisor.unreachable = lambda *_: None
            supervisor.source_address = lambda *_: "10.0.0.1"
            supervisor.FIRST_PAUSE = supervisor.LONGEST_PAUSE = 0.01
            supervisor.DeviceSupervisor.look = supervisor.MEMORY_LOOK = supervisor.NETWORK_LOOK = 0.05
            {changes}
            command = [sys.executable, "-u", "-c", {dedent(node)!r}]
            sys.exit(supervisor.DeviceSupervisor(Path({str(device.folder)!r}), command).supervise())
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", dedent(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def log(self) -> str:
        path = self.folder / supervisor.LOG
        return path.read_text() if path.exists() else ""

    def wait_for(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self.log.count(text) >= times, 30, lambda: self.log)

    def end(self) -> str:
        self.process.terminate()
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return "\n".join(line.partition(" ")[2] for line in output.splitlines())


@pytest.fixture
def supervise(device: Device) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(node: str, changes: str = "") -> Supervised:
        started.append(Supervised(device, node, changes))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


ONLINE = "import time, os; print('SuperNode ID: 5', flush=True)\n"


@linux
def test_the_supervisor_reports_each_change_once_and_ends_with_its_children(
    supervise: Callable[..., Supervised], device: Device
) -> None:
    node = ONLINE + (
        "import subprocess, sys, signal\n"
        "child = 'import time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'\n"
        "print('child', subprocess.Popen([sys.executable, '-c', child]).pid)\n"
        "print('Connection attempt failed, retrying in 1.00 seconds')\n"
        "print('Connection attempt failed, retrying in 2.00 seconds')\n"
        "print('Connection successful after 3 seconds and 2 tries.')\n"
        "print('settled'); time.sleep(600)"
    )
    supervised = supervise(node)
    supervised.wait_for("settled")
    wait_for(
        lambda: json.loads((device.folder / "status.json").read_text())["text"] == "online as pi-1 again",
        10,
        lambda: (device.folder / "status.json").read_text(),
    )
    child = int(supervised.log.partition("child ")[2].split()[0])
    assert running(child)
    assert supervised.end().splitlines() == [
        "online as pi-1 (node 5)",
        "fl.example.org:9092: connection lost; trying again until it works",
        "online as pi-1 again",
        "ended",
    ]
    wait_for(lambda: not running(child), 10, lambda: f"{child} is still there")
    assert (device.folder / supervisor.ADMITTED).exists()


@pytest.mark.parametrize(
    ("admitted", "line", "said"),
    [
        (
            False,
            "[code: 2004] Failed",
            "not let in yet: the operator must register the key of pi-1, or another has it",
        ),
        (
            True,
            "[code: 2004] Failed",
            "the server still counts the last connection (up to 60 s), or has revoked",
        ),
        (True, "SuperNode terminated gracefully.", "sent away by the server: its key was revoked, or"),
        (True, "Oops", "its SuperNode ended with code 3: see "),
    ],
)
def test_the_supervisor_reports_why_the_supernode_ended_and_restarts_it(
    supervise: Callable[..., Supervised], device: Device, admitted: bool, line: str, said: str
) -> None:
    if admitted:
        (device.folder / supervisor.ADMITTED).touch()
    supervised = supervise(f"print({line!r}); raise SystemExit(3)")
    supervised.wait_for(line, times=3)
    lines = supervised.end().splitlines()
    assert len(lines) == 2  # the same reason is printed once
    assert said in lines[0]


@linux
def test_a_process_over_the_memory_limit_is_killed_and_the_others_are_not(
    supervise: Callable[..., Supervised], device: Device
) -> None:
    device.prepare(replace(device.settings(), memory_limit=150))
    node = ONLINE + (
        "import subprocess, sys\n"
        "hog = 'import time; x = bytearray(200_000_000); time.sleep(600)'\n"
        "print('ended with', subprocess.run([sys.executable, '-c', hog]).returncode); time.sleep(600)"
    )
    supervised = supervise(node)
    supervised.wait_for("ended with -9")
    assert " MB of 150 MB: killed process " in supervised.log
    assert supervised.log.count("SuperNode ID") == 1
    supervised.end()


def test_a_new_address_makes_the_supernode_reconnect(
    supervise: Callable[..., Supervised], device: Device
) -> None:
    # After a moment without a network, once it is online.
    moving = (
        f"log = Path({str(device.folder / supervisor.LOG)!r}); later = iter(['10.0.0.1', None]); "
        "supervisor.source_address = lambda *_: next(later, '10.0.0.2') if log.exists() else '10.0.0.1'"
    )
    supervised = supervise(ONLINE + "time.sleep(600)", moving)
    supervised.wait_for("SuperNode ID", times=2)
    assert "this device's address was 10.0.0.1 and is 10.0.0.2; trying again" in supervised.end()


def test_a_folder_has_one_supervisor(supervise: Callable[..., Supervised]) -> None:
    first = supervise(ONLINE + "time.sleep(600)")
    first.wait_for("SuperNode ID")
    second = supervise(ONLINE + "time.sleep(600)")
    output, _ = second.process.communicate(timeout=30)
    assert second.process.returncode == supervisor.ALREADY_RUNNING
    assert "another `cohort client join` runs with this state" in output
    first.end()


def test_the_size_of_the_log_is_limited(supervise: Callable[..., Supervised], device: Device) -> None:
    node = "for i in range(400): print('line', i, '.' * 40)\n" + ONLINE + "time.sleep(600)"
    supervised = supervise(node, "supervisor.LOG_BYTES = 10_000")
    supervised.wait_for("SuperNode ID")
    supervised.end()
    assert sorted(path.name for path in device.folder.glob("supernode.log*")) == [
        "supernode.log",
        "supernode.log.1",
    ]
    assert all(path.stat().st_size < 11_000 for path in device.folder.glob("supernode.log*"))


# --- a real server and real devices ------------------------------------------------------------------------


def processes_of(parent: int) -> list[int]:
    """Return a process and all its descendants (Linux)."""
    found = [parent]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with server_up(tmp_path_factory.mktemp("federation") / "server") as folder:
        yield folder


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(name: str, *arguments: str) -> Running:
        where = ("--state-dir", str(tmp_path / name))
        started.append(Running(tmp_path / f"{name}.log", "client", "join", *where, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.end()


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended meanwhile
        return ""


def rounds(folder: Path) -> list[dict[str, object]]:
    (history,) = folder.glob("runs/*/history.jsonl")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    return [line for line in lines if line["type"] == "round"][1:]


def memory_alone(pids: list[int]) -> float:
    """Return the memory of processes, MB, as if they shared none with other processes (Linux)."""
    own = 0.0
    files: dict[tuple[str, ...], int] = {}
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:  # it has ended meanwhile
            continue
        where: tuple[str, ...] | None = None
        resident = 0
        for line in maps.splitlines():
            first, *rest = line.split()
            if not first.endswith(":"):
                begin, _, end = first.partition("-")
                size = int(end, 16) - int(begin, 16)
                where = (rest[4], rest[1], str(size)) if len(rest) > 4 and rest[3] != "0" else None
            elif first == "Rss:":
                resident = int(rest[0])
            elif first == "Anonymous:" and where:
                files[where] = max(files.get(where, 0), resident - int(rest[0]))
        rollup = Path(f"/proc/{pid}/smaps_rollup")
        try:
            fields = dict(line.split()[:2] for line in rollup.read_text().splitlines()[1:])
        except OSError:
            continue
        own += float(fields["Pss_Anon:"])  # shared only with forks, which are among the processes
    return (own + sum(files.values())) * 1024 / 1e6


@linux
@pytest.mark.slow  # Flower notices dead nodes after a minute
@pytest.mark.network
def test_two_devices_join_train_within_200_mb_and_survive_the_server_until_one_is_revoked(
    server: Path, join: Callable[..., Running], tmp_path: Path
) -> None:
    address = f"localhost:{json.loads((server / 'server.json').read_text())['port']}"
    # With a key of its own: the device waits until the operator runs the command that it prints.
    first = join("pi-1", "--server", address, "--ca", str(server / "pki" / "ca.crt"), "--name", "pi-1",
                 "--partition", "0/2")  # fmt: skip
    first.wait_for("not let in yet: the operator must register the key of pi-1")
    assert "PRIVATE" not in first.said
    assert "Traceback" not in first.said
    (command,) = [line for line in first.said.splitlines() if "cohort server register" in line]
    cohort(*shlex.split(command)[1:], folder=server)
    # By invitation.
    cohort("server", "invite", "pi-2", "--out", str(tmp_path / "pi-2.invitation"), folder=server)
    second = join("pi-2", "--invitation", str(tmp_path / "pi-2.invitation"), "--partition", "1/2")
    for device in (first, second):
        device.wait_for("online as pi-")
    assert not (tmp_path / "pi-2.invitation").exists()
    assert cohort("server", "list", folder=server).splitlines()[-1] == "2 registered, 2 online"

    # A paused device is polled but not selected.
    assert run_cli("pause", "--state-dir", str(tmp_path / "pi-2"))[0] == 0
    most, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, memory_alone(processes_of(first.process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        settings = ("num-clients=2", "clients-per-round=1", "num-rounds=3", "selector=uniform")
        cohort("server", "run", *(word for each in settings for word in ("--set", each)), folder=server)
    finally:
        done.set()
        watcher.join()
    assert [line["client_ids"] for line in rounds(server)] == [["pi-1"]] * 3
    assert [line["responded"] for line in rounds(server)] == [[True]] * 3
    assert 50 < most < 200, f"{most:.0f} MB"

    # The server dies and restarts: the devices reconnect.
    database = f"--database\0{server / 'superlink.db'}"
    superlink = min(  # not a process forked from it
        int(folder.name) for folder in Path("/proc").glob("[0-9]*") if database in command_line(folder)
    )
    os.kill(superlink, signal.SIGKILL)
    for device, name in ((first, "pi-1"), (second, "pi-2")):
        device.wait_for("connection lost")
        device.wait_for(f"online as {name} again")
    assert run_cli("resume", "--state-dir", str(tmp_path / "pi-2"))[0] == 0

    # A revoked key: the device is disconnected and refused.
    cohort("server", "revoke", "pi-2", folder=server)
    second.wait_for("sent away by the server: its key was revoked")
    second.wait_for("or has revoked the key")
    assert cohort("server", "list", folder=server).splitlines()[-1] == "1 registered, 1 online"

    # A device that is stopped signs off, so that it can reconnect at once.
    first.end()
    assert not [pid for pid in processes_of(first.process.pid) if running(pid)]
    assert "1 registered, 0 online" in cohort("server", "list", folder=server)
    join("pi-1").wait_for("online as pi-1 (node", times=2)


@linux
@pytest.mark.network
@pytest.mark.slow
def test_a_killed_supernode_is_restarted_and_one_without_supervisor_ends(
    server: Path, join: Callable[..., Running], tmp_path: Path
) -> None:
    cohort("server", "invite", "pi-3", "--out", str(tmp_path / "pi-3.invitation"), folder=server)
    device = join("pi-3", "--invitation", str(tmp_path / "pi-3.invitation"))
    device.wait_for("online as pi-3")
    _, node, *_ = processes_of(device.process.pid)
    os.kill(node, signal.SIGKILL)
    # The SuperLink takes up to 60 s to notice this, and refuses the key until then.
    device.wait_for("its SuperNode ended with code -9")
    device.wait_for("online as pi-3 (node", timeout=240, times=2)

    _, *left = processes_of(device.process.pid)
    assert left
    device.process.kill()
    wait_for(lambda: not any(map(running, left)), 60, lambda: f"{left} still run")
