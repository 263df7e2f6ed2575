"""Repairs the loss of messages on their way between the SuperLink and a SuperNode.

A connection that breaks loses the request or the answer that is under way. Stock Flower sends the request
again, but the first attempt may already have changed the SuperLink's state. This module changes four things:

- Stock Flower hands out a message once. If the answer with the message is lost, the round waits for the reply
  until the round's deadline. Here a node that asks for the next message without having confirmed the last one
  receives the last one again. A message is delivered at most three times, and not after the end of its round.
- A reply arrives in parts, which Flower calls objects. In stock Flower, a ServerApp may receive the reply
  before the last part has arrived. The ServerApp then waits for that part for three minutes, even if the
  round's deadline is earlier. If the connection breaks meanwhile, the SuperNode sends the reply again, but
  the SuperLink refuses this second attempt, because the reply was handed out. Here a ServerApp receives a
  reply only when all its parts have arrived, or when no part has arrived for `messages.LONGEST_PART` s.
- Stock Flower refuses a part of a reply if the database is locked. If the SuperLink has stored a part, but
  the answer that says so is lost, the SuperNode sends the part again, and stock Flower refuses this second
  copy. In both cases the SuperNode gives up the reply. Here the SuperLink tries again to store a part while
  the database is locked, and accepts a part that is already stored.
- A SuperNode that restarts has forgotten the messages that it received. Here the ServerApp receives an error
  reply to each message that was not answered, unless the message will be delivered again.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.fleet import protocol
from deploy.fleet.storage.statements import AMONG, executor, listed, stored_time

if TYPE_CHECKING:
    from deploy.fleet.storage.past_rounds import PastRounds

# The most times that a message is delivered, and that the SuperLink tries to store a part of a reply.
ATTEMPTS = 3

_PUSHED = (
    "SELECT root_object_id FROM object_push_session_roots JOIN object_push_sessions USING (session_id) "
    f"WHERE root_object_id {AMONG} AND pending_count > 0 AND expires_at > ?"
)
_HALF_PUSHED = (
    "SELECT session_id FROM object_push_session_roots JOIN object_push_sessions USING (session_id) "
    "JOIN message_res ON message_id = root_object_id WHERE src_node_id = ? AND pending_count > 0"
)
_UNANSWERED = (
    "SELECT message_id FROM message_ins WHERE dst_node_id = ? AND delivered_at != '' AND message_id != ? "
    "AND message_id NOT IN (SELECT reply_to_message_id FROM message_res)"
)
_BACK = f"UPDATE message_res SET delivered_at = '' WHERE message_id {AMONG}"

_PENDING = "SELECT 1 FROM object_push_session_pending WHERE session_id = ? AND object_id = ?"


class _Delivery(NamedTuple):
    response: Any  # PullMessagesResponse with one message
    attempts: int


class Unconfirmed:
    """For each node, the last message that was sent to the node, unless the node has confirmed the message.

    `past`: knows which rounds are past. A message of a past round is not delivered again.
    """

    def __init__(self, past: PastRounds) -> None:
        self._past = past
        self._of_node: dict[int, _Delivery] = {}
        self._lock = threading.Lock()

    def of(self, node: int) -> str | None:
        """Return the id of the message that will be delivered to a node again, or None if there is none."""
        with self._lock:
            delivery = self._of_node.get(node)
        if delivery is None or not self._is_valid(delivery):
            return None
        message_id: str = delivery.response.messages_list[0].metadata.message_id
        return message_id

    def _is_valid(self, delivery: _Delivery) -> bool:
        """Tell whether the message of a delivery may be delivered once more."""
        metadata = delivery.response.messages_list[0].metadata
        in_time = time.time() < metadata.created_at + metadata.ttl
        return delivery.attempts < ATTEMPTS and in_time and not self._past.is_past(metadata)

    def again(self, node: int) -> Any:
        """Return the node's last message (a PullMessagesResponse) to deliver it once more, or None."""
        with self._lock:
            before = self._of_node.pop(node, None)
            if before is None or not self._is_valid(before):
                return None
            self._of_node[node] = _Delivery(before.response, before.attempts + 1)
        return before.response

    def note(self, node: int, response: Any) -> None:
        """Note the first delivery of a message to a node. The PullMessagesResponse may hold no message."""
        if response.messages_list:
            with self._lock:
                self._of_node[node] = _Delivery(response, 1)

    def not_sent(self, node: int) -> None:
        """Note that the answer with a node's last message could not be made, so this was no delivery."""
        with self._lock:
            if before := self._of_node.get(node):
                self._of_node[node] = before._replace(attempts=before.attempts - 1)

    def forget(self, node: int) -> None:
        """Note that a node has confirmed its last message."""
        with self._lock:
            self._of_node.pop(node, None)


def incomplete(database: Any, replies: list[str]) -> set[str]:
    """Find the replies whose parts are still being pushed, and mark these replies as not handed out.

    `replies` and the returned set hold ids of replies. Call this in the transaction that has marked the
    replies as handed out, so that after a crash no incomplete reply counts as handed out. A reply whose push
    session has expired stays marked as handed out, and Flower reports the reply as lost.
    """
    if not replies:
        return set()
    execute = executor(database)
    now = stored_time(protocol.now())
    incomplete = {name for (name,) in execute(_PUSHED, (listed(replies), now))}
    if incomplete:
        execute(_BACK, (listed(incomplete),))
    return incomplete


def is_expected(state: Any, session_id: str, object_id: str) -> bool:
    """Tell whether a push session waits for an object. If it does not, no attempt to store it can succeed."""
    return bool(state.rows(_PENDING, (session_id, object_id)))


def give_up(state: Any, database: Any, node_id: int, kept: str | None) -> None:
    """Delete the messages that a restarted node had received and not answered.

    The SuperLink cannot deliver these messages again, because it has deleted their contents. A ServerApp that
    asks for the reply to a deleted message gets Flower's error reply.
    """
    execute = executor(database)
    node = protocol.signed(node_id)
    for (session_id,) in execute(_HALF_PUSHED, (node,)).all():
        state.end_push(session_id, with_messages=True)
    state.delete_messages({message for (message,) in execute(_UNANSWERED, (node, kept or "")).all()})
