"""A real SuperLink with TLS and authentication, its nodes, and raw HTTP/2 connections to it."""

import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeId
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid

from deploy.fleet import wire
from deploy.flower import commands
from deploy.processes.groups import Process, wait_until
from deploy.processes.ports import LOOPBACK, free_ports
from deploy.tls import certificates
from deploy.tls.probe import serves

PULL = "/flwr.proto.Fleet/PullMessages"
RECORD = 16_000  # bytes of a frame that fits into a record of TLS
Metadata = Sequence[tuple[str, str | bytes]]
_REQUEST = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class SuperLink:
    """A SuperLink with a database, started as `cohort server up` starts it.

    Parameters
    ----------
    folder : Path
        An empty folder of its own.
    database : str | None
        The address of a PostgreSQL database. (default: SQLite)
    """

    def __init__(self, folder, database=None):
        self.folder = folder
        self.is_shared, self.database = database is not None, database or folder / "superlink.db"
        self.authority = certificates.write_certificates(folder / "pki").ca
        self.environment = os.environ | {
            **commands.guarded(folder / "secret"),
            **commands.shared("here", "a" * 64),
            "FLWR_HOME": str(folder / "flwr"),
            "TMPDIR": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
        self._state = None
        for _ in range(5):  # another program may take the ports meanwhile
            self.control, self.port = free_ports(2)
            if self._starts():
                return
        raise AssertionError(self.log)

    def _starts(self):
        command = commands.superlink(
            control=(LOOPBACK, self.control),
            fleet=(LOOPBACK, self.port),
            keys=self.folder / "pki",
            database=self.database,
            secret=self.folder / "secret",
        )
        self.process = Process(commands.patched(command), self.folder / "superlink.log", self.environment)
        ports = self.control, self.port
        wait_until(
            lambda: (
                self.process.returncode is not None or all(serves(each, self.authority) for each in ports)
            ),
            120,
        )
        return self.process.returncode is None

    @property
    def address(self):
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self):
        return (self.folder / "superlink.log").read_text(errors="replace")

    @property
    def state(self):
        """The database, opened a second time."""
        if self._state is None and self.is_shared:
            from tests.support.postgres import shared  # not at the top: the driver is an extra

            self._state = shared(self.database)
        if self._state is None:
            store = SqlObjectStore(str(self.database))
            store.initialize()
            self._state = SqlLinkState(str(self.database), NoOpFederationManager(), store)
            self._state.initialize()
        return self._state

    @property
    def disk(self):
        """The bytes of its database."""
        if self.is_shared:
            ((size,),) = self.state.rows("SELECT pg_database_size(current_database())")
            return size
        return self.database.stat().st_size

    @property
    def memory(self):
        """The memory that it takes, in MB."""
        return self._status("VmRSS") // 1024

    @property
    def peak(self):
        """The most memory that it took since `forget_peak`, in MB."""
        return self._status("VmHWM") // 1024

    @property
    def threads(self):
        return self._status("Threads")

    @property
    def cpu(self):
        """The CPU time that it has taken, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self):
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self, name):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition(f"{name}:")[2].split()[0])

    def node(self, name):
        """Return a new node, which is registered and online."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = public_key_to_bytes(key.public_key())
        number = self.state.create_node("flwr_aid", "name", public, 0) if name else 0
        return Node(self, key, number)

    def restart(self):
        """Kill it and start it again with the same database and ports."""
        self.end()
        assert wait_until(lambda: self.process.returncode is not None, 10)
        assert self._starts(), self.log

    def end(self):
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, 9)


class Node:
    """A node with its key and a connection of its own."""

    def __init__(self, superlink, key, number):
        self.superlink, self.key, self.number = superlink, key, number
        self.public = public_key_to_bytes(key.public_key())
        self.address = superlink.address
        self._channel = None

    @property
    def id(self):
        return NodeId(node_id=self.number)

    @property
    def metadata(self):
        """What authenticates a request."""
        stamp = now().isoformat()
        return [
            (wire.PUBLIC_KEY, self.public),
            (wire.TIME_STAMP, stamp),
            (wire.SIGNATURE, sign_message(self.key, stamp.encode())),
        ]

    def connect(self, **options):
        credentials = grpc.ssl_channel_credentials(self.superlink.authority.read_bytes())
        self._channel = grpc.secure_channel(
            self.address,
            credentials,
            [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)],
            **options,
        )
        return wire.calls(self._channel)

    def ask(self, method, request, timeout=30.0, more=(), **options):
        """Send a request, with further headers, on a new connection and return the response."""
        calls = self.connect(**options)
        try:
            return calls[method](request, metadata=[*self.metadata, *more], timeout=timeout)
        finally:
            self.close()

    def close(self):
        """Close the last connection."""
        assert self._channel is not None
        self._channel.close()

    def activate(self):
        """Come online."""
        self.ask("ActivateNode", ActivateNodeRequest(public_key=self.public, heartbeat_interval=30))

    def latency(self):
        """Return the seconds that a heartbeat takes over a new connection, as an honest node's."""
        began = time.monotonic()
        self.ask("SendNodeHeartbeat", SendNodeHeartbeatRequest(node=self.id, heartbeat_interval=30))
        return time.monotonic() - began

    def receive(self):
        """Return the next message, without what it holds."""
        response = self.ask("PullMessages", PullMessagesRequest(node=self.id))
        (message,) = response.messages_list
        confirm = ConfirmMessageReceivedRequest(
            node=self.id, run_id=message.metadata.run_id, message_object_id=message.metadata.message_id
        )
        self.ask("ConfirmMessageReceived", confirm)
        return message_from_proto(message)

    def announce(self, reply, **changed):
        """Return the request that announces a reply, with some of its metadata changed."""
        proto = message_to_proto(remove_content_from_message(reply))
        proto.metadata.message_id = reply.object_id
        for name, value in changed.items():
            setattr(proto.metadata, name, value)
        return PushMessagesRequest(
            node=self.id,
            messages_list=[proto],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[0.1],
        )

    def answer(self, reply, objects=None):
        """Announce a reply and push its objects."""
        if objects is None:
            objects = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
        self.push(self.announce(reply), objects)

    def push(self, request, objects):
        response = self.ask("PushMessages", request)
        for name in response.objects_to_push:
            self.ask(
                "PushObject",
                PushObjectRequest(
                    node=self.id,
                    run_id=request.messages_list[0].metadata.run_id,
                    object_id=name,
                    object_content=objects[name],
                    session_id=response.session_id,
                ),
            )


class App:
    """What a ServerApp sees of a run on a SuperLink.

    Parameters
    ----------
    superlink : SuperLink
        Its database gets a run, whose task this process takes.
    """

    def __init__(self, superlink):
        state = superlink.state
        run_id = state.create_run(
            "app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "flwr_aid", TaskType.SERVER_APP
        )
        (self.run,) = state.get_run_info(run_ids=[run_id])
        task = self.run.primary_task_id
        assert task is not None
        token = state.claim_task(task)
        assert token is not None
        assert state.activate_task(task)
        self.grid = HttpGrid(
            f"{LOOPBACK}:{superlink.control}", False, superlink.authority.read_bytes(), token=token
        )
        self.grid.set_run(self.run)

    def send(self, node, size, round=None):
        """Send a node a message with `size` bytes, and return the message's id."""
        (sent,) = self.send_all({node: size}, round)
        return sent

    def send_all(self, sizes, round=None):
        """Send each node a message with so many bytes, at a time, and return the messages' ids."""
        contents = {
            node: RecordDict({"arrays": ArrayRecord([random_bytes(size)])}) for node, size in sizes.items()
        }
        return self.push(contents, round)

    def push(self, contents, round=None):
        """Send each node a message with this content, at a time, and return the messages' ids."""
        TaskIdentity.task_id, TaskIdentity.run_id = self.run.primary_task_id or 0, self.run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        group = "" if round is None else str(round)
        messages = [
            Message(content, node.number, "train", ttl=300, group_id=group)
            for node, content in contents.items()
        ]
        return list(self.grid.push_messages(messages))

    def replies(self, *message_ids):
        """Return the replies that are there, by the message that each answers."""
        return {each.metadata.reply_to_message_id: each for each in self.grid.pull_messages(message_ids)}

    def close(self):
        self.grid.close()
        TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = None


def random_bytes(size):
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


class Connection:
    """A connection that speaks HTTP/2 frame by frame, over TLS.

    Parameters
    ----------
    superlink : SuperLink
        The server.
    confirms : bool
        Whether to confirm the server's settings, as gRPC does.
    window : int
        How many bytes of each answer the server may send (default: as many as gRPC allows).
    """

    def __init__(self, superlink, *, confirms=True, window=65_535):
        context = ssl.create_default_context(cafile=str(superlink.authority))
        context.set_alpn_protocols(["h2"])
        raw = socket.create_connection((LOOPBACK, superlink.port))
        self._socket = context.wrap_socket(raw, server_hostname=LOOPBACK)
        self._stream = -1
        self._socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, struct.pack("!HI", 4, window))
        )
        if confirms:
            self._socket.sendall(_frame(4, 1, 0))

    def send(self, frames):
        self._socket.sendall(frames)

    def half_open(self, path, metadata=None, body=b""):
        """Begin a request without ending it, and return its stream."""
        self._stream += 2
        fields = [*_REQUEST, (":path", path), *(metadata or [])]
        data = _frame(1, 4, self._stream, b"".join(_field(*each) for each in fields))
        if body:
            data += _frame(0, 0, self._stream, body)
        self._socket.sendall(data)
        return self._stream

    def expand(self, count, *, end=False):
        """Send a request that names a header `count` times, by a byte each. Without `end`, it never ends."""
        self._stream += 2
        self._socket.sendall(_frame(1, 0, self._stream, b"".join(_field(*each) for each in _REQUEST)))
        parts = [b"\x93" * min(RECORD, count - sent) for sent in range(0, count, RECORD)]
        for part in parts[:-1]:
            self._socket.sendall(_frame(9, 0, self._stream, part))
        self._socket.sendall(_frame(9, 4 if end else 0, self._stream, parts[-1]))

    def closed(self, seconds):
        """Whether the server closes the connection in time."""
        self._socket.settimeout(seconds)
        with suppress(TimeoutError):
            try:
                while self._socket.recv(65536):
                    pass
            except (ConnectionError, ssl.SSLError):
                pass
            return True
        return False

    def received(self, seconds):
        """What the server has sent after that time."""
        self._socket.settimeout(seconds)
        data = b""
        with suppress(TimeoutError, OSError):
            while part := self._socket.recv(65536):
                data += part
        return data

    def close(self):
        self._socket.close()


def _frame(kind, flags, stream, data=b""):
    return struct.pack("!I", len(data))[1:] + struct.pack("!BBI", kind, flags, stream) + data


def _field(name, value):
    """Return a header as HPACK writes it that is neither compressed nor remembered."""
    if isinstance(value, bytes):
        import base64

        value = base64.b64encode(value).decode().rstrip("=")
    return b"\0" + b"".join(_length(len(each)) + each.encode() for each in (name, value))


def _length(number):
    if number < 127:
        return bytes([number])
    number -= 127
    data = b"\x7f"
    while number >= 128:
        data += bytes([number % 128 + 128])
        number //= 128
    return data + bytes([number])


def allow_files(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
