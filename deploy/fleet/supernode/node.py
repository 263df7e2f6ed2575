"""The loop of a SuperNode: receives a message, lets a ClientApp work on it, and sends the reply.

It takes the place of Flower's loop, `flwr.supernode.start_client_internal`, which sleeps for seconds between
two looks, drops a message whose objects do not arrive, and sends replies a round late once a run has ended
at the wrong moment. One message is processed at a time:

1. `Connection.receive` returns the message without its content. The SuperLink holds the request until there
   is one.
2. `_prepare`: the first message of a run brings the run and its app's bundle. The bundle is checked against
   what the device trusts before anything is stored (`bundles`).
3. `_fetch`: a task is created, for which the executor's thread starts a ClientApp at once, the message's
   objects are stored as they come (`transfers`), and the SuperLink learns that all have arrived.
4. `_reply`: the loop sleeps until there is a reply to this message, and sends it.

A message that cannot be processed is answered with an error. A ClientApp reads and writes `NodeState` through
the SuperNode's API (`flwr.supernode.main`) or through its channel.
"""

from __future__ import annotations

import importlib
import queue
import threading
import time
from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any

from flwr.proto.message_pb2 import ObjectTree

from deploy.fleet import protocol
from deploy.fleet.duties.joined_objects import CARRIED, MOST
from deploy.fleet.supernode import bundles, transfers
from deploy.fleet.supernode.connection import RunNotRunningError
from deploy.flower.patches.shared import LOOK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploy.fleet.supernode.connection import Connection

# If the SuperLink does not hold requests for messages (held_requests.HOLD), the SuperNode pauses between two
# requests. The pause is PAUSE_SHARE of the time since the last message, but at least SHORTEST_IDLE and at
# most LONGEST_IDLE seconds.
SHORTEST_IDLE, LONGEST_IDLE = 0.1, 0.5
PAUSE_SHARE = 0.05

_STATE = "flwr.supernode.nodestate.in_memory_nodestate"
_CONFIG = "flwr.common.config"
_APP = "flwr.app"


def node_state(store: Any) -> Any:
    """Return the state of a SuperNode: Flower's, which wakes the threads that wait for something in it.

    `store` is Flower's ObjectStore.
    """
    in_memory: Any = importlib.import_module(_STATE).InMemoryNodeState

    class NodeState(in_memory):  # type: ignore[misc]
        """Holds messages for ClientApps and their replies."""

        def __init__(self) -> None:
            super().__init__(store)
            self.due = threading.Event()  # set when there is a message for a ClientApp
            self.part = threading.Event()  # set when an object of a reply has arrived
            self.replies = queue.SimpleQueue[Any]()  # without contents, in the order of announcement

        def store_message(self, message: Any) -> Any:
            stored = super().store_message(message)
            if message.metadata.reply_to_message_id:
                self.replies.put(message)
            else:
                self.due.set()
            return stored

        def store_object(self, *arguments: Any, **named: Any) -> Any:
            stored = super().store_object(*arguments, **named)
            self.part.set()
            return stored

    return NodeState()


class _UnfitError(Exception):
    """A message cannot be processed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Node:
    """A SuperNode that is connected."""

    def __init__(self, connected: Connection, state: Any, node_config: Any, trust: Path | None) -> None:
        self._connection, self._state, self._node_config, self._trust = connected, state, node_config, trust
        self._store = state.object_store
        self._app = importlib.import_module(_APP)
        self._last_message = time.monotonic()
        # Whether the last message carried its objects: the announcement of a reply may do so too.
        self._carries = False

    def step(self) -> None:
        """Process the next message and send its reply. If there is no message, pause."""
        asked = time.monotonic()
        try:
            received = self._connection.receive()
        except RunNotRunningError:
            getLogger("flwr").info("A run ended while its message was received: the message is ignored")
            received = None
        if received is None:
            now = time.monotonic()
            if now - asked < LOOK:  # the SuperLink did not hold the request
                time.sleep(min(max(PAUSE_SHARE * (now - self._last_message), SHORTEST_IDLE), LONGEST_IDLE))
            return
        self._last_message = time.monotonic()
        message, tree, contents = received
        self._carries = bool(contents)
        _tell("Receiving", message.metadata)
        run_id, message_id = message.metadata.run_id, message.metadata.message_id
        try:
            self._fetch(message, tree, contents, self._prepare(run_id))
        except RunNotRunningError:
            getLogger("flwr").info("Run %s is not running: message %s is ignored", run_id, message_id)
        except _UnfitError as error:
            getLogger("flwr").error("%s", error)
            self._send_error(message, error)
        else:
            self._reply(message_id)

    def _prepare(self, run_id: int) -> str:
        """Store a run with its bundle and its context, unless they are known. Return the bundle's hash."""
        run = self._state.get_run(run_id)
        if run is None:
            run = self._connection.get_run(run_id)
            try:
                bundle = bundles.fetch(self._connection.get_fab, run.fab_hash, run_id, self._trust)
            except bundles.BundleRefusedError as error:
                raise _UnfitError(protocol.INVALID_FAB, str(error)) from None
            try:
                config = importlib.import_module(_CONFIG).get_fused_config_from_fab(bundle.content, run)
            except Exception as error:  # whatever a file may hold
                reason = f"The bundle {run.fab_hash} of run {run_id} cannot be read: {error}"
                raise _UnfitError(protocol.INVALID_FAB, reason) from error
            earlier = self._state.get_run_series_context(run.series_id)
            context = self._app.Context(
                run_id=run_id,
                node_id=self._connection.node_id,
                node_config=self._node_config,
                state=earlier.state if earlier else self._app.RecordDict(),
                run_config=config,
                series_id=run.series_id,
            )
            self._state.set_run_series_context(run.series_id, context)
            self._state.store_run(run)
            self._state.store_fab(bundle)
        digest: str = run.fab_hash
        return digest

    def _fetch(self, message: Any, tree: Any, contents: dict[str, bytes], bundle: str) -> None:
        """Store a message with its objects, and let a ClientApp work on it from the beginning.

        `contents`: those of the objects that came with the message.
        """
        run_id, message_id = message.metadata.run_id, message.metadata.message_id
        task = self._state.create_task(task_type="flwr-clientapp", run_id=run_id, fab_hash=bundle)
        if task is None:
            raise _UnfitError(
                protocol.MESSAGE_UNAVAILABLE, f"No task could be created for message {message_id}"
            )
        try:
            names = self._store.preregister(run_id, tree)
            self._state.store_message(message)  # wakes the executor
            for name in contents.keys() & names:
                self._store.put(name, contents[name])
            lacking = [name for name in names if name not in contents]
            transfers.pull(lacking, partial(self._connection.pull_object, run_id), self._store.put)
            self._connection.confirm(run_id, message_id)
        except BaseException as error:
            self._state.delete_messages(message_ids=[message_id])
            self._store.delete(message_id)
            details = f"The message was not received: {error}"
            self._state.finish_task(task, sub_status="failed", details=details)
            if isinstance(error, RunNotRunningError) or not isinstance(error, Exception):
                raise
            # If this fails, the SuperLink delivers the message again.
            with suppress(Exception):
                self._connection.confirm(run_id, message_id)
            raise _UnfitError(protocol.MESSAGE_UNAVAILABLE, details) from error
        getLogger("flwr").info("Received successfully")

    def _reply(self, message_id: str) -> None:
        """Wait for the reply to a message, and send it.

        Replies to earlier messages are sent too: a ClientApp may still reply to a message that was ignored
        because its run had ended. If the loop did not wait for the reply to this message, it would from then
        on send every reply a round late.
        """
        answered = ""
        while answered != message_id:
            reply = self._state.replies.get()
            answered = reply.metadata.reply_to_message_id
            runtime = self._state.get_message_processing_duration(message_id=answered)
            reply_id = reply.metadata.message_id
            try:
                # Flower stores a reply before the reply's tree, and holds this lock while it stores both.
                with self._state.lock_msg_store:
                    tree = self._store.get_object_tree(reply_id)
            except Exception as error:  # it was announced twice
                getLogger("flwr").error("Failed to send message %s: %s", reply_id, error)
                continue
            self._send(reply, tree, runtime, partial(self._wait_for_object, reply.metadata.run_id))
            self._state.delete_messages(message_ids=[reply_id, answered])
            self._store.delete(reply_id)

    def _wait_for_object(self, run_id: int, name: str) -> bytes:
        """Return the content of a reply's object as soon as the ClientApp has delivered it."""
        while not (content := self._state.get_object(run_id, name)):
            if content is None:
                raise ValueError(f"the ClientApp has not delivered the object {name}")
            self._state.part.wait(LOOK)
            self._state.part.clear()
        found: bytes = content
        return found

    def _send_error(self, message: Any, error: _UnfitError) -> None:
        reply = self._app.Message(self._app.Error(error.code, str(error)), reply_to=message)
        content, reply_id = reply.deflate(), reply.object_id
        reply.metadata.__dict__["_message_id"] = reply_id
        self._send(reply, ObjectTree(object_id=reply_id), 0.0, lambda _: content)

    def _send(self, reply: Any, tree: Any, runtime: float, content_of: Callable[[str], bytes]) -> None:
        """Send a reply with the objects that the SuperLink lacks. `runtime` is in seconds."""
        _tell("Sending", reply.metadata)
        run_id, message_id = reply.metadata.run_id, reply.metadata.message_id
        try:
            carried = self._small(tree, content_of) if self._carries else []
            lacking, session = self._connection.send(reply, tree, runtime, carried)
            names = dict.fromkeys(
                each.object_id for each in protocol.each_object(tree) if each.object_id in lacking
            )
            transfers.push(
                ((name, content_of(name)) for name in names),
                partial(self._connection.push_object, run_id, session),
            )
            getLogger("flwr").info("Sent successfully")
        except RunNotRunningError:
            getLogger("flwr").info("Run %s is not running: the reply %s is ignored", run_id, message_id)
        except Exception as error:  # the next message may be answered
            getLogger("flwr").error("Failed to send message %s: %s", message_id, error)

    def _small(self, tree: Any, content_of: Callable[[str], bytes]) -> list[bytes]:
        """Return the contents of a reply's objects, an empty list if there are too many or too large ones."""
        names, contents, left = protocol.names_in(tree), list[bytes](), CARRIED
        for name in names if len(names) <= MOST else ():
            contents.append(content_of(name))
            left -= len(contents[-1])
            if left < 0:
                return []
        return contents


def _tell(what: str, metadata: Any) -> None:
    log = getLogger("flwr")
    log.info("")
    log.info("[RUN %s%s]", metadata.run_id, f", ROUND {metadata.group_id}" if metadata.group_id else "")
    log.info("%s: %s message (ID: %s)", what, metadata.message_type, metadata.message_id)
