"""A SuperNode's connection to the Fleet API: signed requests over gRPC, repeated while they may succeed.

A server may have several front ends (docs/scale.md). A SuperNode is connected to one of their addresses at a
time (`server_addresses.Server`). When the connection is lost, it repeats its requests at the next one.
"""

import importlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from logging import getLogger
from math import inf
from pathlib import Path
from typing import Any, NoReturn

import grpc

from deploy.fleet import protocol, wire
from deploy.fleet.duties.held_requests import LONGEST_LONG
from deploy.fleet.duties.joined_objects import join, split
from deploy.fleet.duties.presence import HOLD, PATIENT
from deploy.fleet.sockets import PING, keep_all_alive
from deploy.fleet.supernode.server_addresses import HIDDEN, PASSING, Line, Server
from deploy.flower.commands import CONNECTED_AGAIN, CONNECTION_FAILED, NO_GRPC
from deploy.flower.patches.shared import FAILING, LOOK
from deploy.json_text import parse_json
from deploy.tls.addresses import addresses_of

FIRST_RETRY, LONGEST_RETRY = 0.5, 2.0  # s, the first and the longest pause before a request is repeated
OPTIONS = {
    **PATIENT,
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    "grpc.keepalive_time_ms": int(PING * 1000),
    "grpc.http2.max_pings_without_data": 0,  # no limit; gRPC's default is two
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": int(LONGEST_RETRY * 1000),  # gRPC's default is 2 min
    "grpc.min_reconnect_backoff_ms": 8000,  # gRPC uses this also as the time that an attempt may take
    # If a name stands for several machines, devices spread over them.
    "grpc.service_config": '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}',
    "grpc.use_local_subchannel_pool": 1,  # otherwise a new channel would use the connection of an old one
}
MOVING = 5.0  # s within which a SuperNode moves to another front end that has fewer devices, at random
# Texts in the details if the server does not speak HTTP/2, or not TLS, or HTTP/2 without gRPC.
FOREIGN = ("missing selected ALPN", "Failed parsing HTTP/2", "WRONG_VERSION_NUMBER", "http2 header")
ANSWERED_IN = 5.0  # s in which the SuperLink answers a heartbeat that it does not hold
SIGNED = 10.0  # s for which requests have the same time stamp and signature, which the server checks once
GOODBYE = 5.0  # s in which a SuperNode that ends signs off
NO_CONNECTION = 305  # the code of the message that says so
ENDING = 10.0  # s that a SuperNode takes to end after a request was refused

_SERDE = "flwr.common.serde"
_OBJECTS = "flwr.supercore.inflatable.inflatable_utils"
_NODE = "flwr.proto.node_pb2"
_EXIT = "flwr.supercore.exit"


class NoGrpcError(Exception):
    """The server does not speak gRPC, or does not know the Fleet API. The message says what to do."""


class RunNotRunningError(Exception):
    """The run of a request is not running."""


class Requests:
    """Sends requests to the Fleet API, each signed, and repeats those that may succeed later.

    A request that is refused with PERMISSION_DENIED raises RunNotRunningError. After
    UNAUTHENTICATED the SuperNode ends. While the SuperLink is unavailable, or an error is temporary
    (`PASSING`), the request is repeated; after an unexpected error of the SuperLink (`HIDDEN`), for `FAILING`
    seconds. Any other error is raised; a server that does not speak gRPC raises NoGrpcError.

    `server`: where to send them; after a lost connection, its next address. `keys`: the node's private and
    public key. `max_tries`: how many times a request is sent at most; None: no
    limit. `max_seconds`: how long a request is repeated at most, in seconds; None: no limit.
    """

    def __init__(
        self, server: Server, keys: Any, max_tries: int | None = None, max_seconds: float | None = None
    ) -> None:
        self.server = server
        self._private, self._public = keys[0], protocol.key_bytes(keys[1])
        self._max_tries, self._max_seconds = max_tries, max_seconds
        # When the last headers were signed (time.time(), s), and the headers
        self._signed: tuple[float, tuple[tuple[str, Any], ...]] = -inf, ()
        self._ends = threading.Lock()  # taken when the process has been told to end

    def once(
        self,
        name: str,
        request: Any,
        timeout: float | None = None,
        more: Sequence[tuple[str, str]] = (),
        line: Line | None = None,
    ) -> Any:
        """Send a request once. ``timeout`` is in seconds, ``more`` holds further headers.

        ``line``: the channel; by default the present one.
        """
        headers = (*self._signature(), *more)
        line = line or self.server.line
        answer = line.methods[name](request, timeout=timeout, metadata=headers)
        self.server.answered(line)
        return answer

    def _signature(self) -> tuple[tuple[str, Any], ...]:
        now = time.time()  # no monotonic clock, because those stand still while the device sleeps
        signed, headers = self._signed
        if not 0 <= now - signed < SIGNED:
            stamp = protocol.now().isoformat()
            signature = protocol.sign(self._private, stamp.encode("ascii"))
            headers = (wire.PUBLIC_KEY, self._public), (wire.TIME_STAMP, stamp), (wire.SIGNATURE, signature)
            self._signed = now, headers
        return headers

    def send(self, name: str, request: Any, more: Sequence[tuple[str, str]] = ()) -> Any:
        """Send a request, and repeat it while it may succeed.

        ``more`` holds further headers of the first attempt. With `wire.LONG`, a later attempt would say for
        minutes that the connection is lost.
        """
        began, tries, pause, failing = time.monotonic(), 0, FIRST_RETRY, None
        while True:
            tries += 1
            line = self.server.line
            try:
                answer = self.once(name, request, more=more if tries == 1 else (), line=line)
            except ValueError:  # gRPC's: the channel is closed
                if self.server.line is line:
                    raise
                tries = 0
                continue
            except grpc.RpcError as error:
                if self.server.line is not line:  # another thread has left this address
                    tries = 0
                    continue
                now, details = time.monotonic(), error.details() or ""
                failing = (failing or now) if HIDDEN in details else None
                if self._is_final(error, line, 0.0 if failing is None else now - failing):
                    raise
                if self._max_tries is not None and tries >= self._max_tries:
                    raise
                if self._max_seconds is not None and now - began > self._max_seconds:
                    raise
                getLogger("flwr").warning(
                    "%s (%s), next in %.1f s: %s", CONNECTION_FAILED, name, pause, details
                )
                self.server.failed(line, details)
                time.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, LONGEST_RETRY)
                continue
            if tries > 1:
                seconds = time.monotonic() - began
                getLogger("flwr").info(
                    "%s (%s) after %d attempts in %.1f s", CONNECTED_AGAIN, name, tries, seconds
                )
            return answer

    def ask(self, name: str, **fields: Any) -> Any:
        """Send a request with these fields, and repeat it while it may succeed."""
        return self.send(name, wire.METHODS[name].request(**fields))

    def _is_final(self, error: grpc.RpcError, line: Line, failing: float) -> bool:
        """Return whether a request that failed, over ``line``, must not be repeated.

        ``failing`` is for how many seconds the SuperLink has answered with unexpected errors.
        """
        details = error.details() or ""
        if error.code() is grpc.StatusCode.UNIMPLEMENTED or any(text in details for text in FOREIGN):
            if not self.server.is_unfit(line):
                return False
            raise NoGrpcError(
                f"The server {NO_GRPC}, or is older than this device. Is the address that of the Fleet API "
                f"of `cohort server up`? ({details})"
            ) from error
        match error.code():
            case grpc.StatusCode.PERMISSION_DENIED:
                raise RunNotRunningError from error
            case grpc.StatusCode.UNAUTHENTICATED:
                getLogger("flwr").error("%s", details)
                self.end()
                return True
            case grpc.StatusCode.CANCELLED:  # by this device, or by a SuperLink that was busy for minutes
                return any(text in details.lower() for text in ("locally", "closed"))
            case grpc.StatusCode.UNAVAILABLE:
                return "handshake failed" in details.lower() and self.server.is_unfit(line)
        if HIDDEN in details:
            return failing > FAILING
        return not any(text in details for text in PASSING)

    def end(self) -> None:
        """Let the process end as after Ctrl-C; the first call returns after a while if it has not ended."""
        if self._ends.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(ENDING)


class Heartbeats:
    """Keeps a heartbeat under way in a thread of its own.

    The SuperLink holds each heartbeat for minutes, except the first after a lost connection: otherwise a
    SuperNode would say for minutes that the connection is lost, while the SuperLink lists the node as online.
    """

    def __init__(self, requests: Requests, request: Any) -> None:
        self._requests, self._request = requests, request
        self._over = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="heartbeats", daemon=True).start()

    def stop(self) -> None:
        """Send no further heartbeat. Does not wait for the answer to a held one."""
        self._over.set()

    def _run(self) -> None:
        connected = held = True
        pause = LOOK
        while not self._over.is_set():
            began = time.monotonic()
            line = self._requests.server.line
            try:
                self._beat(line, held=connected)
            except Exception as error:
                connected = False
                if self._over.is_set():
                    return
                if self._requests.server.line is not line:  # another thread has left this address
                    continue
                details = error.details() if isinstance(error, grpc.RpcError) else HIDDEN
                self._requests.server.failed(line, details or "")
                if not isinstance(error, grpc.RpcError) or error.code() not in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                ):
                    getLogger("flwr").warning("A heartbeat failed: %s", error)
                self._over.wait(pause)
                pause = min(2 * pause, LONGEST_RETRY)
                continue
            if not connected:
                getLogger("flwr").info("%s (a heartbeat)", CONNECTED_AGAIN)
            pause = LOOK
            before, held = held, time.monotonic() - began >= LOOK
            if connected and not (held or before):  # the SuperLink does not hold heartbeats
                self._over.wait(HOLD)
            connected = True

    def _beat(self, line: Line, *, held: bool) -> None:
        try:
            if held:
                keep_all_alive()
            seconds, more = (LONGEST_LONG, (wire.HELD, wire.LONG, wire.MOVES)) if held else (HOLD, ())
            answer = self._requests.once(
                "SendNodeHeartbeat", self._request, seconds + ANSWERED_IN, more, line
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                getLogger("flwr").error("%s", error.details())
                self._requests.end()
            raise
        if not answer.success:
            raise RuntimeError("the SuperLink does not know this SuperNode")
        known, better = wire.told_addresses(answer)
        self._requests.server.learn(known)
        if better and not self._over.wait(random.uniform(0.0, MOVING)):
            self._move(random.choice(better))

    def _move(self, address: str) -> None:
        """Go on at another address when the SuperNode is idle, and if the address answers a heartbeat.

        So the SuperNode leaves a server only for one that has shown a certificate of the same authority, for
        its own name, and that knows this SuperNode.
        """
        server = self._requests.server
        if not server.idle.wait(MOVING) or self._over.is_set():
            return
        line = server.open(address)
        try:
            answer = self._requests.once("SendNodeHeartbeat", self._request, ANSWERED_IN, line=line)
        except grpc.RpcError as error:
            getLogger("flwr").info("Stays, because %s does not answer: %s", address, error.details())
            answer = None
        if answer and answer.success:
            server.move(line)
        else:
            line.channel.close()


class Connection:
    """A SuperNode that is connected to the Fleet API, and what it may ask."""

    def __init__(self, requests: Requests, node: Any) -> None:
        self._requests, self._node = requests, node
        self.node_id: int = node.node_id
        self._serde, self._objects = importlib.import_module(_SERDE), importlib.import_module(_OBJECTS)

    def receive(self) -> tuple[Any, Any, dict[str, bytes]] | None:
        """Return the next message, without its content, and its tree of objects; None if there is none.

        Also returns the contents of the objects, by name, if the server sent all of them with the message.
        """
        self._requests.server.idle.set()
        request = wire.METHODS["PullMessages"].request(node=self._node)
        answer = self._requests.send("PullMessages", request, (wire.LONG, wire.WHOLE))
        if not answer.messages_list:
            return None
        self._requests.server.idle.clear()
        tree, content = answer.message_object_trees[0], wire.carried(answer)
        contents = dict(zip(protocol.names_in(tree), split(content), strict=True)) if content else {}
        return self._serde.message_from_proto(answer.messages_list[0]), tree, contents

    def send(
        self, message: Any, object_tree: Any, runtime: float, contents: Sequence[bytes] = ()
    ) -> tuple[set[str], str]:
        """Announce a reply. ``runtime`` is how many seconds the ClientApp took.

        ``contents``: those of all objects, in the order of `protocol.names_in`, if the announcement carries
        them.

        Returns the ids of the objects to push, and the push session.
        """
        announced = self._serde.message_to_proto(message)
        if announced.HasField("content"):
            announced.content.Clear()  # it is in the objects
        request = wire.METHODS["PushMessages"].request(
            node=self._node,
            messages_list=[announced],
            message_object_trees=[object_tree],
            clientapp_runtime_list=[runtime],
        )
        if contents:
            wire.carry(request, join(contents))
        answer = self._requests.send("PushMessages", request)
        return set(answer.objects_to_push), answer.session_id

    def get_run(self, run_id: int) -> Any:
        """Return a run (flwr.supercore.run.Run)."""
        return self._serde.run_from_proto(self._requests.ask("GetRun", node=self._node, run_id=run_id).run)

    def get_fab(self, fab_hash: str, run_id: int) -> Any:
        """Return the bundle of a run (flwr.supercore.fab.Fab)."""
        answer = self._requests.ask("GetFab", node=self._node, hash_str=fab_hash, run_id=run_id)
        return self._serde.fab_from_proto(answer.fab)

    def pull_object(self, run_id: int, object_id: str) -> bytes:
        """Return the content of an object, as `transfers.pull` expects it."""
        answer = self._requests.ask("PullObject", node=self._node, run_id=run_id, object_id=object_id)
        if not answer.object_found:
            raise self._objects.ObjectPullError(object_id, "the object could not be found.")
        if not answer.object_available:
            raise self._objects.ObjectUnavailableError(object_id)
        content: bytes = answer.object_content
        return content

    def push_object(self, run_id: int, session_id: str, object_id: str, content: bytes) -> None:
        """Send an object, as `transfers.push` expects it."""
        what = {"object_id": object_id, "object_content": content, "session_id": session_id}
        if not self._requests.ask("PushObject", node=self._node, run_id=run_id, **what).stored:
            raise self._objects.ObjectPushError(object_id, run_id, session_id)

    def confirm(self, run_id: int, message_id: str) -> None:
        """Confirm that a message has arrived with all its objects."""
        self._requests.ask(
            "ConfirmMessageReceived", node=self._node, run_id=run_id, message_object_id=message_id
        )


@contextmanager
def connect(
    server_address: str,
    insecure: bool,
    root_certificates: bytes | str | None = None,
    authentication_keys: Any = None,
    max_retries: int | None = None,
    max_wait_time: float | None = None,
    kept: Path | None = None,
) -> Iterator[Connection]:
    """Connect to the Fleet API until the end of the `with` block. An error in the block ends it with a line.

    `server_address`: host:port, or several with commas between them. `insecure`: whether to connect without
    TLS. `root_certificates`: the certificates that verify the server's, or the path of their file; None:
    those of the system. `authentication_keys`: the node's private and public key; None: a new pair, which the
    server must accept without registration. `max_retries`, `max_wait_time`: how many times, and for how many
    seconds, a request is repeated at most; None: no limit. `kept`: the file for the addresses that the server
    tells; None: none.
    """
    if isinstance(root_certificates, str):
        root_certificates = Path(root_certificates).expanduser().read_bytes()
    keys = authentication_keys or protocol.new_key()
    public = protocol.key_bytes(keys[1])
    options = list(OPTIONS.items())

    def channel(address: str) -> grpc.Channel:
        if insecure:
            return grpc.insecure_channel(address, options=options)
        credentials = grpc.ssl_channel_credentials(root_certificates)
        return grpc.secure_channel(address, credentials, options=options)

    server = Server(addresses_of(server_address), channel, kept)
    requests = Requests(server, keys, None if max_retries is None else max_retries + 1, max_wait_time)
    node = beats = None
    try:
        try:
            if authentication_keys is None:
                requests.ask("RegisterNode", public_key=public)
            answer = requests.ask("ActivateNode", public_key=public, heartbeat_interval=protocol.HEARTBEAT)
        except Exception as error:
            _exit(error)
        server.learn(wire.told_addresses(answer)[0])
        node = importlib.import_module(_NODE).Node(node_id=answer.node_id)
        heartbeat = wire.METHODS["SendNodeHeartbeat"].request(
            node=node, heartbeat_interval=protocol.HEARTBEAT
        )
        beats = Heartbeats(requests, heartbeat)
        beats.start()
        getLogger("flwr").info("Connected to the SuperLink over gRPC")
        yield Connection(requests, node)
    except Exception as error:
        getLogger("flwr").error("%s", error)
    finally:
        if beats is not None:
            beats.stop()
        if node is not None:
            signs_off = ["DeactivateNode", *(["UnregisterNode"] if authentication_keys is None else ())]
            with suppress(grpc.RpcError):
                for name in signs_off:
                    requests.once(name, wire.METHODS[name].request(node_id=node.node_id), GOODBYE)
        server.line.channel.close()


def _exit(error: Exception) -> NoReturn:
    """End the SuperNode, which could not connect, with a message that holds the reason."""
    cause = error.__cause__ if isinstance(error, RunNotRunningError) else error  # it has no text of its own
    reason = str(cause)
    if isinstance(cause, grpc.RpcError):
        reason = cause.details() or reason
        with suppress(ValueError, KeyError, TypeError):  # else it is no error of Flower
            known = parse_json(reason)
            lines = f"[code: {known['code']}] {known['public_message']}", known.get("public_details")
            reason = "\n".join(filter(None, lines))
    text = f"Failed to initialize the connection to the SuperLink.\n{reason}"
    importlib.import_module(_EXIT).flwr_exit(NO_CONNECTION, text)
    raise SystemExit  # not reached
