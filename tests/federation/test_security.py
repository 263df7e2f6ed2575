"""Attempts to join or imitate clients: each is refused with a reason in the log, and the run goes on.

A server runs with two honest devices that train all the time.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from deploy.device.device_folder import Device
from deploy.fleet import wire
from deploy.hosting.server import Server
from deploy.processes.groups import Process, stop
from deploy.processes.ports import free_ports
from deploy.tls import certificates

from ..support.devices import COHORT, Running, cohort, public_key_of, server_up
from ..support.processes import wait_for

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="runs devices"),
]

Key = EllipticCurvePrivateKey
HONEST = ["pi-1", "pi-2"]


@dataclass
class Federation:
    """A running server with devices and a run."""

    server: Server
    folder: Path
    """Holds the devices' folders (NAME) and their output (NAME.log)."""
    join: Callable[..., Running]
    devices: dict[str, Running]
    """The last process that joined under each name."""

    @property
    def log(self):
        return (self.server.folder / "logs" / "superlink.log").read_text()

    def lines(self, kind):
        (history,) = self.server.folder.glob("runs/*/history.jsonl")
        complete = [line for line in history.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in map(json.loads, complete) if line["type"] == kind]

    def goes_on(self):
        """Wait for two rounds more, to which all who were chosen have answered."""

        def good():
            return sum(bool(line.get("clients")) and all(line["responded"]) for line in self.lines("round"))

        before = good()
        wait_for(lambda: good() >= before + 2, 120, lambda: str(self.lines("round")[-3:]))

    def operator(self, *arguments):
        return cohort("server", *arguments, folder=self.server.folder)

    def key(self, name):
        """Return an honest device's key."""
        return read_key(self.folder / name / "key")

    def node(self, name):
        return int(json.loads(self.server.client(name).read_text())["node-id"])


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with ExitStack() as stack:
        server = Server.load(stack.enter_context(server_up(folder / "server")))

        devices = {}

        def join(name, *arguments):
            state = ("--state-dir", str(folder / name))
            device = devices[name] = Running(folder / f"{name}.log", "client", "join", *state, *arguments)
            stack.callback(device.end)
            return device

        running = Federation(server, folder, join, devices)
        for number, name in enumerate(HONEST):
            invitation = folder / f"{name}.invitation"
            running.operator("invite", name, "--out", str(invitation))
            shutil.copy(invitation, folder / f"{name}.stolen")
            join(name, "--invitation", str(invitation), "--partition", f"{number}/2")
        for name in HONEST:
            devices[name].wait_for(f"online as {name}")
        settings = ("num-clients=2", "clients-per-round=2", "num-rounds=100000", "selector=uniform",
                    "local-steps=1", "round-deadline=30")  # fmt: skip
        words = [word for each in settings for word in ("--set", each)]
        run = subprocess.Popen([COHORT, "server", "run", *words, "--dir", str(server.folder)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)  # fmt: skip
        stack.callback(run.wait)
        stack.callback(run.kill)
        wait_for(lambda: list(server.folder.glob("runs/*/history.jsonl")), 120, lambda: "no run")
        running.goes_on()
        yield running


def read_key(path):
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return key


def public(key):
    return public_key_to_bytes(key.public_key())


def shown(key, signer, ago=0.0):
    """Return the metadata with which a node authenticates a request: its key, and a signature of the time."""
    time_stamp = (now() - timedelta(seconds=ago)).isoformat()
    signature = sign_message(signer, time_stamp.encode())
    return [(wire.PUBLIC_KEY, public(key)), (wire.TIME_STAMP, time_stamp), (wire.SIGNATURE, signature)]


def activate(key):
    return ActivateNodeRequest(public_key=public(key), heartbeat_interval=30)


def test_a_request_without_its_own_registered_key_is_refused_and_the_log_says_why(federation, tmp_path):
    """Over TLS and without it, with requests of any kind."""
    stranger = read_key(certificates.write_client_key(tmp_path, "stranger"))
    mallory = read_key(certificates.write_client_key(tmp_path, "mallory"))
    federation.operator("register", "mallory", (tmp_path / "mallory.pub").read_text().strip())
    federation.operator(
        "register", "absent", public_key_of(certificates.write_client_key(tmp_path, "absent"))
    )
    absent = read_key(tmp_path / "absent")
    authority = grpc.ssl_channel_credentials(federation.server.authority.read_bytes())
    others = federation.node("pi-1")

    def refused(method, request, metadata, reason):
        before = len(federation.log)
        with (
            grpc.secure_channel(federation.server.address, authority) as channel,
            pytest.raises(grpc.RpcError) as error,
        ):
            wire.calls(channel)[method](request, metadata=metadata, timeout=30)
        assert error.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION)
        new = lambda: federation.log[before:]  # noqa: E731
        wait_for(lambda: re.search(rf"/flwr.proto.Fleet/{method}\].*{reason}", new(), re.DOTALL), 60, new)

    own = shown(mallory, mallory)
    refused("ActivateNode", activate(absent), [], "Missing authentication metadata")
    refused(
        "ActivateNode", activate(stranger), shown(stranger, stranger), "No SuperNode found with the given"
    )
    refused("ActivateNode", activate(absent), shown(absent, stranger), "Invalid signature")
    refused("ActivateNode", activate(absent), shown(absent, absent, ago=600), "Invalid timestamp")  # replayed
    refused("ActivateNode", activate(absent), own, "Another node's key")
    refused(
        "ActivateNode", activate(federation.key("pi-1")), shown(*[federation.key("pi-1")] * 2), "could not be"
    )
    refused("PullMessages", PullMessagesRequest(node=Node(node_id=others)), own, "Invalid node ID")
    refused("DeactivateNode", DeactivateNodeRequest(node_id=others), own, "Invalid node ID")
    refused(
        "RegisterNode",
        RegisterNodeFleetRequest(public_key=public(stranger)),
        shown(stranger, stranger),
        "2001",
    )
    refused("UnregisterNode", UnregisterNodeFleetRequest(node_id=federation.node("mallory")), own, "2002")
    states = federation.server.states()
    assert {name: states[name] for name in (*HONEST, "absent")} == dict.fromkeys(HONEST, "online") | {
        "absent": "registered"
    }
    federation.goes_on()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--root-certificates", "{ca}"], "This port speaks gRPC"),
        (["--insecure"], "This port speaks gRPC"),
        (["--root-certificates", "{foreign}"], "Connection attempt failed"),
    ],
    ids=["no key", "plaintext", "foreign authority"],
)
def test_flowers_own_supernode_is_refused(federation, tmp_path, arguments, says):
    foreign = certificates.write_certificates(tmp_path / "pki").ca
    paths = {"ca": federation.server.authority, "foreign": foreign}
    before = len(federation.server.states())
    log = tmp_path / "log"
    command = ["flower-supernode", "--superlink", federation.server.address, "--port", str(free_ports(1)[0])]
    command += [each.format(**paths) for each in arguments]
    node = Process(command, log, federation.server.environment())
    try:
        wait_for(lambda: re.search(says, log.read_text()), 60, log.read_text)
        assert "SuperNode ID" not in log.read_text()
    finally:
        stop([node], 5)
    assert len(federation.server.states()) == before
    federation.goes_on()


def test_a_key_is_registered_once_and_a_stolen_invitation_does_not_lock_out_its_owner(federation):
    key = (federation.folder / "pi-1" / "key.pub").read_text().strip()
    federation.operator("register", "pi-1", key)  # again: nothing changes
    other = public_key_of(certificates.write_client_key(federation.folder, "other"))
    with pytest.raises(AssertionError, match="name = pi-1: registered already"):
        federation.operator("register", "pi-1", other)
    with pytest.raises(AssertionError, match="already in use"):
        federation.operator("register", "pi-9", key)
    thief = federation.join(
        "thief", "--invitation", str(federation.folder / "pi-1.stolen"), "--partition", "0/2"
    )
    thief.wait_for("another device has used the invitation; unless that is yours, pi-1 must be revoked")
    assert thief.process.wait(30) == 2
    states = federation.server.states()
    assert states["pi-1"] == "online"
    assert not [name for name in states if name.startswith("node-")]
    federation.goes_on()


def test_a_device_sends_nothing_to_a_server_of_another_authority(federation, tmp_path):
    foreign = certificates.write_certificates(tmp_path / "pki").ca
    before = len(federation.log)
    device = federation.join("deceived", "--server", federation.server.address, "--ca", str(foreign))
    device.wait_for("its certificate is refused: ")
    assert device.process.wait(30) == 2
    assert "ActivateNode" not in federation.log[before:]


def test_a_device_that_claims_another_name_keeps_its_own(federation):
    claims = (
        "--server",
        federation.server.address,
        "--ca",
        str(federation.server.authority),
        "--name",
        "pi-1",
    )
    impostor = federation.join("impostor", *claims, "--partition", "0/2")
    impostor.wait_for("not let in yet")
    federation.operator("register", "impostor", Device(federation.folder / "impostor").key_line())
    impostor.wait_for("online as pi-1")  # the device does not know its real name
    wait_for(lambda: "impostor" in federation.lines("roster")[-1]["client_ids"], 60, lambda: federation.log)
    assert federation.lines("roster")[-1]["client_ids"][:2] == HONEST
    federation.goes_on()
    federation.operator("revoke", "impostor")
    impostor.wait_for("sent away by the server: its key was revoked")
    impostor.end()
    federation.goes_on()


def test_a_key_is_changed_during_a_run_and_the_old_one_is_refused(federation):
    old = federation.folder / "old"
    shutil.copytree(federation.folder / "pi-2", old, ignore=shutil.ignore_patterns("lock", "flwr", "tmp"))
    before = federation.node("pi-2")
    federation.devices["pi-2"].end()
    federation.operator("revoke", "pi-2")
    device = federation.join("pi-2", "--new-key")
    device.wait_for("not let in yet: the operator must register the key of pi-2")
    federation.operator("register", "pi-2", Device(federation.folder / "pi-2").key_line())
    device.wait_for("online as pi-2", times=2)
    assert federation.node("pi-2") != before
    late = len(federation.lines("round"))
    wait_for(lambda: any(
        dict(zip(line["client_ids"], line["responded"], strict=True)).get("pi-2")
        for line in federation.lines("round")[late:]
    ), 120, lambda: str(federation.lines("round")[-3:]))  # fmt: skip
    thief = federation.join("old")
    thief.wait_for("not let in: ")
    thief.end()
    federation.goes_on()


def test_a_device_refuses_an_app_that_it_does_not_trust_until_it_is_told_to(federation, tmp_path):
    invitation = tmp_path / "careful.invitation"
    federation.server.invite("careful", invitation, 1, 64 * "0")  # the hash of another app
    device = federation.join("careful", "--invitation", str(invitation), "--partition", "0/2")
    device.wait_for("online as careful, but refuses the server's app, whose bundle is ")
    bundle = federation.operator("bundle").strip()
    assert f"to run it from now on: cohort client trust {bundle}" in device.said
    assert f"Refused bundle {bundle} of run" in (federation.folder / "careful" / "supernode.log").read_text()
    assert "careful" not in federation.lines("roster")[-1]["client_ids"]
    federation.goes_on()
    cohort("client", "trust", bundle, folder=federation.folder / "careful")
    device.wait_for("online as careful again")
    wait_for(lambda: "careful" in federation.lines("roster")[-1]["client_ids"], 200, lambda: federation.log)
    federation.operator("revoke", "careful")
    device.wait_for("sent away by the server: its key was revoked")
    device.end()
    federation.goes_on()
