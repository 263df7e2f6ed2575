"""The SuperLink's state: Flower's, with the duties that this project adds, one method after the other.

`CohortLinkState` is a subclass of Flower's state. Each method that this project changes is one override. Its
body calls Flower's method and the duties in their order. The duties (`duties`) are, for example, the requests
that are held until a message arrives. The contents of messages are in the store of objects,
`storage.objects.CohortObjectStore`, which shares the state's database and transactions.

This module imports Flower's private modules, so only `factories` imports it, in a SuperLink.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flwr.common.serde import message_to_proto

from deploy.fleet import protocol
from deploy.fleet.admission import object_trees
from deploy.fleet.duties import deliveries
from deploy.fleet.storage import past_rounds
from deploy.fleet.storage.clock_jumps import ClockJumps
from deploy.fleet.storage.messages import FewStatements
from deploy.fleet.storage.transactions import TakesTurns
from deploy.fleet.use import Traffic, Use
from deploy.flower.patches.shared import LOOK, remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from flwr.app import Message
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.proto.task_pb2 import Task
    from flwr.superlink.federation import FederationManager

    from deploy.fleet.duties.duties import Duties
    from deploy.fleet.duties.front_ends import FrontEnd
    from deploy.fleet.storage.objects import CohortObjectStore

_USE = (
    "UPDATE run SET bytes_sent = bytes_sent + ?, bytes_recv = bytes_recv + ?, "
    "clientapp_runtime = clientapp_runtime + ? WHERE run_id = ?"
)
_STANDING = (
    "SELECT starting_at IS NOT NULL, running_at IS NOT NULL, finished_at IS NOT NULL, sub_status "
    "FROM run JOIN task ON task_id = primary_task_id WHERE run.run_id = ?"
)
KEY_SECONDS = 60.0  # for which a key's node is cached; a revoked key is forgotten at once


class CohortLinkState(TakesTurns, FewStatements):
    """The SuperLink's state.

    `database_path`: the database's file, or a URL of SQLite. `object_store`: the store of objects in the same
    database. `duties`: what the state calls when messages, objects and nodes come and go.

    `clock_jumps`: knows the time by which the age of pushed messages is judged. `received`: gets the id of a
    run and ids of messages. Returns the bytes that have arrived of the replies to those messages that are
    messages of this run, by message. `ReplyAdmission` sets it when the Fleet API starts. `front_end`: this
    process, if several share the database; otherwise None.
    """

    front_end: FrontEnd | None = None

    def __init__(
        self,
        database_path: str,
        federation_manager: FederationManager,
        object_store: CohortObjectStore,
        duties: Duties,
    ) -> None:
        super().__init__(database_path, federation_manager, object_store)
        self._duties = duties
        self._traffic = Traffic()
        self._cleaned = -LOOK  # when expired tokens were looked for (time.monotonic(), s)
        self.forget_keys()
        self.clock_jumps = ClockJumps()
        self.received: Callable[[int, Collection[str]], Mapping[str, int]] = lambda run, messages: {}

    # --- messages ----------------------------------------------------------------------------------------

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Store a message to a node and the names of its objects, and tell the node if it is complete.

        The first message of a round also deletes those of past rounds.
        """
        metadata = message.metadata
        self._duties.past.message_comes(self, metadata)
        with self.alone():
            object_trees.state_children(self.objects, metadata.run_id, object_tree)
            stored = self.store_message(message_to_proto(message))
            missing = self.expect_objects(object_tree, session_id) if stored else []
        if stored:
            self.then(lambda: self._duties.held.message_stored(metadata, missing, session_id))
        return stored, missing

    def announce_reply(self, reply: Any, object_tree: ObjectTree) -> tuple[str, list[str]] | None:
        """Store a reply (Message of `flwr.proto`) and the names of its objects.

        Returns the session in which its objects are to be pushed, and the names of those that are not stored
        yet; None if the reply was not stored.
        """
        metadata = reply.metadata
        with self.alone():
            flat = object_trees.flat(self.objects, object_tree)
            if not self.store_reply(reply):
                return None
            session_id = self.start_session(metadata.run_id)
            missing = self.expect_objects(flat, session_id)
        self.then(lambda: self._duties.held.message_stored(metadata, missing, session_id))
        return session_id, missing

    def get_message_res(self, message_ids: set[str], run_id: int) -> list[Message]:
        """Return the replies to these messages whose objects have all arrived, each reply once."""
        with self.session() as session:
            replies = super().get_message_res(message_ids, run_id)
            incomplete = deliveries.incomplete(session, [reply.metadata.message_id for reply in replies])
        return [reply for reply in replies if reply.metadata.message_id not in incomplete]

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Delete messages and their replies, with the objects of both.

        The objects of a reply that a ServerApp has received stay, because the ServerApp still reads them.
        """
        if not message_ins_ids:
            return
        with self.alone():
            replies = past_rounds.unfetched(self, message_ins_ids)
            super().delete_messages(message_ins_ids)
            past_rounds.delete_objects(self, message_ins_ids | replies)

    def stored_bytes(self, message_ids: Collection[str]) -> dict[str, int]:
        """Return the bytes of replies that arrive elsewhere, by message: nothing, unless there are others."""
        return {}

    # --- objects -----------------------------------------------------------------------------------------

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """Store an object, and answer the request of its message's receiver if the message is complete."""
        for _ in range(deliveries.ATTEMPTS):  # an attempt fails after a while if the database is locked
            # A part that is stored already counts as stored once more, because the answer may have been lost.
            # Only the content shows that the node knows the object. Its name may be a guess.
            if super().store_object(run_id, session_id, object_id, object_content) or (
                object_content and self.objects.get(object_id) == object_content
            ):
                self.then(lambda: self._duties.held.object_stored(session_id, object_id))
                return True
            if not deliveries.is_expected(self, session_id, object_id):
                return False
        return False

    def store_objects(self, run_id: int, session_id: str, contents: Mapping[str, bytes]) -> bool:
        """Store objects, all or none, and answer the request of their message's receiver when it is complete.

        Returns whether they were stored.
        """
        stored = super().store_objects(run_id, session_id, contents)

        def announce() -> None:
            for name in contents:
                self._duties.held.object_stored(session_id, name)

        if stored:
            self.then(announce)
        return stored

    # --- nodes -------------------------------------------------------------------------------------------

    def activate(self, node_id: int, heartbeat_interval: float) -> bool:
        """Mark a node as online, unless it is connected already. Return whether this was done.

        The messages that the node received before its restart and has not answered are given up.
        """
        returns = self._duties.presence.returns(node_id)
        with self.session() as session:
            done = self.come_online(node_id, heartbeat_interval, returns=returns)
            if done:
                deliveries.give_up(self, session, node_id, self._duties.unconfirmed.of(node_id))
        return done

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        """Revoke a node's key, and answer its held heartbeat: the node asks again, and learns it."""
        super().delete_node(owner_aid, node_id)
        self.forget_keys()
        self._duties.presence.answer(node_id)

    def forget_keys(self) -> None:
        """Look up the nodes of all keys again."""
        self._node_of_key = remembered(super().node_of_key, but=None, seconds=KEY_SECONDS)

    def node_of_key(self, public_key: bytes) -> int | None:
        """Return the node of a key; None if there is none.

        Nearly every request looks up its node.
        """
        node: int | None = self._node_of_key(public_key)
        return node

    # --- runs and their tasks ----------------------------------------------------------------------------

    def note_use(self, run_id: int, use: Use) -> None:
        """Add to what a run has used. Nearly every request does, and writing takes the only write lock."""
        self._store_use(self._traffic.add(run_id, use))

    def store_use(self) -> None:
        """Store what all runs have used."""
        self._store_use(self._traffic.take())

    def _store_use(self, sums: dict[int, Use]) -> None:
        for run_id, use in sorted(sums.items()):  # in the same order in each process, which locks their rows
            self.rows(_USE, (*use, protocol.signed(run_id)))

    def why_not_running(self, run_id: int) -> str:
        """Return why a run takes no requests of nodes, in the words of Flower; "" if it does."""
        self._cleanup_expired_task_tokens()
        found = self.rows(_STANDING, (protocol.signed(run_id),))
        if not found:
            return "Run is unknown."
        begun, running, finished, sub_status = found[0]
        if finished:
            self.cleanup_run(run_id)
            return f"Run is finished.{' Stopped by user.' if sub_status == 'stopped' else ''}"
        if running:
            return ""
        return "Run is starting." if begun else "Run is pending."

    def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
        """End a task, after the traffic of all runs has been stored."""
        self.store_use()
        return super().finish_task(task_id, sub_status, details)

    def get_task_by_token(self, token: str) -> Task | None:
        """Return the task that a token authorises, None if there is none or it has expired."""
        self.clock_jumps.check(self)
        return super().get_task_by_token(token)

    def _cleanup_expired_task_tokens(self) -> None:
        """End the tasks without heartbeats: at most once in `LOOK` s, because nearly every request asks."""
        moment = time.monotonic()
        if moment - self._cleaned < LOOK:
            return
        self._cleaned = moment
        self.clock_jumps.check(self)
        super()._cleanup_expired_task_tokens()
