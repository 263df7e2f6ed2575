"""The supervisor of a device, in a process of its own, with a script in place of the SuperNode."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from deploy.device import reconnect
from deploy.device.default_folder import default_folder
from deploy.flower import commands
from deploy.tls import certificates

from ...support import disks
from ...support.processes import linux, running, wait_for
from ...support.tls import tls_server, written


class Supervised:
    """A supervisor in a process of its own, with a script in place of the SuperNode."""

    def __init__(self, device, node, changes=""):
        self.folder = device.folder
        script = f"""
            import sys
            from pathlib import Path
            from deploy.device import memory_limit, reconnect
            reconnect.none_reachable = lambda *_: None
            reconnect.source_address = lambda *_: "10.0.0.1"
            reconnect.FIRST_RESTART = reconnect.LONGEST_RESTART = 0.01
            reconnect.DeviceSupervisor.look = memory_limit.LOOK = reconnect.NETWORK_LOOK = 0.05
            {changes}
            command = [sys.executable, "-u", "-c", {dedent(node)!r}]
            sys.exit(reconnect.DeviceSupervisor(Path({str(device.folder)!r}), command).supervise())
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", dedent(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def log(self):
        path = self.folder / reconnect.LOG
        return path.read_text() if path.exists() else ""

    def wait_for(self, text, times=1):
        wait_for(lambda: self.log.count(text) >= times, 30, lambda: self.log)

    def end(self):
        self.process.terminate()
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return "\n".join(line.partition(" ")[2] for line in output.splitlines())


@pytest.fixture
def supervise(device):
    started = []

    def start(node, changes=""):
        started.append(Supervised(device, node, changes))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


ONLINE = "import time, os; print('SuperNode ID: 5', flush=True)\n"


@pytest.mark.parametrize(("is_default", "option"), [(True, ""), (False, " --state-dir '/srv/a b'")])
def test_a_device_outside_the_default_folder_says_where_it_is(device, monkeypatch, is_default, option):
    said = []
    supervisor = reconnect.DeviceSupervisor(device.folder, ["true"])
    monkeypatch.setattr(supervisor, "_say", lambda _, text: said.append(text))
    monkeypatch.setattr(reconnect, "append", lambda *_: None)
    folder = default_folder() if is_default else Path("/srv/a b")
    monkeypatch.setattr(supervisor, "folder", folder)
    supervisor.line(f"{commands.REFUSED_BUNDLE} {'a' * 64}".encode())
    assert said[0].endswith(f"to run it from now on: cohort client trust {'a' * 64}{option}")


@linux
def test_the_supervisor_reports_each_change_once_and_ends_with_its_children(supervise, device):
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
    assert (device.folder / reconnect.ADMITTED).exists()


@pytest.mark.parametrize(
    ("admitted", "line", "said"),
    [
        (False, "[code: 2004] Failed", "not let in yet: the operator must register the key of pi-1, or"),
        (True, "[code: 2004] Failed", "not let in: another device is connected with this key, or the server"),
        (
            True,
            "Invalid timestamp: this device's clock is 9 s ahead of the server's; it may be 5 s ahead and "
            "305 s behind\nSuperNode terminated gracefully.",
            "sent away by the server: this device's clock is 9 s ahead of the server's; it may be 5 s ahead",
        ),
        (True, "SuperNode terminated gracefully.", "sent away by the server: its key was revoked, or"),
        (True, "Oops", "its SuperNode ended with code 3: see "),
    ],
)
def test_the_supervisor_reports_why_the_supernode_ended_and_restarts_it(
    supervise, device, admitted, line, said
):
    if admitted:
        (device.folder / reconnect.ADMITTED).touch()
    supervised = supervise(f"print({line!r}); raise SystemExit(3)")
    supervised.wait_for(line.splitlines()[-1], times=3)
    lines = supervised.end().splitlines()
    assert len(lines) == 2  # the same reason is printed once
    assert said in lines[0]


@linux
def test_a_process_over_the_memory_limit_is_killed_and_the_others_are_not(supervise, device):
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


def test_a_new_address_makes_the_supernode_reconnect(supervise, device):
    # After a moment without a network, once it is online.
    moving = (
        f"log = Path({str(device.folder / reconnect.LOG)!r}); later = iter(['10.0.0.1', None]); "
        "reconnect.source_address = lambda *_: next(later, '10.0.0.2') if log.exists() else '10.0.0.1'"
    )
    supervised = supervise(ONLINE + "time.sleep(600)", moving)
    supervised.wait_for("SuperNode ID", times=2)
    assert "this device's address was 10.0.0.1 and is 10.0.0.2; trying again" in supervised.end()


def test_a_folder_has_one_supervisor(supervise):
    first = supervise(ONLINE + "time.sleep(600)")
    first.wait_for("SuperNode ID")
    second = supervise(ONLINE + "time.sleep(600)")
    output, _ = second.process.communicate(timeout=30)
    assert second.process.returncode == reconnect.ALREADY_RUNNING
    assert "another `cohort client join` runs with this state" in output
    first.end()


def test_the_device_goes_on_while_its_disk_is_full(supervise, device):
    saved = {path.name: path.read_bytes() for path in device.folder.iterdir() if path.is_file()}
    with disks.mounted(device.folder, "1m"):
        for name, content in saved.items():
            (device.folder / name).write_bytes(content)
        others = device.folder / "of others"
        node = ONLINE + (
            f"free = lambda: os.statvfs({str(device.folder)!r}).f_bavail\n"
            "while free(): time.sleep(0.01)\n"
            "for _ in range(100): print('Connection attempt failed', 100 * '.', flush=True)\n"
            "while not free(): time.sleep(0.01)\n"
            "print('Connection successful', flush=True)\n"
            "print('still process', os.getpid(), flush=True)\n"
            "time.sleep(600)\n"
        )
        supervised = supervise(node)
        supervised.wait_for("SuperNode ID")
        with others.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        time.sleep(1)
        others.unlink()
        supervised.wait_for("still process")
        status = device.folder / reconnect.STATUS
        wait_for(lambda: "online as pi-1 again" in status.read_text(), 10, status.read_text)
        assert supervised.end().count("connection lost") == 1
        assert supervised.log.count("SuperNode ID") == 1  # it was not started again


def test_the_size_of_the_log_is_limited(supervise, device):
    node = "for i in range(400): print('line', i, '.' * 40)\n" + ONLINE + "time.sleep(600)"
    supervised = supervise(node, "from deploy.device import reconnect; reconnect.LOG_BYTES = 10_000")
    supervised.wait_for("SuperNode ID")
    supervised.end()
    assert sorted(path.name for path in device.folder.glob("supernode.log*")) == [
        "supernode.log",
        "supernode.log.1",
    ]
    assert all(path.stat().st_size < 11_000 for path in device.folder.glob("supernode.log*"))


REAL_PROBE = "from deploy.tls.probe import none_reachable; reconnect.none_reachable = none_reachable"


def at(device, server, files):
    device.prepare(device.introduce("pi-1", f"localhost:{server.port}", files.ca))


def test_a_device_waits_until_an_expired_certificate_is_renewed(supervise, device, tmp_path):
    files = written(tmp_path / "pki", timedelta(days=-9), timedelta(days=-1), "server")
    with tls_server(files) as server:
        at(device, server, files)
        supervised = supervise(ONLINE + "time.sleep(600)", REAL_PROBE)
        status = device.folder / reconnect.STATUS
        wait_for(
            lambda: status.exists() and "it expired on" in status.read_text(), 30, lambda: supervised.log
        )
        assert not supervised.log  # the SuperNode has not been started
        certificates.renew_certificate(files.ca.parent)
        server.show(files)
        supervised.wait_for("SuperNode ID")
        lines = supervised.end().splitlines()
    assert [line for line in lines if "it expired on" in line] == lines[:1]  # it is printed once
    assert lines[0].endswith("trying again until it works")
    assert lines[-2:] == ["online as pi-1 (node 5)", "ended"]


def test_a_supernode_that_lost_an_expired_server_is_told_so(supervise, device, tmp_path):
    """The SuperNode itself says only that it tries again."""
    files = certificates.write_certificates(tmp_path / "pki")
    expired = written(tmp_path / "expired", timedelta(days=-9), timedelta(days=-1), "server")
    with tls_server(files) as server:
        at(device, server, files)
        (device.folder / reconnect.CA).write_bytes(files.ca.read_bytes() + expired.ca.read_bytes())
        node = ONLINE + (
            "from pathlib import Path\n"
            f"lost, found = map(Path, ({str(tmp_path / 'lost')!r}, {str(tmp_path / 'found')!r}))\n"
            "while not lost.exists(): time.sleep(0.01)\n"
            "while not found.exists():\n"
            "    print('Connection attempt failed, retrying in 1.00 seconds', flush=True); time.sleep(0.05)\n"
            "print('Connection successful', flush=True); time.sleep(600)"
        )
        supervised = supervise(node, REAL_PROBE)
        supervised.wait_for("SuperNode ID")
        server.show(expired)
        (tmp_path / "lost").touch()
        status = device.folder / reconnect.STATUS
        wait_for(lambda: "it expired on" in status.read_text(), 30, status.read_text)
        (tmp_path / "found").touch()
        wait_for(lambda: "online as pi-1 again" in status.read_text(), 30, status.read_text)
        lines = supervised.end().splitlines()
    assert lines[0] == "online as pi-1 (node 5)"
    assert lines[1] == f"localhost:{server.port}: connection lost; trying again until it works"
    assert lines[2].startswith(f"localhost:{server.port}: its certificate is refused: it expired on 20")
    assert lines[3:] == ["online as pi-1 again", "ended"]


def test_a_device_knows_the_addresses_that_it_joined_with_and_those_that_the_server_told(device, authority):
    def found():
        return reconnect.servers_of(device.folder, device.settings().server)

    assert found() == ["fl.example.org:9092"]
    told = device.folder / reconnect.SERVERS
    told.write_text("two.example.org:9092,fl.example.org:9092")
    assert found() == device.servers() == ["fl.example.org:9092", "two.example.org:9092"]
    command = reconnect.DeviceSupervisor(device.folder).command()
    assert command[command.index("--superlink") + 1] == ",".join(found())
    for damaged in (b"", b"two.example.org", b"\xff", b","):
        told.write_bytes(damaged)
        assert found() == ["fl.example.org:9092"]
    told.write_text("two.example.org:9092")
    device.introduce("pi-1", "three.example.org:9092", authority.ca)  # another server
    assert found() == ["three.example.org:9092"]


def test_the_file_of_the_addresses_is_the_supernodes(device):
    environment = reconnect.DeviceSupervisor(device.folder).environment()
    assert environment[commands.SERVERS] == str(device.folder / reconnect.SERVERS)
