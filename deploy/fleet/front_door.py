"""The front door of the Fleet API: it checks each request before the service handles the request.

Stock Flower reads a whole request before it can refuse the request, so 1000 requests whose bodies never end
occupy all its threads. Stock Flower also decompresses requests. The front door authenticates a request by its
headers before it reads the body, and then checks the size and the content of the body. It limits the requests
that each node may send in a second and may have under way, and accepts no compressed requests.

The key of a node is public, so a request that only names the key must not cost the node anything. A request
is counted as the node's before its signature is checked if the connection has brought a signed request of the
node before, which nobody else can do. Otherwise the signature is checked first, and the gate closes a
connection after a few requests with wrong signatures.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from deploy.fleet import errors, protocol, wire
from deploy.fleet.admission.refusal_log import RefusalLog
from deploy.fleet.budgets import Budgets
from deploy.fleet.errors import RequestRefused
from deploy.fleet.sockets import sender
from deploy.flower.commands import WRONG_CLOCK
from deploy.flower.deferred_answers import Later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.fleet.admission.reply_admission import ReplyAdmission
    from deploy.fleet.gate.connection_gate import Gate
    from deploy.fleet.threads import Threads

# The threads that answer requests at a time, beside those that wait for nodes. Held requests occupy no
# thread: the SuperLink answers them later (`held_requests`, `presence`).
BUSY = 8
# The methods whose requests may be held.
HELD_METHODS = ("PullMessages", "SendNodeHeartbeat")
# The most requests of a node that may be under way. A SuperNode has at most five: a heartbeat, and four
# requests for objects (`transfers.THREADS`) or one held request for messages.
CALLS_PER_NODE = 8
# The most threads that wait for nodes. A thread waits while the body of a request arrives, and, for the
# `HELD_METHODS`, while the node receives the answer. If more threads wait, the node for which most threads
# wait loses its oldest request.
WAITING_CALLS = 800
# s that a thread waits for a node before the request is cancelled; longer while the node sends at least
# `SLOWEST` bytes of models per second. A body is at most one chunk of an array, and an answer is small.
WAITING_SECONDS = 120.0
SLOWEST = 8192  # bytes per second
CALL_SECONDS = 900.0  # s after which a request is cancelled if the node has not received the answer
INTERVAL = 1.0  # s between two searches for requests that take too long
SMALL_BODY = 64 * 1024  # the most bytes of a request that holds neither an object nor a reply
SPARE = 1024 * 1024  # bytes that an object may have beyond a chunk of an array


class _Waiting(NamedTuple):
    """A request in which a thread waits for a node."""

    since: float
    """time.monotonic(), s."""
    node: int
    arrived: int
    """The bytes of models that the node had sent at this time (`Gate.arrived`)."""


class _OverBudgetError(RequestRefused):
    """A node's budget is spent."""


class FrontDoor:
    """Admits only requests of registered nodes."""

    def __init__(
        self,
        state_factory: Any,
        gate: Gate,
        largest_object: int,
        replies: ReplyAdmission,
        threads: Threads,
    ) -> None:
        self._state_factory = state_factory
        self._threads = threads
        self._gate = gate
        self._replies = replies
        self._budgets = Budgets()
        self._largest_object = largest_object
        self._log = RefusalLog()
        self._lock = threading.Lock()
        # The requests under way, by context: when each began, and its node.
        self._calls: dict[Any, tuple[float, int]] = {}
        # The requests in which a thread waits for the node, by context
        self._waiting: dict[Any, _Waiting] = {}
        self._per_node: Counter[int] = Counter()  # the number of requests under way, by node
        # The last key, signature and time stamp of each node that fitted together. A SuperNode sends them
        # several times (`connection.SIGNED`), and a check takes .6 ms.
        self._fitted: dict[int, tuple[bytes, bytes, str]] = {}

    def handler(self, call: Any, method: wire.Method, respond: Callable[[Any, int, Any], Any]) -> Any:
        """Return gRPC's handler of a request. It gets the body as a stream, to refuse before it reads."""

        def answer(bodies: Iterator[bytes], context: Any) -> Any:
            try:
                return self._answer(call, method, respond, bodies, context)
            except RequestRefused as refused:
                peer = sender(context)
                self._log.refused(call.method, str(refused), peer)
                if refused.status in ("UNAUTHENTICATED", "FAILED_PRECONDITION"):
                    self._gate.refused(peer)
                elif isinstance(refused, _OverBudgetError):
                    self._gate.slow_down(peer)
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
                with self.waiting(context, node):
                    send(response)  # returns when the node takes the answer
                send(None)  # the end of the answer

            def failed(error: Exception) -> None:
                self._log.refused(call.method, f"{type(error).__name__}: {error}", sender(context))
                context.set_code(grpc.StatusCode.UNAVAILABLE)
                context.set_details("The SuperLink cannot answer now")
                send(None)

            response = answer(bodies, context)
            if isinstance(response, Later):
                response.run(self._threads.submit, done, failed)
            else:
                done(response)

        if method.name not in HELD_METHODS:
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

    def _answer(
        self,
        call: Any,
        method: wire.Method,
        respond: Callable[[Any, int, Any], Any],
        bodies: Iterator[bytes],
        context: Any,
    ) -> bytes | Later:
        """Admit a request, and return its response as bytes."""
        key, node = self._authenticate(call, method, sender(context))
        try:
            with self._under_way(node, context):
                request, size = self._read(method, bodies, context, node)
                self._check_node(method, request, key, node)
                with errors.translated(context, call.method):
                    response = respond(request, node, context)
                if isinstance(response, Later):
                    return response.then(method.response.SerializeToString)
                if getattr(response, "stored", False) or not getattr(response, "objects_to_push", [""]):
                    self._budgets.spend_bytes(node, -size)
                serialized: bytes = response.SerializeToString()
                return serialized
        except Exception:
            self._budgets.refused(node)
            raise

    def _authenticate(self, call: Any, method: wire.Method, peer: str) -> tuple[bytes, int]:
        """Return the key that signed a request, and the id of the node that is registered with the key.

        Raises RequestRefused if the request is not signed by a registered key, if its time stamp is too old
        or in the future, or if the node's budget is spent.
        """
        headers = dict(call.invocation_metadata)
        key, signature = headers.get(wire.PUBLIC_KEY), headers.get(wire.SIGNATURE)
        time_stamp = headers.get(wire.TIME_STAMP)
        if not (isinstance(key, bytes) and isinstance(signature, bytes) and isinstance(time_stamp, str)):
            raise RequestRefused("Missing authentication metadata")
        node: int | None = self._state_factory.state().node_of_key(key)
        if node is None:
            raise _unknown(method.name)
        if is_proven := self._gate.node(peer) == node:
            self._spend(node, method)
        if self._fitted.get(node) != (key, signature, time_stamp):
            _check_signature(key, signature, time_stamp)
            self._fitted[node] = key, signature, time_stamp
        _check_time(time_stamp)
        self._gate.admitted(peer, node)
        if not is_proven:
            self._spend(node, method)
        return key, node

    def _spend(self, node: int, method: wire.Method) -> None:
        if not self._budgets.begin(node, method.name):
            raise _OverBudgetError(f"Node {node} sends too many requests", "UNAVAILABLE")

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

    def _read(self, method: wire.Method, bodies: Iterator[bytes], context: Any, node: int) -> tuple[Any, int]:
        """Return a request and its number of bytes."""
        with self.waiting(context, node):
            try:
                body = next(bodies)
            except StopIteration:
                raise RequestRefused("No request", "INVALID_ARGUMENT") from None
        self._budgets.spend_bytes(node, len(body))
        limit = self._largest_object if method.name == "PushObject" else SMALL_BODY
        if method.name == "PushMessages":
            limit = self._replies.largest_request(len(body))
        if len(body) > limit:
            reason = f"{len(body)} bytes, and at most {limit} are allowed"
            if method.name == "PushMessages":  # the body, which names the message, is not parsed
                self._replies.refuse_last(node, f"the list of its objects has {reason}")
            raise RequestRefused(reason, "PERMISSION_DENIED")
        try:
            return method.request.FromString(body), len(body)
        except Exception as error:
            raise RequestRefused(f"No valid request: {error}", "INVALID_ARGUMENT") from error

    def _check_node(self, method: wire.Method, request: Any, key: bytes, node: int) -> None:
        """Refuse a request that names another node than the one that signed it."""
        if method.name == "ActivateNode":
            if request.public_key != key:
                raise RequestRefused("Another node's key")
        elif method.name != "RegisterNode":  # which is refused to everybody
            stated = request.node.node_id if hasattr(request, "node") else request.node_id
            if stated != node:
                raise RequestRefused("Invalid node ID")

    @contextmanager
    def waiting(self, context: Any, node: int) -> Iterator[None]:
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
            with self._threads.waiting():
                yield
        finally:
            with self._lock:
                self._waiting.pop(context, None)


def _check_signature(key: bytes, signature: bytes, time_stamp: str) -> None:
    """Refuse a request whose time stamp is not signed with the key."""
    try:
        signed = protocol.is_signed(key, time_stamp.encode(), signature)
    except (TypeError, ValueError) as error:
        raise RequestRefused("Invalid timestamp") from error
    if not signed:
        raise RequestRefused("Invalid signature")


def _check_time(time_stamp: str) -> None:
    """Refuse a request whose time stamp is too old or in the future."""
    try:
        age = (protocol.now() - datetime.fromisoformat(time_stamp)).total_seconds()
    except (TypeError, ValueError) as error:
        raise RequestRefused("Invalid timestamp") from error
    if not wire.NEWEST < age < wire.OLDEST:
        where = f"{abs(age):.0f} s {'behind' if age > 0 else 'ahead of'} the server's"
        early, late = -wire.NEWEST, wire.OLDEST
        answer = f"{WRONG_CLOCK} is {where}; it may be {early:g} s ahead and {late:g} s behind"
        raise RequestRefused("Invalid timestamp", answer=answer)


def _unknown(method: str) -> RequestRefused:
    """Return the refusal of a request with an unknown key.

    For ActivateNode and RegisterNode it contains the error code that SuperNodes and `deploy.device` expect.
    """
    known = {"ActivateNode": errors.NOT_ACTIVATED, "RegisterNode": errors.REGISTRATION_DISABLED}
    code = known.get(method)
    reason = "No SuperNode found with the given public key"
    if code is None:
        return RequestRefused(reason)
    status, answer = errors.translation(code)
    return RequestRefused(f"{reason} ({code})", status.name, answer)
