"""A real gRPC server registers the key of the first device that shows an invitation's token in time."""

import errno
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from deploy.device.enrolment import enrol
from deploy.fleet.duties import enrolment
from deploy.fleet.duties.enrolment import AT_ONCE, MAX_REQUEST, METHOD, Enrolment
from deploy.flower.commands import INVITATION_HEADER
from deploy.flower.registered_clients import DAY, RegistrationRefused, Registry
from deploy.processes.ports import free_ports
from deploy.tls import certificates
from tests.support.devices import public_key_of
from tests.support.processes import wait_for
from tests.support.states import made


def states(folder):
    """Return what gives a new, empty state in a folder."""
    folder.mkdir(exist_ok=True)
    state = made(folder / "superlink.db")
    return SimpleNamespace(state=lambda: state)


class Server:
    """A Fleet API that only has the enrolment."""

    def __init__(self, folder):
        self.registry = Registry(folder)
        self.registry.prepare()
        factory = states(folder)
        self.state = factory.state()
        self.files = certificates.write_certificates(folder / "pki")
        self.address = f"localhost:{free_ports(1)[0]}"
        self.enrolment = Enrolment(self.registry, factory)
        self.server = grpc.server(ThreadPoolExecutor(8), handlers=[self.enrolment])
        pair = (self.files.key.read_bytes(), self.files.certificate.read_bytes())
        self.server.add_secure_port(self.address, grpc.ssl_server_credentials([pair]))
        self.server.start()

    def enrol(self, token, key):
        enrol(self.address, self.files.ca, token, key)

    def nodes(self):
        return {str(node.node_id): node.name for node in self.state.get_node_info()}


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.server.stop(None)


@pytest.fixture
def keys(tmp_path):
    """Return three devices' public keys."""
    return [public_key_of(certificates.write_client_key(tmp_path / "keys", name)) for name in "abc"]


def test_an_invitation_registers_one_key(server, keys):
    token = server.registry.invite("pi-1", 60)
    for _ in range(2):  # the device missed the first answer
        server.enrol(token, keys[0])
    assert list(server.nodes().values()) == ["pi-1"]
    assert server.registry.clients() == {"pi-1": next(iter(server.nodes()))}
    assert server.registry.invited() == {}
    with pytest.raises(ValueError, match="another device has used the invitation; unless that is yours"):
        server.enrol(token, keys[1])
    assert len(server.nodes()) == 1


def test_concurrent_devices_cannot_share_an_invitation(server, keys, monkeypatch):
    token = server.registry.invite("pi-1", 60)
    write, together = server.registry._write, threading.Barrier(2)

    def write_late(*arguments):
        with suppress(threading.BrokenBarrierError):
            together.wait(0.5)  # for another device to come as far as this one
        write(*arguments)

    monkeypatch.setattr(server.registry, "_write", write_late)

    def join(key):
        try:
            server.enrol(token, key)
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(join, keys)) == 1
    assert len(server.nodes()) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("expired", "did not answer|does not accept"),
        ("withdrawn", "did not answer|does not accept"),
        ("registered", "pi-1 is registered already"),
        ("another's key", "the public key is another client's"),
        ("no key", "must be an elliptic-curve key"),
        ("a long key", "must be an elliptic-curve key"),
        ("a wrong token", "did not answer|does not accept"),
        ("a large request", "5000 bytes, and at most 4096 are allowed"),
    ],
)
def test_a_refusal_names_its_reason_and_registers_nothing(server, keys, change, reason):
    token, key = server.registry.invite("pi-1", 0 if change == "expired" else 60), keys[0]
    if change == "withdrawn":
        assert server.registry.withdraw("pi-1")
    elif change == "registered":
        server.registry.record("pi-1", "7", keys[1])
    elif change == "another's key":
        server.enrol(server.registry.invite("pi-2", 60), key)
    elif change == "no key":
        key = "ssh-rsa AAAA"
    elif change == "a long key":
        key = f"{key} {'x' * 2000}"
    elif change == "a large request":
        key = "x" * (MAX_REQUEST + 904 - 3)  # and three bytes before it
    elif change == "a wrong token":
        token = token[:-1]
    before = server.nodes()
    with pytest.raises(ValueError, match=reason):
        server.enrol(token, key)
    assert server.nodes() == before
    assert not server.registry.client("pi-1").exists() or change == "registered"


def test_a_full_disk_uses_up_no_invitation_and_a_device_is_told_no_paths(server, keys, monkeypatch, caplog):
    token = server.registry.invite("pi-1", 60)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/cohort-server/invitations/x")

    with monkeypatch.context() as patch:
        patch.setattr(server.registry, "_write", full)
        with pytest.raises(ValueError, match="did not answer") as refused:
            server.enrol(token, keys[0])
    assert "UNAVAILABLE: its log says why" in str(refused.value)
    assert "No space left on device: '/var/lib/cohort-server/invitations/x'" in caplog.text
    server.enrol(token, keys[0])
    assert list(server.nodes().values()) == ["pi-1"]


def test_whoever_has_a_token_occupies_few_threads_and_for_a_short_time(server, keys, monkeypatch):
    monkeypatch.setattr(enrolment, "SECONDS", 1.5)
    token, used, *others = (server.registry.invite(f"pi-{number}", 60) for number in range(1, AT_ONCE + 3))
    server.enrol(used, keys[1])
    credentials = grpc.ssl_channel_credentials(server.files.ca.read_bytes())
    never = threading.Event()

    def no_body():
        never.wait(30)
        yield from ()

    with grpc.secure_channel(server.address, credentials) as channel:
        grpc.channel_ready_future(channel).result(10)
        ask = channel.stream_unary(METHOD)

        def attack(tokens):
            return [ask.future(no_body(), metadata=((INVITATION_HEADER, each),)) for each in tokens]

        def codes(attacks):
            return sorted(attack.exception(timeout=10).code().name for attack in attacks)

        of_one = attack(2 * AT_ONCE * [used])
        wait_for(lambda: sum(each.done() for each in of_one) == 2 * AT_ONCE - 1, 10, lambda: "not refused")
        server.enrol(token, keys[0])  # although the attack goes on
        assert codes(of_one) == ["CANCELLED"] + ["RESOURCE_EXHAUSTED"] * (2 * AT_ONCE - 1)
        of_many = attack([used, *others])
        assert codes(of_many) == ["CANCELLED"] * AT_ONCE + ["RESOURCE_EXHAUSTED"]
        never.set()
    server.enrol(others[0], keys[2])
    assert sorted(server.nodes().values()) == ["pi-1", "pi-2", "pi-3"]


def test_a_token_is_known_until_it_expires_or_a_day_after_its_use(server, keys, monkeypatch):
    registry, begin = server.registry, time.time()
    unused, used = registry.invite("pi-1", 60), registry.invite("pi-2", 60)
    registry.accept(used, keys[0], lambda name, key: "7")
    assert registry.knows(unused)
    for seconds, known in ((50.0, True), (DAY - 60, False), (DAY + 60, False)):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: begin + seconds)
        assert registry.knows(unused) == known
        assert registry.knows(used) == (seconds < DAY)
    with pytest.raises(RegistrationRefused, match="the invitation has expired"):
        registry.accept(unused, keys[1], lambda name, key: "8")
    for damaged in ("", "[]", "{}", '{"key": "x"}'):
        registry._file(used).write_text(damaged)
        assert not registry.knows(used)


def test_an_invitation_is_withdrawn_before_or_after_its_use(tmp_path):
    """`cohort server revoke` would else miss a device that is joining, and the device would stay."""
    registry, withdrawn = Registry(tmp_path), threading.Event()
    registry.prepare()
    token = registry.invite("pi-1", 60)

    def withdraw():
        assert Registry(tmp_path).withdraw("pi-1")  # as another process
        withdrawn.set()

    revoking = threading.Thread(target=withdraw)

    def register(name, key):
        revoking.start()
        assert not withdrawn.wait(0.3)
        return "7"

    assert registry.accept(token, "key", register) == "pi-1"
    revoking.join(10)
    assert registry.clients() == {"pi-1": "7"}  # which `revoke` looks for next
    with pytest.raises(RegistrationRefused, match="withdrawn"):
        registry.accept(token, "key", register)


def test_the_request_of_a_stranger_is_not_read(server):
    ask = Enrolment(server.registry, None).service
    token = server.registry.invite("pi-1", 60)

    class Call:
        method = METHOD
        invocation_metadata: Any = ()

    def passed_on(metadata, method=METHOD):
        call = Call()
        call.method, call.invocation_metadata = method, metadata
        return ask(call) is None

    assert passed_on(())
    assert passed_on(((INVITATION_HEADER, "../../clients/pi-1"),))
    assert passed_on(((INVITATION_HEADER, b"binary"),))
    assert passed_on(((INVITATION_HEADER, token),), "/flwr.proto.Fleet/ActivateNode")
    assert not passed_on(((INVITATION_HEADER, token),))


def test_the_clients_that_a_new_database_lacks_are_registered_again(server, keys, tmp_path):
    for name, key in zip(("pi-1", "pi-2"), keys, strict=False):
        server.enrol(server.registry.invite(name, 60), key)
    before = server.registry.clients()
    record = json.loads(server.registry.client("pi-1").read_text())
    server.enrolment.restore()
    assert server.registry.clients() == before == {name: id for id, name in server.nodes().items()}

    # The database is lost. Of the files, one is damaged and one has the key of another.
    server.registry.record("pi-3", "7", "no key")
    server.registry.record("pi-4", "8", keys[0])
    server.registry.client("pi-5").write_text("[]")
    server.registry.client("pi-6").write_bytes(b"\xff")
    new = Enrolment(server.registry, states(tmp_path / "new"))
    assert list(server.registry.restore(new._register)) == ["pi-3", "pi-4", "pi-5", "pi-6"]
    state = new._state_factory.state()
    assert sorted(node.name for node in state.get_node_info()) == ["pi-1", "pi-2"]
    restored = json.loads(server.registry.client("pi-1").read_text())
    assert restored != record
    assert restored == {**record, "node-id": restored["node-id"]}
    assert {str(node.node_id) for node in state.get_node_info()} == {
        json.loads(server.registry.client(name).read_text())["node-id"] for name in ("pi-1", "pi-2")
    }

    # A client that was unregistered behind the registry's back stays out.
    (node,) = (node for node in state.get_node_info() if node.name == "pi-1")
    state.delete_node(node.owner_aid, node.node_id)
    assert "pi-1" in server.registry.restore(new._register)
    assert "online" not in {each.status for each in state.get_node_info()}
    assert state.get_node_info(node_ids=[node.node_id])[0].status == "unregistered"
