"""The front door checks each signature once, and the time of each request."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from deploy.fleet import front_door, protocol, wire
from deploy.fleet.errors import RequestRefused

PULL = wire.METHODS["PullMessages"]


class Door:
    """A front door that knows two nodes, and their signed headers."""

    def __init__(self):
        self.keys = {node: protocol.new_key() for node in (1, 2)}
        self.now = protocol.now()
        public = {protocol.key_bytes(key): node for node, (_, key) in self.keys.items()}
        state = SimpleNamespace(node_of_key=public.get)
        factory = SimpleNamespace(state=lambda: state)
        gate = SimpleNamespace(node=lambda peer: None, admitted=lambda peer, node: None)
        unused = None
        self._door = front_door.FrontDoor(factory, gate, 1, unused, unused)

    def headers(self, node):
        stamp = self.now.isoformat()
        private, public = self.keys[node]
        signature = protocol.sign(private, stamp.encode())
        return dict(
            zip(
                (wire.PUBLIC_KEY, wire.TIME_STAMP, wire.SIGNATURE),
                (protocol.key_bytes(public), stamp, signature),
                strict=True,
            )
        )

    def node(self, headers):
        """Return the node that is admitted with these headers."""
        call = SimpleNamespace(invocation_metadata=headers.items())
        return self._door._authenticate(call, PULL, "peer")[1]


@pytest.fixture
def door(monkeypatch):
    made = Door()
    monkeypatch.setattr(protocol, "now", lambda: made.now)
    return made


@pytest.fixture
def checked(monkeypatch):
    """Return the time stamps whose signatures have been checked."""
    stamps = []
    check = front_door._check_signature

    def noting(key, signature, time_stamp):
        stamps.append(time_stamp)
        check(key, signature, time_stamp)

    monkeypatch.setattr(front_door, "_check_signature", noting)
    return stamps


def test_a_signature_that_is_sent_again_is_checked_once(door, checked):
    first, other = door.headers(1), door.headers(2)
    for _ in range(3):
        assert door.node(first) == 1
        assert door.node(other) == 2
    assert len(checked) == 2
    door.now += timedelta(seconds=1)
    assert door.node(door.headers(1)) == 1
    assert len(checked) == 3


def test_what_was_signed_once_admits_nothing_else(door):
    first, other = door.headers(1), door.headers(2)
    assert door.node(first) == 1
    assert door.node(other) == 2
    later = (door.now + timedelta(seconds=1)).isoformat()
    for wrong in (
        first | {wire.SIGNATURE: other[wire.SIGNATURE]},
        first | {wire.TIME_STAMP: later},
        first | {wire.PUBLIC_KEY: other[wire.PUBLIC_KEY]},
    ):
        with pytest.raises(RequestRefused, match="Invalid signature"):
            door.node(wrong)
    assert door.node(first) == 1


@pytest.mark.parametrize("seconds", [wire.OLDEST + 1, wire.NEWEST - 1])
def test_a_signature_that_was_checked_is_refused_when_its_time_is_wrong(door, seconds):
    first = door.headers(1)
    assert door.node(first) == 1
    door.now += timedelta(seconds=seconds)
    with pytest.raises(RequestRefused, match="Invalid timestamp"):
        door.node(first)
