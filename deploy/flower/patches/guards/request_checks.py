"""The front door of the Fleet API: it checks each request before Flower handles the request.

Stock Flower reads a whole request before it can refuse the request, so 1000 requests whose bodies never end
occupy all its threads. Stock Flower also decompresses requests. The front door authenticates a request by its
headers before it reads the body, and then checks the size and the content of the body. It limits the requests
that each node may have under way, and accepts no compressed requests.
"""

from __future__ import annotations

import errno
import importlib
import json
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.flower.commands import WRONG_CLOCK
from deploy.flower.deferred_answers import Later
from deploy.flower.patches.guards import enrolment_requests, reply_admission
from deploy.flower.patches.guards.connection_gate import Gate
from deploy.flower.patches.guards.refusal_log import RefusalLog, limit_lines, make_safe
from deploy.flower.patches.guards.reply_admission import ReplyAdmission
from deploy.flower.patches.guards.reply_size import check_setting
from deploy.flower.patches.presence import SERVER_OPTIONS
from deploy.flower.patches.shared import like, replace, start_program
from deploy.flower.patches.sockets import sender
from deploy.processes.file_limit import raise_file_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# The threads of the gRPC server: one for each of the `WAITING_CALLS`, the others for requests that are being
# answered. Held requests occupy no thread: the SuperLink answers them later (`held_requests`, `presence`).
THREADS = 1000
# The methods whose requests may be held.
HELD_METHODS = ("PullMessages", "SendNodeHeartbeat")
# The most requests of a node that may be under way. A SuperNode has at most five: a heartbeat, and four
# requests for objects (`joined_objects.THREADS`) or one held request for messages.
CALLS_PER_NODE = 8
# The most threads that wait for nodes. A thread waits while the body of a request arrives, and, for the
# `HELD_METHODS`, while the node receives the answer. If more threads wait, the node for which most threads
# wait loses its oldest request.
WAITING_CALLS = 800
# s that a thread waits for a node before the request is cancelled; longer while the node sends at least
# `SLOWEST` bytes of models per second. A body is at most one chunk of an array, and an answer is small.
WAITING_SECONDS = 120.0
SLOWEST = 8192  # bytes per second
CALL_SECONDS = 600.0  # s after which a request is cancelled if the node has not received the answer
INTERVAL = 1.0  # s between two searches for requests that take too long
SMALL_BODY = 64 * 1024  # the most bytes of a request that holds neither an object nor a reply
SPARE = 1024 * 1024  # bytes that an object may have beyond a chunk of an array

_SUPERLINK = "flwr.superlink.cli.flower_superlink"
_FLEET_MESSAGES = "flwr.proto.fleet_pb2"
_FLEET_STUBS = "flwr.proto.fleet_pb2_grpc"
_SERVICER = "flwr.server.superlink.fleet.grpc_rere.fleet_servicer"
_NODE_AUTH = "flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor"
_TRANSLATION = "flwr.supercore.interceptors.rpc_error_translation_interceptor"
_VERSIONS = "flwr.supercore.interceptors.runtime_version_interceptor"
_LINK_STATE = "flwr.server.superlink.linkstate"
_ERRORS = "flwr.supercore.error"
_KEYS = "flwr.supercore.primitives.asymmetric"
_CONSTANTS = "flwr.common.constant"
_NO_START = "flower-superlink does not start:"
USED = (
    f"{_SUPERLINK}:_run_fleet_api_grpc_rere",
    f"{_SUPERLINK}:SuperLinkLifespan._start_fleet_api",
    f"{_SUPERLINK}:subprocess.Popen",
    f"{_FLEET_MESSAGES}:DESCRIPTOR",
    f"{_FLEET_MESSAGES}:ActivateNodeRequest",
    f"{_FLEET_STUBS}:add_FleetServicer_to_server",
    f"{_SERVICER}:FleetServicer",
    f"{_NODE_AUTH}:NodeAuthServerInterceptor",
    f"{_NODE_AUTH}:MIN_TIMESTAMP_DIFF",
    f"{_NODE_AUTH}:MAX_TIMESTAMP_DIFF",
    f"{_NODE_AUTH}:get_metadata_bytes",
    f"{_NODE_AUTH}:get_metadata_str",
    f"{_NODE_AUTH}:now",
    f"{_NODE_AUTH}:bytes_to_public_key",
    f"{_NODE_AUTH}:verify_signature",
    f"{_TRANSLATION}:RpcErrorTranslationServerInterceptor",
    f"{_VERSIONS}:create_fleet_runtime_version_server_interceptor",
    f"{_LINK_STATE}:SqlLinkState",
    f"{_ERRORS}.catalog:API_ERROR_MAP",
    f"{_ERRORS}:ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED",
    f"{_ERRORS}:ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED",
    f"{_KEYS}:bytes_to_public_key",
    f"{_KEYS}:verify_signature",
    f"{_CONSTANTS}:FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE",
    *enrolment_requests.USED,
    *reply_admission.USED,
)


def patch() -> None:
    """Let the SuperLink serve the Fleet API only behind the front door."""
    check_setting()
    make_safe(getLogger("flwr"))
    limit_lines(getLogger("flwr"))
    raise_file_limit()
    replace(_SUPERLINK, subprocess=like(subprocess, Popen=start_program))
    replace(_NODE_AUTH, bytes_to_public_key=bytes, verify_signature=_signatures.verify_again)
    servers: list[Any] = []

    def run(**settings: Any) -> Any:
        servers.append(_start(**settings))
        return servers[-1]

    replace(_SUPERLINK, _run_fleet_api_grpc_rere=run)
    lifespan = importlib.import_module(_SUPERLINK).SuperLinkLifespan
    start = lifespan._start_fleet_api

    def start_behind_door(this: Any) -> None:
        start(this)
        if this.grpc_servers != servers:
            raise SystemExit(f"{_NO_START} it would serve the Fleet API without its key check")

    lifespan._start_fleet_api = start_behind_door


class RequestRefused(Exception):  # noqa: N818
    """A request is refused.

    Parameters
    ----------
    reason : str
        The reason, which is logged.
    status : str
        The name of the gRPC status that the node receives. After UNAUTHENTICATED a SuperNode ends. After
        UNAVAILABLE it tries again. After PERMISSION_DENIED it drops the reply that it was sending.
    answer : str
        The text that the node receives. (default: the reason)
    """

    def __init__(self, reason: str, status: str = "UNAUTHENTICATED", answer: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.answer = answer or reason


class _Waiting(NamedTuple):
    """A request in which a thread waits for a node."""

    since: float
    """time.monotonic(), s."""
    node: int
    arrived: int
    """The bytes of models that the node had sent at this time (`Gate.arrived`)."""


class FrontDoor:
    """A gRPC interceptor of the Fleet API that admits only requests of registered nodes.

    Parameters
    ----------
    state_factory : LinkStateFactory
        Returns the SuperLink's state.
    gate : Gate
        Learns which requests were admitted or refused, and closes the connections of strangers.
    largest_object : int
        The most bytes of a request that holds an object.
    submit : Callable[[Callable[[], None]], Any]
        Lets a thread of the server call a function that answers a held request.
    """

    def __init__(
        self,
        state_factory: Any,
        gate: Gate,
        largest_object: int,
        submit: Callable[[Callable[[], None]], Any],
    ) -> None:
        self._state_factory = state_factory
        self._submit = submit
        self._gate = gate
        self._replies = ReplyAdmission(state_factory, RequestRefused, gate.arrived)
        service = importlib.import_module(_FLEET_MESSAGES).DESCRIPTOR.services_by_name["Fleet"]
        self._methods = {f"/{service.full_name}/{method.name}": method.name for method in service.methods}
        self._largest_object = largest_object
        self._log = RefusalLog()
        self._lock = threading.Lock()
        # The requests under way, by context: when each began, and its node.
        self._calls: dict[Any, tuple[float, int]] = {}
        # The requests in which a thread waits for the node, by context
        self._waiting: dict[Any, _Waiting] = {}
        self._per_node: Counter[int] = Counter()  # the number of requests under way, by node

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        """Return a request's handler. It gets the body as a stream, so it can refuse before it reads."""
        grpc = importlib.import_module("grpc")
        if call.method not in self._methods:
            return None

        def answer(bodies: Iterator[bytes], context: Any) -> Any:
            try:
                return self._answer(continuation, call, bodies, context)
            except RequestRefused as refused:
                peer = sender(context)
                self._log.refused(call.method, str(refused), peer)
                if refused.status in ("UNAUTHENTICATED", "FAILED_PRECONDITION"):
                    self._gate.refused(peer)
                context.abort(grpc.StatusCode[refused.status], refused.answer)
            except grpc.RpcError:  # the node has hung up
                raise
            except Exception as error:
                if context.code() is None:  # if there is a code, Flower has refused the request
                    self._log.refused(call.method, f"{type(error).__name__}: {error}", sender(context))
                    context.abort(grpc.StatusCode.UNAVAILABLE, "The SuperLink cannot answer now")
                raise

        def answer_later(bodies: Iterator[bytes], context: Any, send: Callable[[bytes | None], None]) -> None:
            def done(response: bytes) -> None:
                with self._lock:
                    _, node = self._calls.get(context, (0.0, 0))  # no entry if the node has hung up
                with self._wait(context, node):
                    send(response)  # returns when the node takes the answer
                send(None)  # the end of the answer

            def failed(error: Exception) -> None:
                self._log.refused(call.method, f"{type(error).__name__}: {error}", sender(context))
                context.set_code(grpc.StatusCode.UNAVAILABLE)
                context.set_details("The SuperLink cannot answer now")
                send(None)

            response = answer(bodies, context)
            if isinstance(response, Later):
                response.run(self._submit, done, failed)
            else:
                done(response)

        if self._methods[call.method] not in HELD_METHODS:
            return grpc.stream_unary_rpc_method_handler(answer)
        # Because of this attribute, gRPC passes the argument `send`, by which any thread may send the answer
        # later. gRPC reads the attribute only of functions that answer with a stream. For the node, a stream
        # of one answer is the same as a single answer.
        answer_later.experimental_non_blocking = True  # type: ignore[attr-defined]
        return grpc.stream_stream_rpc_method_handler(answer_later)

    def start(self) -> None:
        """Start a thread that cancels the requests that exceed `WAITING_SECONDS` or `CALL_SECONDS`."""

        def cancel() -> None:
            while True:
                time.sleep(INTERVAL)
                self._cancel_late()

        threading.Thread(target=cancel, name="late requests", daemon=True).start()

    def _cancel_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [
                context
                for context, each in self._waiting.items()
                if now - each.since > WAITING_SECONDS
                and self._gate.arrived(each.node) - each.arrived < SLOWEST * (now - each.since)
            ]
            late += [each for each, (began, _) in self._calls.items() if now - began > CALL_SECONDS]
        for context in late:
            context.cancel()

    def _answer(self, continuation: Any, call: Any, bodies: Iterator[bytes], context: Any) -> bytes | Later:
        key, node = self._authenticate(call)
        self._gate.admitted(sender(context), node)
        with self._under_way(node, context):
            body = self._read(bodies, context, node)
            method = self._methods[call.method]
            limit = {
                "PushObject": self._largest_object,
                "PushMessages": self._replies.largest_request,
            }.get(method, SMALL_BODY)
            if len(body) > limit:
                reason = f"{len(body)} bytes, and at most {limit} are allowed"
                if method == "PushMessages":  # the body, which names the message, is not parsed
                    self._replies.refuse_last(node, f"the list of its objects has {reason}")
                raise RequestRefused(reason, "PERMISSION_DENIED")
            handler = continuation(call)
            try:
                request = handler.request_deserializer(body)
            except Exception as error:
                raise RequestRefused(f"No valid request: {error}", "INVALID_ARGUMENT") from error
            del body
            activation = importlib.import_module(_FLEET_MESSAGES).ActivateNodeRequest
            if isinstance(request, activation):
                if request.public_key != key:
                    raise RequestRefused("Another node's key")
            elif method != "RegisterNode":  # Flower itself refuses RegisterNode
                stated = request.node.node_id if hasattr(request, "node") else request.node_id
                if stated != node:
                    raise RequestRefused("Invalid node ID")
            self._replies.check(method, request, node)

            def serialized(response: Any) -> bytes:
                self._replies.note(method, request, response, node)
                result: bytes = handler.response_serializer(response)
                return result

            response = handler.unary_unary(request, context)
            return response.then(serialized) if isinstance(response, Later) else serialized(response)

    def _authenticate(self, call: Any) -> tuple[bytes, int]:
        """Return the key that signed a request, and the id of the node that is registered with the key.

        Raises RequestRefused if the request is not signed by a registered key, or if its time stamp is too
        old or in the future.
        """
        auth = importlib.import_module(_NODE_AUTH)
        metadata = call.invocation_metadata
        key = auth.get_metadata_bytes(metadata, auth.PUBLIC_KEY_HEADER)
        time_stamp = auth.get_metadata_str(metadata, auth.TIMESTAMP_HEADER)
        signature = auth.get_metadata_bytes(metadata, auth.SIGNATURE_HEADER)
        if not key or not time_stamp or not signature:
            raise RequestRefused("Missing authentication metadata")
        node = self._state_factory.state().get_node_id_by_public_key(key)
        if node is None:
            raise _unknown(self._methods[call.method])
        try:
            signed = _signatures.verify(key, time_stamp.encode(), signature)
            age = (auth.now() - datetime.fromisoformat(time_stamp)).total_seconds()
        except (TypeError, ValueError) as error:
            raise RequestRefused("Invalid timestamp") from error
        if not signed:
            raise RequestRefused("Invalid signature")
        if not auth.MIN_TIMESTAMP_DIFF < age < auth.MAX_TIMESTAMP_DIFF:
            where = f"{abs(age):.0f} s {'behind' if age > 0 else 'ahead of'} the server's"
            early, late = -auth.MIN_TIMESTAMP_DIFF, auth.MAX_TIMESTAMP_DIFF
            answer = f"{WRONG_CLOCK} is {where}; it may be {early:g} s ahead and {late:g} s behind"
            raise RequestRefused("Invalid timestamp", answer=answer)
        return key, node

    @contextmanager
    def _under_way(self, node: int, context: Any) -> Iterator[None]:
        """Count a node's request until it is handled, and the node has received the answer or has hung up.

        If a node hangs up, its request counts until the thread has handled it. Otherwise a node that hangs up
        again and again could occupy any number of threads.

        Raises RequestRefused if the node already has `CALLS_PER_NODE` requests under way.
        """
        with self._lock:
            if self._per_node[node] >= CALLS_PER_NODE:
                raise RequestRefused(f"{CALLS_PER_NODE} requests of node {node} are under way", "UNAVAILABLE")
            self._per_node[node] += 1
            self._calls[context] = time.monotonic(), node
        # How many of these two events are still to come: the handling ends, and gRPC ends the request.
        rest = 2

        def over() -> None:
            nonlocal rest
            with self._lock:
                rest -= 1
                if rest:
                    return
                del self._calls[context]
                self._per_node[node] -= 1
                if not self._per_node[node]:
                    del self._per_node[node]

        try:
            if not context.add_callback(over):
                over()
                raise RequestRefused("The node has hung up", "UNAVAILABLE")
            yield
        finally:
            over()

    def _read(self, bodies: Iterator[bytes], context: Any, node: int) -> bytes:
        with self._wait(context, node):
            try:
                return next(bodies)
            except StopIteration:
                raise RequestRefused("No request", "INVALID_ARGUMENT") from None

    @contextmanager
    def _wait(self, context: Any, node: int) -> Iterator[None]:
        """Count a request as one in which this thread waits for the node."""
        oldest = None
        with self._lock:
            self._waiting[context] = _Waiting(time.monotonic(), node, self._gate.arrived(node))
            if len(self._waiting) > WAITING_CALLS:
                # Not the oldest request of all, which may belong to an honest node with a slow uplink
                most = Counter(each.node for each in self._waiting.values()).most_common(1)[0][0]
                oldest = next(context for context, each in self._waiting.items() if each.node == most)
                del self._waiting[oldest]
        if oldest is not None:
            oldest.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(context, None)


class _Signatures(threading.local):
    """Verifies signatures, and remembers each thread's last valid one.

    After the front door, Flower verifies the same signature in the same thread, which then costs nothing.
    """

    valid: tuple[bytes, bytes, bytes] | None = None  # the last valid key, text and signature

    def verify(self, key: bytes, text: bytes, signature: bytes) -> bool:
        """Tell whether a public key's owner has signed a text. Raises ValueError if ``key`` is not a key."""
        keys = importlib.import_module(_KEYS)
        self.valid = None
        if not keys.verify_signature(keys.bytes_to_public_key(key), text, signature):
            return False
        self.valid = key, text, signature
        return True

    def verify_again(self, key: bytes, text: bytes, signature: bytes) -> bool:
        """Do the same as `verify`, but compute nothing if `verify` has just accepted this signature."""
        valid, self.valid = self.valid, None
        return (key, text, signature) == valid or self.verify(key, text, signature)


_signatures = _Signatures()


def _unknown(method: str) -> RequestRefused:
    """Return the refusal of a request with an unknown key.

    For ActivateNode and RegisterNode it contains the error code that SuperNodes and `deploy.device` expect.
    """
    codes = importlib.import_module(_ERRORS).ApiErrorCode
    code = {
        "ActivateNode": codes.FLEET_NODE_ACTIVATION_FAILED,
        "RegisterNode": codes.FLEET_SUPERNODE_REGISTRATION_DISABLED,
    }.get(method)
    reason = "No SuperNode found with the given public key"
    if code is None:
        return RequestRefused(reason)
    error = importlib.import_module(f"{_ERRORS}.catalog").API_ERROR_MAP[code]
    answer = json.dumps({"code": int(code), "public_message": error.public_message, "public_details": None})
    return RequestRefused(f"{reason} ({int(code)})", error.status_code.name, answer)


def _start(
    *,
    address: str,
    state_factory: Any,
    objectstore_factory: Any,
    enable_supernode_auth: bool,
    certificates: tuple[bytes, bytes, bytes] | None,
    interceptors: Sequence[Any],
) -> Any:
    """Start the Fleet API behind the front door, and return its gRPC server.

    Replaces Flower's function with the same parameters. Raises SystemExit if the SuperLink's options leave
    the Fleet API unprotected or its port is taken.
    """
    if not enable_supernode_auth or certificates is None:
        raise SystemExit(f"{_NO_START} it needs --enable-supernode-auth and TLS certificates")
    if not isinstance(state_factory.state(), importlib.import_module(_LINK_STATE).SqlLinkState):
        raise SystemExit(f"{_NO_START} it needs --database")
    grpc = importlib.import_module("grpc")
    try:
        gate = Gate(address, *certificates[1:])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SystemExit(f"Port in server address {address} is already in use. ({error})") from error
        raise SystemExit(f"{_NO_START} it cannot listen on {address} ({error})") from error
    chunk = importlib.import_module(_CONSTANTS).FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fleet")
    door = FrontDoor(state_factory, gate, chunk + SPARE, threads.submit)
    server = grpc.server(
        threads,
        options=_options(chunk + SPARE),
        interceptors=[
            *enrolment_requests.interceptors(state_factory),
            door,
            importlib.import_module(_TRANSLATION).RpcErrorTranslationServerInterceptor(),
            *interceptors,
            importlib.import_module(_VERSIONS).create_fleet_runtime_version_server_interceptor(),
        ],
    )
    servicer = importlib.import_module(_SERVICER).FleetServicer(
        state_factory=state_factory,
        objectstore_factory=objectstore_factory,
        enable_supernode_auth=enable_supernode_auth,
    )
    importlib.import_module(_FLEET_STUBS).add_FleetServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(gate.behind)  # without TLS, which the gate decrypts
    except RuntimeError as error:
        raise SystemExit(f"{_NO_START} it cannot listen on {gate.behind} ({error})") from error
    server.bound_address = f"{address.rpartition(':')[0]}:{gate.port}"
    server.start()
    door.start()
    gate.start()
    getLogger("flwr").info("Fleet API (gRPC) on %s", server.bound_address)
    return server


def _options(largest: int) -> list[tuple[str, int]]:
    """Return the options of the gRPC server: limits that gRPC itself enforces.

    `largest` is the most bytes of a request that holds an object.
    """
    return [
        ("grpc.max_receive_message_length", largest + SMALL_BODY),
        ("grpc.max_send_message_length", -1),
        # The only allowed compression is "identity" (none), because gRPC decompresses a body before the front
        # door can refuse the request.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_concurrent_streams", 2 * CALLS_PER_NODE),  # requests under way on one connection
        # The most bytes of a request's headers. gRPC adds 32 to the bytes of each header. A SuperNode's
        # requests have 1 kB.
        ("grpc.max_metadata_size", 4096),
        ("grpc.absolute_max_metadata_size", 4096),
        ("grpc.max_connection_idle_ms", 120_000),  # every node sends heartbeats more often
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Otherwise gRPC keeps the headers of a refused request for up to a second.
        ("grpc.http.tarpit", 0),
        *SERVER_OPTIONS.items(),
    ]
