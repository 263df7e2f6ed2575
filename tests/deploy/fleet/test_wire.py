"""Devices of Flower 1.39 find the methods, messages and objects that they know."""

import pytest
from flwr.proto.node_pb2 import Node

from deploy.fleet import wire
from tests.support import wire_contract


def test_the_wire_has_all_that_devices_of_flower_1_39_use():
    recorded = wire_contract.RECORDED.read_text().splitlines()
    assert sum(line.startswith("/flwr.proto.Fleet/") for line in recorded) == 12
    now = wire_contract.lines()
    assert [line for line in recorded if line not in now] == []


def test_a_request_of_before_is_signed_in_these_headers():
    headers = [wire.PUBLIC_KEY, wire.TIME_STAMP, wire.SIGNATURE]
    assert headers == ["flwr-public-key-bin", "flwr-timestamp", "flwr-signature-bin"]


@pytest.mark.parametrize("size", [1, 127, 128, 70_000, 3_000_000])
def test_what_a_message_carries_is_ignored_by_programs_that_do_not_know_it(size):
    bare = wire.METHODS["PullMessages"].request(node=Node(node_id=7))
    assert wire.carried(bare) == b""
    loaded = type(bare).FromString(bare.SerializeToString())
    wire.carry(loaded, bytes(size))
    received = type(bare).FromString(loaded.SerializeToString())
    assert wire.carried(received) == bytes(size)
    assert received.node == bare.node


def test_a_number_in_the_place_of_what_is_carried_counts_as_nothing():
    request = wire.METHODS["PullMessages"].request()
    request.MergeFromString(b"\xc0\x3e\x07")
    assert wire.carried(request) == b""


def test_a_field_that_has_changed_is_noticed(monkeypatch):
    pull = wire.METHODS["PullMessages"]
    monkeypatch.setitem(wire.METHODS, "PullMessages", pull._replace(request=Node))
    missing = set(wire_contract.RECORDED.read_text().splitlines()) - set(wire_contract.lines())
    assert missing == {
        f"{pull.path} flwr.proto.PullMessagesRequest flwr.proto.PullMessagesResponse",
        "flwr.proto.PullMessagesRequest 1 node flwr.proto.Node",
        "flwr.proto.PullMessagesRequest 2 message_ids type-9 repeated",
    }
