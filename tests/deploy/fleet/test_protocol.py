"""What is written down of Flower's protocol is what the installed Flower uses."""

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.common import constant
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore import constant as core
from flwr.supercore import utils
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from flwr.supercore.primitives import asymmetric
from numpy import zeros

from deploy.fleet import errors, protocol


def test_the_numbers_and_names_are_flowers():
    codes = constant.ErrorCode
    assert constant.SUPERLINK_NODE_ID == protocol.SUPERLINK
    assert codes.MESSAGE_UNAVAILABLE == protocol.MESSAGE_UNAVAILABLE
    assert codes.REPLY_MESSAGE_UNAVAILABLE == protocol.REPLY_UNAVAILABLE
    assert codes.NODE_UNAVAILABLE == protocol.NODE_UNAVAILABLE
    assert codes.INVALID_FAB == protocol.INVALID_FAB
    assert constant.HEARTBEAT_DEFAULT_INTERVAL == protocol.HEARTBEAT
    assert constant.HEARTBEAT_PATIENCE == protocol.PATIENCE
    assert constant.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE == protocol.CHUNK
    assert constant.ACCESS_TOKEN_KEY == protocol.ACCESS_TOKEN
    assert core.TASK_TOKEN_HEADER == protocol.TASK_TOKEN
    assert constant.AuthnType.OIDC == "oidc"


def test_the_errors_are_those_of_flowers_catalogue():
    statuses = {412: "FAILED_PRECONDITION", 400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED"}
    for code, (status, message) in errors.ERRORS.items():
        known = API_ERROR_MAP[code]
        assert (statuses[known.http_status_code], known.public_message) == (status, message)
    codes = ApiErrorCode
    assert errors.NOT_ACTIVATED == codes.FLEET_NODE_ACTIVATION_FAILED
    assert errors.NOT_RUNNING == codes.FLEET_RUN_STATUS_NOT_ALLOWED
    assert errors.REGISTRATION_DISABLED == codes.FLEET_SUPERNODE_REGISTRATION_DISABLED


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_id_is_stored_as_by_flower(number):
    assert protocol.signed(number) == utils.uint64_to_int64(number)
    assert protocol.unsigned(protocol.signed(number)) == number


def test_a_signature_is_flowers():
    private, public = protocol.new_key()
    key = protocol.key_bytes(public)
    assert key == asymmetric.public_key_to_bytes(public)
    assert asymmetric.verify_signature(public, b"now", protocol.sign(private, b"now"))
    signature = asymmetric.sign_message(private, b"now")
    assert protocol.is_signed(key, b"now", signature)
    assert not protocol.is_signed(key, b"then", signature)
    assert not protocol.is_signed(protocol.key_bytes(protocol.new_key()[1]), b"now", signature)
    with pytest.raises(ValueError, match="PEM"):
        protocol.is_signed(b"no key", b"now", signature)


CONTENT = RecordDict(
    {
        "arrays": ArrayRecord([zeros(3), zeros((2, 2))]),
        "metrics": MetricRecord({"loss": 0.5}),
        "config": ConfigRecord({"round": 1}),
    }
)
ASKED = make_message(Metadata(2**63 + 1, "", 1, 5, "", "3", 1.8e9, 60.0, "train"), CONTENT)


@pytest.mark.parametrize("message", [ASKED, Message(Error(3, "gone"), reply_to=ASKED)])
def test_the_objects_of_a_message_are_flowers(message):
    tree = inflatable_object.get_object_tree(message)
    found = inflatable_object.get_all_nested_objects(message)
    assert list(dict.fromkeys(each.object_id for each in protocol.each_object(tree))) == list(found)
    for name, each in found.items():
        content = each.deflate()
        inflatable_utils.validate_object_content(content)
        assert protocol.name_of(content) == name
        assert protocol.is_name(name)
        kind, children = protocol.head(content)
        assert (kind, children) == (type(each).__name__, list(each.children or {}))
        other = content.replace(kind.encode(), b"Other", 1)
        damaged = [content + b"x", content[:-1], other, content[:9], b""]
        for wrong in damaged:
            with pytest.raises((ValueError, inflatable_object.UnexpectedObjectContentError)):
                inflatable_utils.validate_object_content(wrong)
            with pytest.raises(ValueError, match=r"head|unpack"):
                protocol.head(wrong)
    message.metadata.__dict__["_message_id"] = message.object_id
    parts = (each.object_id for each in tree.children)
    assert protocol.message_content(message_to_proto(message), parts) == message.deflate()


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, " " * 64])
def test_only_hashes_are_names(text):
    assert not protocol.is_name(text)
    assert not inflatable_object.is_valid_sha256_hash(text)


def test_a_tree_is_read_children_first():
    tree = ObjectTree(object_id="a", children=[ObjectTree(object_id="b"), ObjectTree(object_id="b")])
    assert [each.object_id for each in protocol.each_object(tree)] == ["b", "b", "a"]
