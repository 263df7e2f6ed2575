"""A ServerApp whose request for replies failed, or whose answer was lost, gets the replies once more."""

from types import SimpleNamespace

import pytest

from deploy.fleet.duties import unread_replies

RUN = 7


class State:
    """The replies of a run, as the SuperLink's state keeps them."""

    front_end = None

    def __init__(self, *replies):
        self.stored, self.handed_out, self.looks = set(replies), set(), 0

    def get_message_res(self, ids):
        found = sorted((self.stored - self.handed_out) & ids)
        self.handed_out |= set(found)
        return found

    def delete_messages(self, ids):
        self.stored -= ids

    def hand_out_again(self, ids):
        self.looks += 1
        self.handed_out -= ids


def server(state, *, broken=lambda: False, gone=()):
    """Return how a SuperLink answers a ServerApp, `pull(ids)`, with Flower's handler in few lines.

    `broken`: whether the handler fails. `gone`: the messages of which the replies have no objects any more.
    """

    def pull_messages(asked, state, task):
        found = state.get_message_res(set(asked.message_ids))
        state.delete_messages(set(found))
        if broken():
            raise OSError("the database is gone")
        replies = [
            SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=each))
            for each in found
            if each not in gone
        ]
        return SimpleNamespace(messages_list=replies)

    handlers = SimpleNamespace(pull_messages=pull_messages)
    unread_replies.UnreadReplies().keep_for_apps(handlers)
    task = SimpleNamespace(run_id=RUN)

    def pull(*ids):
        answer = handlers.pull_messages(SimpleNamespace(message_ids=list(ids)), state, task)
        return [each.metadata.reply_to_message_id for each in answer.messages_list]

    return pull


def test_replies_are_given_again_until_the_app_no_longer_asks_for_them():
    state = State("a", "b")
    pull = server(state)
    assert pull("a", "b", "c") == ["a", "b"]
    assert pull("a", "b", "c") == ["a", "b"]  # the answer was lost
    state.stored.add("c")
    assert pull("c") == ["c"]
    assert state.stored == {"c"}
    looks = state.looks
    assert pull("d") == []
    assert state.stored == set()
    assert state.looks == looks  # nothing can be lost


def test_a_request_that_fails_loses_no_reply():
    failures = [True]
    state = State("a")
    pull = server(state, broken=lambda: failures and failures.pop())
    with pytest.raises(OSError, match="gone"):
        pull("a")
    assert pull("a") == ["a"]


def test_a_reply_that_cannot_be_given_is_not_kept():
    state = State("a", "b")
    pull = server(state, gone=("a",))
    assert pull("a", "b") == ["b"]
    assert state.stored == {"b"}  # so the next request is told that "a" is lost


def test_another_process_gives_the_replies_again():
    state = State("a")
    assert server(state)("a") == ["a"]
    another = server(state)  # after a restart, or another front end
    assert another("a") == ["a"]
    state.front_end = object()
    state.stored.add("b")
    assert another("b") == ["b"]
    state.stored.add("c")
    assert server(state)("b", "c") == ["b", "c"]  # which has lost the connection to the app since
    assert another("c") == ["c"]


def test_few_runs_are_remembered(monkeypatch):
    monkeypatch.setattr(unread_replies, "RUNS", 2)
    unread = unread_replies.UnreadReplies()
    handlers = SimpleNamespace(pull_messages=lambda *_: SimpleNamespace(messages_list=[]))
    unread.keep_for_apps(handlers)
    for run in range(5):
        handlers.pull_messages(SimpleNamespace(message_ids=["a"]), State(), SimpleNamespace(run_id=run))
    assert list(unread._last) == [3, 4]
