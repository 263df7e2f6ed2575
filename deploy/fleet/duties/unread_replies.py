"""Keeps the replies that a ServerApp has asked for until it shows, by its next request, that it has them.

Stock Flower deletes replies and then sends them. If the answer is lost, because the SuperLink, its database
or a balancer dies at this moment, the ServerApp asks again, and is told that the replies do not exist. Here
it gets them again, also from another front end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

RUNS = 64  # the most runs whose last replies are known; those of other runs are deleted when the run ends


class UnreadReplies:
    """The messages of each run whose replies were in the last answer to the run's ServerApp."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, frozenset[str]] = OrderedDict()
        self._lock = threading.Lock()

    def keep_for_apps(self, handlers: Any) -> None:
        """Let this module of handlers keep the replies that it gives to ServerApps."""
        pull = handlers.pull_messages

        @wraps(pull)
        def kept(asked: Any, state: Any, task: Any) -> Any:
            return self._pull(pull, asked, state, task)

        handlers.pull_messages = kept

    def _pull(self, pull: Callable[..., Any], asked: Any, state: Any, task: Any) -> Any:
        run, ids = task.run_id, frozenset(asked.message_ids)
        with self._lock:
            last = self._last.pop(run, None)
        # Without a successful last request at this process, replies may have been handed out all the same:
        # before a restart, before an error, or by another front end.
        if last is None or last & ids or state.front_end is not None:
            state.hand_out_again(ids)
        if last is not None and (read := last - ids):
            state.delete_messages(set(read))
        handled = _Handled(state)
        response = pull(asked, handled, task)
        given = {each.metadata.reply_to_message_id for each in response.messages_list}
        # The others are not in the answer: the objects of their replies are gone.
        state.delete_messages(handled.messages - given)
        with self._lock:
            self._last[run] = frozenset(given)
            if len(self._last) > RUNS:
                self._last.popitem(last=False)
        return response


class _Handled:
    """The state, as the handler sees it: it deletes no messages, but notes which ones it was to delete."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self.messages: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        self.messages |= message_ins_ids
