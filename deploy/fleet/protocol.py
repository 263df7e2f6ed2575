"""What the machines of a federation agree on beside the messages of `wire`: numbers, keys, objects and times.

Devices of all versions of Flower share these, so they are written down here and not looked up in Flower. A
test compares them with the Flower that is installed.
"""

import hashlib
import os
import string
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.error_pb2 import Error
from flwr.proto.message_pb2 import Message, Metadata

SUPERLINK = 1
"""The node id of the ServerApp, in messages to nodes and in their replies."""
MESSAGE_UNAVAILABLE, REPLY_UNAVAILABLE, NODE_UNAVAILABLE, INVALID_FAB = 3, 4, 5, 7
"""Codes of error replies."""
HEARTBEAT = 30.0  # s between two heartbeats of a node or of an app
PATIENCE = 2  # a node counts as offline after this many times the seconds between its heartbeats
CHUNK = int(os.environ.get("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE") or 5 * 1024 * 1024)
"""The most bytes of an array's data in one object. Flower reads the same variable."""
ACCESS_TOKEN = "flwr-oidc-access-token"  # the name of the operator's token
TASK_TOKEN = "flwr-task-token"  # the header with which an app shows which task it works on

_KINDS = {"ArrayChunk", "Array", "ArrayRecord", "ConfigRecord", "Message", "MetricRecord", "RecordDict"}
_SIGNED = ec.ECDSA(hashes.SHA256())


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def signed(number: int) -> int:
    """Return the signed number of 64 bits by which the database knows an id."""
    return number - 2**64 if number >= 2**63 else number


def unsigned(number: int) -> int:
    """Return the id that the database knows by a signed number of 64 bits."""
    return number % 2**64


# --- keys ------------------------------------------------------------------------------------------------


def new_key() -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """Return a new private key of a node, and its public key."""
    private = ec.generate_private_key(ec.SECP384R1())
    return private, private.public_key()


def key_bytes(public: Any) -> bytes:
    """Return a public key in the form in which requests name it, and the database keeps it."""
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    found: bytes = public.public_bytes(*form)
    return found


def sign(private: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Return the signature of a content."""
    return private.sign(content, _SIGNED)


def is_signed(key: bytes, content: bytes, signature: bytes) -> bool:
    """Tell whether a content was signed with the key that `key_bytes` describes.

    Raises ValueError or TypeError if the key is none.
    """
    public: Any = serialization.load_pem_public_key(key)
    try:
        public.verify(signature, content, _SIGNED)
    except InvalidSignature:
        return False
    return True


# --- objects: the parts of a message ---------------------------------------------------------------------


def each_object(tree: Any) -> Iterator[Any]:
    """Yield the objects of a tree (ObjectTree), children before their parents."""
    for child in tree.children:
        yield from each_object(child)
    yield tree


def names_in(tree: Any) -> list[str]:
    """Return the names of the objects of a tree (ObjectTree), each once, children before their parents."""
    return list(dict.fromkeys(each.object_id for each in each_object(tree)))


def name_of(content: bytes) -> str:
    """Return the name (`object_id`) of an object: the hash of its content."""
    return hashlib.sha256(content).hexdigest()


def is_name(text: str) -> bool:
    """Tell whether a text may be the name of an object."""
    return len(text) == 64 and not set(text) - set(string.hexdigits)


def head(content: bytes) -> tuple[str, list[str]]:
    """Return the type of an object, and the names of its children.

    Raises ValueError if the content has no valid head: type, names and the bytes of the rest, and a NUL.
    """
    end = content.find(b"\0")
    kind, children, length = content[: max(end, 0)].decode().split(" ")
    names = children.split(",") if children else []
    if kind not in _KINDS or not all(map(is_name, names)) or int(length) != len(content) - end - 1:
        raise ValueError("the content of an object has no valid head")
    return kind, names


def message_content(message: Any, children: Iterable[str] = ()) -> bytes:
    """Return the content of the object that a message (Message of `flwr.proto`) is. `children`: their names.

    The name of this object is the message's id, so the id is left out.
    """
    body = Message(metadata=message.metadata)
    body.metadata.message_id = ""
    if message.HasField("error"):
        body.error.CopyFrom(message.error)
    rest: bytes = body.SerializeToString(deterministic=True)
    return f"Message {','.join(children)} {len(rest)}\0".encode() + rest


def error_reply(code: int, reason: str, **metadata: Any) -> tuple[Any, bytes]:
    """Return a reply to the ServerApp that holds an error, as Message of `flwr.proto`, and its content.

    `metadata`: the fields of the reply's metadata except its id and its receiver.
    """
    reply = Message(
        metadata=Metadata(dst_node_id=SUPERLINK, **metadata), error=Error(code=code, reason=reason)
    )
    content = message_content(reply)
    reply.metadata.message_id = name_of(content)
    return reply, content
