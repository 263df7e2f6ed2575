"""Which nodes are asked for their status, when they are asked again, and which answers count."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message

from strategies import SelectionStrategy
from strategies.clients.reports import STATUS, Report
from strategies.flower.status_questions import StatusQuestions
from strategies.options import Deadlines, Polling

from ...support.federations import model
from ...support.toy_grid import ToyGrid
from ..test_strategy import client, run, silent_to_all, stranger
from .test_attendance import strategy_on


class SlowLooks(ToyGrid):
    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        self.clock.sleep(0.9)
        return found


def test_an_app_without_a_status_handler_is_asked_three_times():
    grid = ToyGrid({number: stranger() for number in range(1, 6)})
    _, records, strategy = run(grid, rounds=2, clients_per_round=5)
    grid.nodes[9] = stranger()
    list(strategy.configure_train(3, model(0), ConfigRecord(), grid))
    assert sum(message.metadata.message_type == STATUS for message in grid.sent) == 3
    assert strategy.roster.ids() == [f"node-{number}" for number in (1, 2, 3, 4, 5, 9)]
    assert [record.num_available for record in records] == [5, 5]


def test_two_nodes_that_say_that_the_app_has_no_status_handler_do_not_speak_for_the_others():
    """The first node that was asked did: then no other could tell its identity and its size."""
    grid = ToyGrid({1: stranger(), 2: stranger(), **{n: client(f"c{n}") for n in (3, 4, 5)}})
    _, _, strategy = run(grid)
    assert strategy.roster.ids() == ["c3", "c4", "c5", "node-1", "node-2"]


def test_a_resumed_run_knows_that_the_app_has_no_status_handler():
    grid = ToyGrid({number: stranger() for number in range(1, 4)})
    before = SelectionStrategy("uniform", clients_per_round=2, polling=Polling(ask_status=True), num_rounds=9)
    list(before.configure_train(1, model(0), ConfigRecord(), grid))
    after = SelectionStrategy("uniform", clients_per_round=2, polling=Polling(ask_status=True), num_rounds=9)
    after._parts.attendance.load(before._parts.attendance.state())
    grid.nodes[4] = grid.nodes[5] = stranger()
    list(after.configure_train(2, model(0), ConfigRecord(), grid))
    assert sum(message.metadata.message_type == STATUS for message in grid.sent) == 3
    assert len(after.roster) == 5


def test_nodes_are_asked_once_a_reply_holds_an_identity_unless_the_app_has_no_status_handler():
    online = {1: "", 2: ""}
    questions = StatusQuestions(Deadlines(), Polling())
    assert (questions.asks(online), questions.may_ask_later(online)) == (False, True)
    questions.note_identity()
    assert (questions.asks(online), questions.may_ask_later(online)) == (True, False)
    grid = ToyGrid(dict.fromkeys(online, stranger()))
    assert questions.ask(grid, [1, 2], online) == {1: Report(), 2: Report()}
    assert [message.metadata.dst_node_id for message in grid.sent] == [1]
    assert (questions.asks(online), questions.may_ask_later(online)) == (False, False)


def test_the_first_client_that_is_asked_may_be_dead():
    grid = ToyGrid({1: silent_to_all, 2: client("b"), 3: client("c")})
    _, _, strategy = run(grid, clients_per_round=2, min_available_clients=2, deadlines=Deadlines(status=60))
    assert strategy.roster.ids() == ["b", "c"]
    assert 3 <= grid.clock.monotonic() < 4


def test_an_answer_that_arrives_after_the_wait_for_the_first_three_nodes_counts():
    """The answer arrived before the other nodes were asked. It was dropped, and the node was asked again."""
    grid = SlowLooks({node: client(str(node)) for node in range(1, 6)})
    grid.latency = lambda message: (
        3.0 if message.metadata.message_type == STATUS and message.metadata.dst_node_id == 2 else 0.1
    )
    strategy, one_round = strategy_on(grid, min_available_clients=5)
    one_round(1)
    assert strategy.roster.ids() == ["1", "2", "3", "4", "5"]
    asked = [message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == STATUS]
    assert sorted(asked) == [1, 2, 3, 4, 5]


def test_a_client_that_declines_is_asked_again():
    willing = [False]

    def moody(message):
        return client("moody", available=willing[0])(message)

    grid = ToyGrid({1: moody, 2: client("b")})
    _, one_round = strategy_on(grid)
    assert [len(one_round(number)) for number in (1, 2)] == [1, 1]
    willing[0] = True
    assert len(one_round(3)) == 2


def test_a_silent_new_client_is_asked_again_but_does_not_delay_every_round():
    asked, talks = [], [False]

    def shy(message):
        asked.append(message)
        return client("shy")(message) if talks[0] else None

    grid = ToyGrid({1: client("a"), 2: client("b"), 3: shy})
    strategy, one_round = strategy_on(grid, num_rounds=99, deadlines=Deadlines(status=0.1))
    for number in range(1, 11):
        one_round(number)
    assert len(asked) < 10
    assert strategy.roster.ids() == ["a", "b"]
    talks[0] = True
    grid.clock.sleep(5)
    one_round(11)
    assert strategy.roster.ids() == ["a", "b", "shy"]


def test_the_pause_of_a_silent_node_doubles():
    asked = []
    grid = ToyGrid({1: lambda message: asked.append(grid.clock.monotonic())})
    questions = StatusQuestions(Deadlines(status=5), Polling(ask_status=True))
    while grid.clock.monotonic() < 200:
        assert questions.ask(grid, [1], {1: ""}) == {}
        grid.clock.sleep(0.5)
    # The third answer is awaited for what is left of 10 s and 5 % of the time, and so is the fourth.
    pauses, waits = [10, 20, 40, 80], [5, 5, 2, 2]
    assert np.diff(asked) == pytest.approx(np.add(pauses, waits), abs=0.5)


def test_a_late_status_is_used_before_the_node_is_asked_again():
    grid = ToyGrid({1: client("a"), 2: client("b"), 3: client("slow")})

    def latency(message):
        is_late = message.metadata.dst_node_id == 3 and message.metadata.message_type == STATUS
        return 70.0 if is_late else 0.0

    grid.latency = latency
    _, _, strategy = run(grid, clients_per_round=3, deadlines=Deadlines(join=200))
    assert strategy.roster.ids() == ["a", "b", "slow"]
    assert 70 <= grid.clock.monotonic() < 75  # it is asked again after 120 s
    questions = [message for message in grid.sent if message.metadata.message_type == STATUS]
    assert len(questions) == 3


def test_a_node_that_answers_after_it_was_asked_again_joins_with_its_first_answer():
    """Its app needs 200 s for each question, and it is asked again after 120 s."""
    grid = ToyGrid({1: client("slow")})
    grid.latency = lambda message: 200.0
    questions = StatusQuestions(Deadlines(status=60), Polling(ask_status=True))
    while not (reports := questions.ask(grid, [1], {1: ""})):
        grid.clock.sleep(5)
    assert reports[1].client_id == "slow"
    assert 200 <= grid.clock.monotonic() < 215
    grid.clock.sleep(400)  # its second answer, which is older than its last report, is not used
    assert not questions.ask(grid, [], {1: ""})
    assert len(grid.sent) == 2


@pytest.mark.parametrize(("hurries", "seconds"), [(True, 13), (False, 31)])
def test_slow_looks_for_late_answers_are_rare_unless_they_delay_nothing(hurries, seconds):
    grid = SlowLooks({1: client("late")})
    grid.latency = lambda message: 12.0
    questions = StatusQuestions(Deadlines(status=10), Polling(ask_status=True))
    while not questions.ask(grid, [1], {1: ""}):
        grid.clock.sleep(0.5)
        if hurries:
            questions.hurry()
    assert grid.clock.monotonic() == pytest.approx(seconds, abs=1.5)


def test_a_status_handler_that_fails_once_is_asked_again():
    fails = [True]

    def node(message):
        if message.metadata.message_type == STATUS and fails[0]:
            fails[0] = False
            raise OSError("disk is busy")
        return client("me", size=70)(message)

    grid = ToyGrid({1: node, 2: client("b")})
    _, _, strategy = run(grid, deadlines=Deadlines(status=0.01))
    assert strategy.roster.ids() == ["b", "me"]
    assert strategy.selector.client_sizes.tolist() == [10, 70]


def test_a_node_whose_clientapp_was_killed_is_asked_again_soon():
    """The first message of a slow device may fail, for example while its ClientApp imports torch."""
    errors = 2
    asked = []

    def node(message):
        if message.metadata.message_type == STATUS:
            asked.append(grid.clock.monotonic())
            if len(asked) <= errors:
                return Message(Error(code=5, reason="killed"), reply_to=message)
        return client("slow")(message)

    grid = ToyGrid({1: client("a"), 2: client("b"), 3: node})
    _, _, strategy = run(grid, clients_per_round=3, deadlines=Deadlines(join=200))
    assert strategy.roster.ids() == ["a", "b", "slow"]
    assert np.diff(asked) == pytest.approx([10, 20], abs=2)
