"""`cohort client`: wrong options are refused; pause, resume, trust and status."""

import json
import os
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from deploy.device import reconnect
from deploy.device.device_folder import TRAINED, Device
from deploy.tls import certificates

from ...support.devices import BUNDLE, run_cli
from ...support.processes import linux
from ...support.tls import tls_server, written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no client has joined here"),
        (["--server", "h:1"], "server, ca: must be given together"),
        (["--server", "one,two:9092"], "server = 'one': must be host:port"),
        (["--invitation", "x", "--server", "h:1", "--ca", "y"], "invitation = x: already contains --server"),
        (["--invitation", "x"], "invitation = x: there is no such file"),
        (["--server", "h:1", "--ca", "y"], "ca = y: cannot be read"),
        (["--nice", "30"], "nice = 30: must be between 0 and 19"),
        (["--data", "/no/such.npz"], "data = /no/such.npz: there is no such file"),
        (["--invitation", "x", "--new-key"], "invitation = x: already contains --server"),
    ],
)
def test_join_refuses_wrong_options_before_it_writes_anything(tmp_path, arguments, message):
    code, output = run_cli("join", "--state-dir", str(tmp_path / "state"), *arguments)
    assert code == 2
    assert message in output
    assert not (tmp_path / "state").exists()


def test_join_refuses_a_server_whose_certificate_has_expired(tmp_path):
    """It waited without end, as for a server that is down."""
    files = written(tmp_path / "pki", timedelta(days=-9), timedelta(days=-1), "server")
    state = tmp_path / "state"
    with tls_server(files) as server:
        address = f"localhost:{server.port}"
        code, output = run_cli("join", "--server", address, "--ca", str(files.ca), "--state-dir", str(state))
    assert code == 2
    assert output.startswith(f"server = {address}: its certificate is refused: it expired on 20")
    assert "the operator must renew it" in output
    assert not state.exists()


def test_join_names_an_expired_certificate_later_too_but_a_service_waits(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("os.execve", lambda *arguments: started.append(arguments))
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    files = written(tmp_path / "pki", timedelta(days=-9), timedelta(days=-1), "server")
    device = Device(tmp_path / "state")
    with tls_server(files) as server:
        device.prepare(device.introduce("pi-1", f"localhost:{server.port}", files.ca))
        code, output = run_cli("join", "--state-dir", str(device.folder))
        assert code == 2
        assert "its certificate is refused: it expired on 20" in output.splitlines()[-1]
        assert not started
        monkeypatch.setenv("INVOCATION_ID", "set by systemd")
        assert run_cli("join", "--state-dir", str(device.folder))[0] == 0
    assert len(started) == 1


def test_join_says_whether_the_server_has_registered_this_device(device, authority, tmp_path, monkeypatch):
    monkeypatch.setattr("os.execve", lambda *_: None)
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("deploy.device.cli.unreachable", lambda *_: None)
    (device.folder / reconnect.ADMITTED).touch()
    key = device.key_line()

    def join(server, ca, *options):
        where = ("--state-dir", str(device.folder))
        code, output = run_cli("join", "--server", server, "--ca", str(ca), *where, *options)
        assert code == 0
        return output

    for _ in range(2):
        output = join("fl.example.org:9092", authority.ca)
        assert "this device is registered with fl.example.org:9092 as pi-1 already; it keeps its" in output
        assert "must register" not in output
    other = certificates.write_certificates(tmp_path / "other").ca
    for change in (
        lambda: join("fl.example.org:9092", authority.ca, "--name", "pi-9"),
        lambda: join("fl.example.org:9999", authority.ca),
        lambda: join("fl.example.org:9999", other),
    ):
        (device.folder / reconnect.ADMITTED).touch()
        assert "must register this device once with this command" in change()
        assert device.key_line() == key


def test_a_missing_file_can_be_replaced_and_a_damaged_one_is_named(device, tmp_path, monkeypatch):
    where = ("--state-dir", str(device.folder))
    data, other = tmp_path / "stick.npz", tmp_path / "other.npz"
    np.savez(other, inputs=np.ones((2, 3)), labels=[0, 1])
    device.prepare(replace(device.settings(), data=str(data)))
    monkeypatch.setattr("os.execve", lambda *_: None)
    monkeypatch.setattr("os.nice", lambda _: 0)
    assert run_cli("join", *where) == (2, f"data = {data}: there is no such file\n")
    data.write_text("0.5,0.5,1")
    assert run_cli("join", *where) == (
        2,
        f"data = {data}: must be an .npz with inputs and labels, without objects\n",
    )
    assert run_cli("pause", *where)[0] == 0
    assert run_cli("join", *where, "--data", str(other))[0] == 0
    assert device.settings().data == str(other)
    (device.folder / "client.json").write_text("")
    code, output = run_cli("join", *where)
    assert code == 2
    assert "client.json: cannot be read: " in output


@linux
def test_a_status_from_before_a_power_failure_is_ignored(device, monkeypatch):
    monkeypatch.setattr("deploy.device.cli.unreachable", lambda *_: None)
    said = {"state": "online", "text": "online as pi-1", "since": "yesterday", "pid": os.getpid()}
    for text in (json.dumps(said), json.dumps({**said, "pid": 4194304}), '{"state"', ""):
        (device.folder / reconnect.STATUS).write_text(text)
        code, output = run_cli("status", "--state-dir", str(device.folder))
        assert (code, output.splitlines()[0]) == (1, "pi-1: not running")


@linux
def test_a_status_cannot_command_the_terminal(device, monkeypatch):
    monkeypatch.setattr("deploy.device.cli.unreachable", lambda *_: None)
    said = {"state": "off", "text": "gone\x1b[2J", "since": "\x1b]52;c;cm0gLXJmIH4=\x07"}
    (device.folder / reconnect.STATUS).write_text(json.dumps(said))
    _, output = run_cli("status", "--state-dir", str(device.folder))
    assert output.splitlines()[0] == r"pi-1: gone\x1b[2J, since \x1b]52;c;cm0gLXJmIH4=\x07"


def test_pause_resume_and_status(device, monkeypatch):
    where = ("--state-dir", str(device.folder))
    assert run_cli("pause", *where) == (0, "pi-1 is paused\n")
    monkeypatch.setattr("deploy.device.cli.unreachable", lambda *_: "connection refused")
    code, output = run_cli("status", *where)
    assert code == 1
    assert output.splitlines()[:5] == [
        "pi-1: not running",
        "training: no, paused by its user",
        "trained: not yet",
        "app: any that the server sends (`cohort client trust HASH` allows one only)",
        "server: fl.example.org:9092, connection refused",
    ]
    assert run_cli("resume", *where) == (0, "pi-1 takes part again\n")
    assert run_cli("trust", BUNDLE, *where) == (0, f"pi-1 runs only the one with the hash {BUNDLE}\n")
    assert device.settings().bundle == BUNDLE
    assert run_cli("trust", "x", *where)[1].startswith(
        "bundle = 'x': must be a hash of 64 hexadecimal digits"
    )
    assert run_cli("trust", "any", *where)[0] == 0
    assert device.settings().bundle == ""
    assert "whenever the server asks" in run_cli("status", *where)[1]
    code, output = run_cli("pause", "--state-dir", "/no/such")
    assert code == 2
    assert "no client has joined here" in output


def test_status_says_what_the_device_has_trained(device, monkeypatch):
    monkeypatch.setattr("deploy.device.cli.unreachable", lambda *_: None)
    note = device.folder / TRAINED
    for text, expected in (
        ('{"trained": 3, "last": "today", "problem": ""}', ["trained: 3 times, last at today"]),
        (
            '{"trained": 1, "last": "\\u001b[2J", "problem": "data = x\\u0007"}',
            [r"trained: 1 times, last at \x1b[2J", r"last message: failed, data = x\x07"],
        ),
        ("[3]", ["trained: not yet"]),
    ):
        note.write_text(text)
        _, output = run_cli("status", "--state-dir", str(device.folder))
        assert output.splitlines()[2 : 2 + len(expected)] == expected


def test_join_says_what_the_data_are(device, tmp_path, monkeypatch):
    monkeypatch.setattr("deploy.device.cli.none_reachable", lambda *_: None)
    monkeypatch.setattr("os.execve", lambda *_: None)
    monkeypatch.setattr("os.nice", lambda _: 0)
    np.savez(tmp_path / "mine.npz", inputs=np.array([[0.0, 255.0]]), labels=np.array([7]))
    where = ("--state-dir", str(device.folder))
    code, output = run_cli("join", *where, "--data", str(tmp_path / "mine.npz"))
    assert code == 0
    assert "data: 1 samples of 2 features from 0 to 255, labels from 7 to 7\n" in output
    assert "data:" not in run_cli("join", *where)[1]


def test_each_address_of_a_server_must_be_one_and_show_a_certificate_of_its_authority(
    device, tmp_path, monkeypatch
):
    started = []
    monkeypatch.setattr("os.execve", lambda *_: started.append(_))
    monkeypatch.setattr("os.nice", lambda _: 0)
    mine, other = (certificates.write_certificates(tmp_path / name) for name in ("mine", "other"))
    where = ("--state-dir", str(device.folder), "--ca", str(mine.ca))
    for server, reason in (
        (
            "one.example.org:9092,two.example.org",
            "server = 'two.example.org': must be host:port, for example",
        ),
        ("one.example.org:9092,", "server = '': must be host:port"),
        ("one.example.org:9092 two.example.org:9092", "must be host:port"),
        (
            ",".join(f"h{number}:1" for number in range(65)),
            "server: must be at most 64 addresses, and not 65",
        ),
    ):
        code, output = run_cli("join", "--server", server, *where)
        assert code == 2
        (line,) = output.splitlines()
        assert reason in line
    with tls_server(mine) as server, tls_server(other) as stranger:
        both = f"localhost:{server.port},localhost:{stranger.port}"
        code, output = run_cli("join", "--server", both, *where)
        assert code == 2
        assert output.startswith(f"server = localhost:{stranger.port}: its certificate is refused")
        assert "ca.crt belongs to another server" in output
        assert device.settings().server == "fl.example.org:9092"  # as before
        device.prepare(device.introduce("pi-1", both, mine.ca))  # the other one was replaced since
        assert run_cli("join", *where[:2])[0] == 0
        _, output = run_cli("status", *where[:2])
        assert f"server: localhost:{server.port}, reachable" in output
        assert f"server: localhost:{stranger.port}, its certificate is refused" in output
    assert len(started) == 1
