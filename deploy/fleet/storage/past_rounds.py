"""Deletes messages of past rounds, which stock Flower keeps until the run ends.

A message expires after the longest time that its round may take, and most rounds end long before that. Stock
Flower gives a message to its node until the message expires, so a client that comes back may train for a
round that is over. A message that nobody fetches, or that has expired, stays in the database with its arrays.

The `group_id` of a message is the number of its round. Here a round is over when the ServerApp sends the
first message of a later round. Then this module deletes, with their replies and all their objects,

- the messages of past rounds that nobody has received. A message that a client has received is kept until it
  expires, because the ServerApp learns from late replies how long clients take;
- the messages of past rounds whose objects the ServerApp has not sent completely. A node that waits for such
  an object gives up at once;
- all expired messages of the run, and the messages and replies whose push session has expired. (The objects
  of a message arrive in a push session.)

A message of a buffered round has a `group_id` such as "buffered 7". The reply may be used in a later round,
so the message is kept until it expires. But rounds 1 to 6 are over when the first message with this
`group_id` comes: this module then deletes as above, except unexpired messages of buffered rounds.
"""

import re
import threading
from collections.abc import Callable, Collection
from logging import getLogger
from typing import Any

from deploy.fleet import protocol
from deploy.fleet.storage.statements import AMONG, executor, listed, stored_time

_UNFETCHED = f"SELECT message_id FROM message_res WHERE reply_to_message_id {AMONG} AND delivered_at = ''"
_PUSHES = f"SELECT session_id FROM object_push_session_roots WHERE root_object_id {AMONG}"
_ROOTS = f"SELECT object_id FROM objects WHERE object_id {AMONG} AND ref_count = 0"
_WAITING = "SELECT message_id, group_id FROM message_ins WHERE run_id = ? AND delivered_at = ''"
_CLAIM = (
    f"UPDATE message_ins SET delivered_at = 'past' WHERE message_id {AMONG} AND delivered_at = '' "
    "RETURNING message_id"
)
_EXPIRED = "SELECT message_id FROM message_ins WHERE run_id = ? AND created_at + ttl < ?"
_INCOMPLETE = (
    "SELECT session_id, group_id FROM object_push_session_roots "
    "JOIN message_ins ON message_id = root_object_id WHERE run_id = ?"
)
_ABANDONED = "SELECT session_id FROM object_push_sessions WHERE run_id = ? AND expires_at <= ?"
_ROUND = re.compile(r"[0-9]{1,18}")
_BUFFERED = re.compile(r"buffered ([0-9]{1,18})")  # see `strategies.flower.buffered_messages.buffered_group`


class PastRounds:
    """Knows the newest round of each run, and deletes messages of earlier rounds."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}  # by run: the number of its newest round
        self._deleted: dict[int, int] = {}  # by run: the round before which messages have been deleted
        self._lock = threading.Lock()
        # Called when a round begins, to tell other front ends.
        self.tell: Callable[[str, object], None] = lambda kind, what: None

    def is_past(self, metadata: Any) -> bool:
        """Tell whether the message with these metadata belongs to a round that is over."""
        number = _round_of(metadata.group_id)
        return number is not None and number < self._newest.get(metadata.run_id, 0)

    def message_comes(self, state: Any, metadata: Any) -> None:
        """Delete the messages of past rounds if the message with these metadata is the first of its round.

        Call this before the message is stored.
        """
        if not metadata.reply_to_message_id and (number := _begun_by(metadata.group_id)) is not None:
            self._begin(state, metadata.run_id, number)

    def note_round(self, run_id: int, number: int) -> None:
        """Note that a round of a run has begun."""
        with self._lock:
            self._newest[run_id] = max(self._newest.get(run_id, 0), number)

    def _begin(self, state: Any, run_id: int, number: int) -> None:
        self.note_round(run_id, number)
        with self._lock:
            deleted = self._deleted.get(run_id, 0)
            if number <= deleted:
                return
            self._deleted[run_id] = number  # other requests of this round need not delete as well
        self.tell("round", f"{run_id}:{number}")
        try:
            _delete_before(state, run_id, number)
        except Exception as error:  # such as a locked database; the next message tries the deletion again
            with self._lock:
                self._deleted[run_id] = deleted
            getLogger("flwr").warning("Messages before round %d were not deleted: %s", number, error)


def _round_of(group_id: str) -> int | None:
    return int(group_id) if _ROUND.fullmatch(group_id) else None


def _begun_by(group_id: str) -> int | None:
    """Return the round that a `group_id` names, such as 7 for "7" and "buffered 7", or None."""
    buffered = _BUFFERED.fullmatch(group_id)
    return int(buffered[1]) if buffered else _round_of(group_id)


def unfetched(state: Any, message_ids: Collection[str]) -> set[str]:
    """Return the replies to these messages that no ServerApp has received, and end their push sessions.

    `message_ids` and the returned set hold ids. Call this in the transaction that deletes the messages.
    """
    with state.alone() as database:
        execute = executor(database)
        replies = {name for (name,) in execute(_UNFETCHED, (listed(message_ids),))}
        pushes = execute(_PUSHES, (listed(replies),)).all() if replies else ()
        for (session_id,) in pushes:
            state.end_push(session_id, with_messages=False)
    return replies


def delete_objects(state: Any, message_ids: Collection[str]) -> None:
    """Delete the objects of messages and replies with these ids."""
    with state.alone() as database:
        for (name,) in executor(database)(_ROOTS, (listed(message_ids),)).all():
            state.objects.delete(name)


def _delete_before(state: Any, run_id: int, number: int) -> None:
    run, moment = protocol.signed(run_id), protocol.now()

    def past(rows: Any) -> set[str]:
        """Return the first values of those rows whose second value, a group id, is that of a past round."""
        rounds = ((name, _round_of(group)) for name, group in rows.all())
        return {name for name, of in rounds if of is not None and of < number}

    with state.alone() as database:
        execute = executor(database)
        waiting = past(execute(_WAITING, (run,)))
        # A message that a node has received since the `waiting` messages were looked up is not claimed.
        claimed = execute(_CLAIM, (listed(waiting),)).all() if waiting else []
        state.delete_messages(
            {name for (name,) in (*claimed, *execute(_EXPIRED, (run, moment.timestamp())).all())}
        )
        pushes = past(execute(_INCOMPLETE, (run,)))
        pushes |= {name for (name,) in execute(_ABANDONED, (run, stored_time(moment))).all()}
        for session_id in pushes:
            state.end_push(session_id, with_messages=True)
