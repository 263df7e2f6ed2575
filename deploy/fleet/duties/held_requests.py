"""Lets the SuperLink hold requests for messages until a message has arrived."""

from __future__ import annotations

import importlib
import random
import threading
import time
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from deploy.fleet import protocol, wire
from deploy.flower.deferred_answers import Later
from deploy.flower.patches.shared import LOOK

_Receiver = tuple[str, int]  # who receives messages: ("node", id), or ("run", id) for a run's ServerApp

HOLD = 60.0  # the most s that a SuperNode's request is held
# The same for a SuperNode that sends `wire.LONG`. The number is drawn at random, so that thousands of nodes
# that came online together do not go on asking together. `front_door.CALL_SECONDS` is longer.
SHORTEST_LONG, LONGEST_LONG = 450.0, 780.0
MAX_HELD = 256  # the most requests of ServerApps that are held at a time, each in a thread of its own
GATHER = 0.1  # s that a request for several replies waits for more replies, after the first has arrived
MAX_INCOMPLETE = 4096  # the most push sessions whose missing parts are remembered

_FLEET_MESSAGES = "flwr.proto.fleet_pb2"
_APP_MESSAGES = "flwr.proto.runtime_pb2"


def seconds(context: Any, otherwise: float) -> float:
    """Return for how long a request is held: some minutes if it asks for it, `otherwise` if it does not."""
    is_long = wire.LONG in map(tuple, context.invocation_metadata())
    return random.uniform(SHORTEST_LONG, LONGEST_LONG) if is_long else otherwise


class HeldRequests:
    """Holds requests for messages until a message has arrived, or for a limited time.

    A sender announces a message in a push session, and then sends the message's parts one by one. The message
    counts as arrived when all its parts have arrived. If the receiver got the message earlier, it would
    request the missing parts again and again.

    After a lookup in the database that found nothing, the next one happens when a message arrives for the
    receiver, when a node leaves (for ServerApps only, `look_again`), or when the hold ends.

    At most one request of each SuperNode is held, and this request occupies no thread (`Later`). A held
    request of a ServerApp occupies the thread that answers it.
    """

    def __init__(self) -> None:
        self._requests: dict[_Receiver, _Request] = {}
        # For each receiver, the message ids that its last lookup named: a ServerApp asks for the replies to
        # certain messages, a SuperNode names no ids. An entry is removed when a message has arrived for the
        # receiver.
        self._seen: dict[_Receiver, frozenset[str]] = {}
        # The incomplete messages of each push session: the missing parts and the receiver of each message.
        self._incomplete: dict[str, list[tuple[set[str], _Receiver]]] = {}
        self._lock = threading.Lock()
        # Called with a kind of receivers and an id, to tell other front ends what was noted here.
        self.tell: Callable[[str, object], None] = lambda kind, what: None
        self._free = threading.Semaphore(MAX_HELD)

    def message_stored(self, metadata: Any, missing: Collection[str], session_id: str) -> None:
        """Note that a message was stored, without those of its objects whose names are in `missing`.

        These objects arrive in the push session `session_id`. Then the receiver's request is answered.
        """
        to = metadata.dst_node_id
        receiver = ("run", metadata.run_id) if to == protocol.SUPERLINK else ("node", to)
        with self._lock:
            if not missing:
                self._arrived(receiver)
                return
            self._incomplete.setdefault(session_id, []).append((set(missing), receiver))
            if len(self._incomplete) > MAX_INCOMPLETE:  # the oldest session was probably abandoned
                for _, waiting in self._incomplete.pop(next(iter(self._incomplete))):
                    self._arrived(waiting)

    def object_stored(self, session_id: str, object_id: str) -> None:
        """Note that an object has arrived in a push session."""
        with self._lock:
            # SuperNodes of earlier versions of Flower do not name their session.
            for session in [session_id] if session_id else list(self._incomplete):
                messages = self._incomplete.get(session, [])
                for missing, receiver in messages:
                    missing.discard(object_id)
                    if not missing:
                        self._arrived(receiver)
                messages[:] = [message for message in messages if message[0]]
                if not messages:
                    self._incomplete.pop(session, None)

    def hold(self, node: int, context: Any, pull: Callable[[], Any]) -> Any:
        """Return the response of `pull` to a SuperNode's request, or a `Later` if there is no message yet.

        `context`: tells when the SuperNode hangs up, and whether the request may be held for minutes. `pull`:
        looks for the SuperNode's next message.
        """
        request = _Request(wanted=1)
        if not context.add_callback(request.end):  # the node has hung up, or the SuperLink is stopping
            request.end()
        receiver, end = ("node", node), time.monotonic() + seconds(context, HOLD)
        nothing = importlib.import_module(_FLEET_MESSAGES).PullMessagesResponse
        seen = self._begin(request, receiver, frozenset())

        def answer() -> Any:
            return self._answer_node(request, receiver, end, pull, nothing)

        return request.later(end, answer) if seen else answer()

    def hold_for_apps(self, handlers: Any) -> None:
        """Let this module of handlers hold the requests of ServerApps."""
        pull = handlers.pull_messages
        nothing = importlib.import_module(_APP_MESSAGES).PullAppMessagesResponse

        @wraps(pull)
        def held(asked: Any, state: Any, task: Any) -> Any:
            request, ids = _Request(wanted=len(asked.message_ids)), frozenset(asked.message_ids)
            # These requests are held only for `LOOK`, because a SuperLink that shuts down waits for them.
            response = self._hold(request, ("run", task.run_id), ids, lambda: pull(asked, state, task), LOOK)
            return response or nothing()

        handlers.pull_messages = held

    def look_again(self) -> None:
        """Look up the replies of all held requests of ServerApps again, because a node has left.

        A ServerApp that waits for a reply of that node receives an error reply.
        """
        self.wake_apps()
        self.tell("left", 0)

    def wake_apps(self) -> None:
        """Look up the replies of all held requests of ServerApps again."""
        with self._lock:
            for receiver in [each for each in self._requests if each[0] == "run"]:
                self._notify(receiver)

    def wake(self, receiver: _Receiver) -> None:
        """Look up the messages of a receiver again: another front end says that one has arrived."""
        with self._lock:
            self._notify(receiver)

    def abandon(self, node: int) -> None:
        """Answer a SuperNode's held request without a message: it is connected to another front end."""
        with self._lock:
            if request := self._requests.get(("node", node)):
                request.end()

    def nodes(self) -> list[int]:
        """Return the SuperNodes whose requests are held."""
        with self._lock:
            return [each for kind, each in self._requests if kind == "node"]

    def _answer_node(
        self,
        request: _Request,
        receiver: _Receiver,
        end: float,
        pull: Callable[[], Any],
        nothing: Callable[[], Any],
    ) -> Any:
        """Return the response of `pull` if it holds a message or `end` has passed; otherwise a `Later`."""
        try:
            response = self._look(request, receiver, pull)
        except BaseException:
            self._finish(request, receiver)
            raise
        if response is not None and not response.messages_list and time.monotonic() < end:
            return request.later(end, lambda: self._answer_node(request, receiver, end, pull, nothing))
        self._finish(request, receiver)
        if response is not None and response.messages_list:  # it holds one message; more may be waiting
            with self._lock:
                self._notify(receiver)  # a newer request of the same node, if its connection was lost
        return response or nothing()

    def _arrived(self, receiver: _Receiver) -> None:
        self._notify(receiver)
        self.tell(*receiver)

    def _notify(self, receiver: _Receiver) -> None:
        self._seen.pop(receiver, None)
        if request := self._requests.get(receiver):
            request.found()

    def _hold(
        self,
        request: _Request,
        receiver: _Receiver,
        ids: frozenset[str],
        pull: Callable[[], Any],
        seconds: float,
    ) -> Any:
        """Call `pull` until it finds messages or `seconds` are over, and return its last response.

        Return None if the receiver does not wait for a response any more.
        """
        if not self._free.acquire(blocking=False):
            return pull()
        try:
            end = time.monotonic() + seconds
            if self._begin(request, receiver, ids):
                request.wait(end)
            while (response := self._look(request, receiver, pull, ids)) is not None:
                if response.messages_list or time.monotonic() >= end:
                    return response
                request.wait(end)
            return None
        finally:
            self._finish(request, receiver)
            self._free.release()

    def _begin(self, request: _Request, receiver: _Receiver, ids: frozenset[str]) -> bool:
        """Note a request, and return whether a lookup would find nothing now.

        A lookup would find nothing if the receiver's last lookup asked for all of `ids`, and no message has
        arrived since.
        """
        with self._lock:
            # A receiver that asks again has abandoned its earlier request, which must not get the message.
            if before := self._requests.get(receiver):
                before.end()
            self._requests[receiver] = request
            return receiver in self._seen and ids <= self._seen[receiver]

    def _look(
        self,
        request: _Request,
        receiver: _Receiver,
        pull: Callable[[], Any],
        ids: frozenset[str] = frozenset(),
    ) -> Any:
        """Return the response of `pull`, or None if the receiver does not wait for a response any more."""
        if request.over:
            return None
        with self._lock:  # before the lookup: a message may arrive during the lookup
            self._seen[receiver] = ids
        try:
            return pull()
        except BaseException:  # such as a locked database: there may be a message
            with self._lock:
                self._seen.pop(receiver, None)
            raise

    def _finish(self, request: _Request, receiver: _Receiver) -> None:
        with self._lock:
            if self._requests.get(receiver) is request:
                del self._requests[receiver]


class _Request:
    """A held request."""

    def __init__(self, wanted: int) -> None:
        self.over = False  # whether the receiver has stopped waiting for a response
        self._wanted, self._found = wanted, 0
        self._changed = threading.Condition()
        self._later: Later | None = None

    def end(self) -> None:
        """Remember that the receiver does not wait for a response any more."""
        with self._changed:
            self.over = True
            self._changed.notify_all()
            later = self._later
        if later is not None:
            later.wake()

    def found(self) -> None:
        """Remember that a message for the receiver has arrived."""
        with self._changed:
            self._found += 1
            self._changed.notify_all()
            later = self._later
        if later is not None:
            later.wake()

    def later(self, end: float, look: Callable[[], Any]) -> Later:
        """Return an answer that `look` gives when a message arrives, or else at `end` (time.monotonic())."""

        def answer() -> Any:
            with self._changed:
                self._found = 0
            return look()

        with self._changed:
            later = self._later = Later(end, answer)
            ready = self._found or self.over
        if ready:
            later.wake()
        return later

    def wait(self, end: float) -> None:
        """Wait for a message until `end` (time.monotonic()), then up to `GATHER` seconds for more."""
        with self._changed:
            if self._changed.wait_for(lambda: self._found or self.over, max(0.0, end - time.monotonic())):
                self._changed.wait_for(lambda: self._found >= self._wanted or self.over, GATHER)
            self._found = 0
