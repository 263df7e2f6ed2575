"""What candidates are asked before a round: real messages, in process."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from strategies.clients.reports import GROUP, INVITATION, LOSS, NORM, Report
from strategies.clients.roster import Roster
from strategies.flower.messages import write_report
from strategies.flower.polling import MissingHandlerError, Poll, PollRound
from strategies.options import Polling
from strategies.selectors import create
from strategies.selectors.invitation import GroupMember

from ...support.toy_grid import ToyGrid

ARRAYS = ArrayRecord({"w": Array(np.zeros(2, np.float32))})


def tells(**report):
    """A client that answers whatever question with this report."""
    return lambda message: Message(write_report(Report(**report)), reply_to=message)


def raw(**metrics):
    """A client that answers whatever question with these metrics, unchecked."""
    return lambda message: Message(RecordDict({"m": MetricRecord(metrics)}), reply_to=message)


def without_handlers(message):
    category, _, action = message.metadata.message_type.partition(".")
    raise ValueError(f"No {category} function registered with name '{action or 'default'}'")  # as Flower does


def evaluating(**metrics):
    """A client of a foreign app, which can be evaluated but not queried."""

    def node(message):
        return (raw(**metrics) if message.metadata.message_type == "evaluate" else without_handlers)(message)

    return node


def failing(message):
    raise OSError("no disk")


def dead(message):
    """Flower's error reply for a node that died: its source is node 1."""
    reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = 1
    return reply


def federation(*nodes):
    roster = Roster()
    roster.register({f"c{i:02d}": 100 + i for i in range(len(nodes))})
    return ToyGrid({100 + i: node for i, node in enumerate(nodes)}), roster


def pow_d(num_clients, name="pow-d", **settings):
    return create(
        name, num_clients, clients_per_round=1, num_rounds=10, num_candidates=num_clients, **settings
    )


class Polled(NamedTuple):
    candidates: Any
    reports: Any
    train_config: Any


def ask(poll, grid, roster, selector, round=1):
    candidates, poll.roster = selector.candidates(round), roster
    return Polled(candidates, *poll.ask(PollRound(grid, selector, round, ARRAYS), candidates))


def kinds(grid):
    return [message.metadata.message_type for message in grid.sent]


def test_only_candidates_are_polled_and_those_with_the_largest_losses_train():
    grid, roster = federation(*[tells(loss=float(i)) for i in range(6)])
    selector = create("pow-d", 6, clients_per_round=2, num_candidates=4)
    candidates, reports, train_config = ask(Poll(Roster()), grid, roster, selector)
    expected = selector.candidates(1)
    assert candidates.tolist() == expected.tolist()
    assert [message.metadata.dst_node_id for message in grid.sent] == [100 + c for c in candidates]
    assert reports["loss"].tolist() == candidates.tolist()
    assert train_config == {}
    selection = selector.select(1, candidates=candidates, reports=reports)
    assert sorted(selection.clients) == sorted(candidates)[-2:]


def test_a_question_has_the_model_the_round_and_a_seed_of_its_own():
    grid, roster = federation(*[tells(loss=1.0)] * 3)
    ask(
        Poll(Roster(), deadline=20, seed=7, arrays_key="model", config_key="settings"),
        grid,
        roster,
        pow_d(3),
        round=4,
    )
    assert [message.content.array_records["model"] for message in grid.sent] == [ARRAYS] * 3
    configs = [message.content.config_records["settings"] for message in grid.sent]
    assert all(config["server-round"] == 4 and "batch-size" not in config for config in configs)
    assert len({config["seed"] for config in configs}) == 3
    assert {message.metadata.ttl for message in grid.sent} == {320}
    again, roster = federation(*[tells(loss=1.0)] * 3)
    ask(Poll(Roster(), seed=7), again, roster, pow_d(3), round=4)
    assert [message.content.config_records["config"]["seed"] for message in again.sent] == [
        config["seed"] for config in configs
    ]


def test_cpow_d_asks_for_a_mini_batch():
    grid, roster = federation(*[tells(loss=1.0)] * 2)
    ask(Poll(Roster()), grid, roster, pow_d(2, "cpow-d", batch_size=9))
    assert [message.content.config_records["config"]["batch-size"] for message in grid.sent] == [9, 9]


@pytest.mark.parametrize(
    "name", ["rpow-d", "afl", "uniform", "adaptive-osmd", "prac-delta", "prac-is", "forecast"]
)
def test_most_selectors_need_no_poll(name):
    grid, roster = federation(*[failing] * 3)
    selector = create(name, 3, clients_per_round=1, num_rounds=9)
    assert ask(Poll(Roster()), grid, roster, selector) == (None, None, {})
    assert grid.sent == []


BAD = {
    "late": lambda message: None,
    "failing": failing,
    "dead": dead,
    "nan": raw(loss=float("nan")),
    "infinite": raw(loss=float("inf")),
    "a list": raw(loss=[1.0, 2.0]),
    "nothing": tells(),
    "bad size": raw(**{"loss": 2.0, "num-examples": -1}),
    "unwilling": tells(loss=9.0, available=False),
}


@pytest.mark.parametrize(
    ("poll_with", "kind"),
    [("query", kind) for kind in BAD]
    # An evaluation says nothing of the others.
    + [("evaluate", kind) for kind in BAD if kind not in ("unwilling", "bad size", "nothing")],
)
def test_a_candidate_without_a_usable_answer_is_not_available(kind, poll_with):
    grid, roster = federation(tells(loss=3.0), BAD[kind], tells(loss=1.0))
    selector = pow_d(3)
    asked = ask(Poll(Roster(), polling=Polling(poll_with=poll_with)), grid, roster, selector)
    losses = dict(zip(asked.candidates.tolist(), asked.reports["loss"], strict=True))
    assert losses[0] == 3.0
    assert np.isnan(losses[1])
    assert losses[2] == 1.0
    selection = selector.select(1, candidates=asked.candidates, reports=asked.reports, budget=3)
    assert 1 not in selection.clients
    assert roster.is_available(1) == (kind != "unwilling")


def test_replies_are_matched_by_message_and_the_first_counts(monkeypatch):
    def twice(message):
        return [tells(loss=9.0)(message), tells(loss=2.0)(message)]

    grid, roster = federation(tells(loss=0.0), twice, tells(loss=1.0))
    pull = grid.pull_messages
    monkeypatch.setattr(grid, "pull_messages", lambda ids: pull(ids)[::-1])
    candidates, reports, _ = ask(Poll(Roster()), grid, roster, pow_d(3))
    assert dict(zip(candidates.tolist(), reports["loss"], strict=True)) == {0: 0.0, 1: 2.0, 2: 1.0}


def test_a_round_without_answers_is_empty_and_no_error():
    grid, roster = federation(*[BAD["late"]] * 3)
    selector = pow_d(3)
    asked = ask(Poll(Roster()), grid, roster, selector)
    assert selector.select(1, candidates=asked.candidates, reports=asked.reports).clients.size == 0


def test_without_candidates_nothing_is_sent():
    grid, roster = federation(*[tells(loss=1.0)] * 2)
    nobody = np.empty(0, dtype=np.int64)
    asked = Poll(roster).ask(PollRound(grid, pow_d(2), 1, ARRAYS), nobody)
    assert grid.sent == []
    assert asked.reports["loss"].size == 0


def test_an_app_without_the_handler_is_evaluated_and_not_queried_again():
    grid, roster = federation(*[evaluating(**{"loss": float(i), "num-examples": 3}) for i in range(3)])
    poll = Poll(Roster())
    for round in (1, 2):
        candidates, reports, _ = ask(poll, grid, roster, pow_d(3), round)
        assert reports["loss"].tolist() == candidates.tolist()
    assert kinds(grid) == [LOSS] * 3 + ["evaluate"] * 6


def test_an_app_may_be_evaluated_at_once_by_the_name_of_its_metric():
    grid, roster = federation(*[evaluating(nll=float(i)) for i in range(2)])
    poll = Poll(roster, Polling(poll_with="evaluate", loss_metric="nll"))
    round = PollRound(grid, pow_d(2), 5, ARRAYS, evaluate_config={"split": "test"})
    asked = poll.ask(round, np.arange(2))
    assert sorted(asked.reports["loss"]) == [0.0, 1.0]
    assert kinds(grid) == ["evaluate"] * 2
    assert dict(grid.sent[0].content.config_records["config"]) == {"split": "test", "server-round": 5}


def test_apps_with_and_without_the_handler_are_polled_in_one_round():
    grid, roster = federation(tells(loss=1.0), evaluating(loss=2.0))
    poll = Poll(Roster())
    for round in (1, 2):
        asked = ask(poll, grid, roster, pow_d(2), round)
        assert sorted(asked.reports["loss"]) == [1.0, 2.0]
    assert kinds(grid) == [LOSS, LOSS, "evaluate"] * 2


@pytest.mark.parametrize(
    ("node", "poll", "message"),
    [
        (
            evaluating(**{"accuracy": 0.5, "num-examples": 3}),
            Poll(Roster()),
            r"pow-d needs the loss of its candidates, and the clients' app reports none: it has no "
            r"query.loss handler, and its evaluate handler returns accuracy, num-examples, but not 'loss' "
            r"\(Polling\(loss_metric=...\) names",
        ),
        (without_handlers, Poll(Roster()), "it has no query.loss handler, and it has no evaluate handler"),
        (
            evaluating(loss=1.0),
            Poll(Roster(), polling=Polling(poll_with="evaluate", loss_metric="nll")),
            r"candidates, and its evaluate handler returns loss, but not 'nll' \(Polling\(",
        ),
    ],
)
def test_the_error_says_which_handler_or_metric_is_missing(node, poll, message):
    grid, roster = federation(node, node, BAD["late"], node, BAD["late"])
    with pytest.raises(MissingHandlerError, match=message):
        ask(poll, grid, roster, pow_d(5))


def test_two_clients_that_say_that_the_app_has_no_handler_do_not_end_the_run():
    """One did, in a round in which no other candidate answered, and made all later polls evaluations."""
    grid, roster = federation(*[without_handlers] * 2, *[BAD["late"]] * 3)
    poll = Poll(Roster())
    ask(poll, grid, roster, pow_d(5))
    for node in (102, 103, 104):
        grid.nodes[node] = tells(loss=1.0)
    asked = ask(poll, grid, roster, pow_d(5), 2)
    assert np.isfinite(asked.reports["loss"]).sum() == 3


def test_after_one_answer_a_client_without_handler_does_not_end_the_run():
    grid, roster = federation(tells(loss=1.0), without_handlers)
    poll = Poll(Roster())
    ask(poll, grid, roster, pow_d(2))
    grid.nodes[100] = BAD["late"]
    asked = ask(poll, grid, roster, pow_d(2), 2)
    assert np.isnan(asked.reports["loss"]).all()


def test_nan_from_all_candidates_is_not_a_missing_metric():
    grid, roster = federation(*[evaluating(loss=float("nan"))] * 2)
    asked = ask(Poll(Roster(), polling=Polling(poll_with="evaluate")), grid, roster, pow_d(2))
    assert np.isnan(asked.reports["loss"]).all()


# --- flics-private -----------------------------------------------------------------------------------------


def member(group, secret, change=lambda _, r: r):
    """A client with a private group."""

    def node(message):
        config = message.content.config_records["config"]
        mine = GroupMember(group, int(config["num-groups"]), 4.0, secret)
        round = int(config["server-round"])
        if message.metadata.message_type == GROUP:
            assert config["epsilon"] == 4.0
            report = Report(group=mine.report(round))
        else:
            assert message.metadata.message_type == INVITATION
            report = Report(accepts=mine.accepts(round, np.array(config["rates"])))
        return Message(write_report(change(message, report)), reply_to=message)

    return node


def flics(num_clients, k=4):
    return create("flics-private", num_clients, clients_per_round=k, group_shares="1/1", epsilon=4.0)


def test_private_groups_need_two_exchanges_and_send_the_scales():
    grid, roster = federation(*[member(i % 2, i) for i in range(12)])
    selector = flics(12)
    asked = ask(Poll(Roster()), grid, roster, selector, round=3)
    assert kinds(grid) == [GROUP] * 12 + [INVITATION] * 12
    said = [GroupMember(i % 2, 2, 4.0, i).report(3) for i in range(12)]
    assert asked.reports["group"].tolist() == said
    invitation = selector.invitation(3, np.arange(12), {"group": np.array(said, dtype=float)})
    yes = [
        GroupMember(i % 2, 2, 4.0, i).accepts(3, invitation.rates[invitation.versions[i]]) for i in range(12)
    ]
    assert asked.reports["accepts"].tolist() == yes
    assert asked.train_config == {"update-scales": invitation.scales.tolist(), "group-names": ["0", "1"]}
    selection = selector.select(3, candidates=asked.candidates, reports=asked.reports)
    assert selection.clients.tolist() == np.flatnonzero(yes).tolist()
    assert 0 < len(selection.clients) < 12


def test_a_client_that_reports_no_group_is_not_invited_and_no_group_is_remembered():
    wrong = [
        BAD["late"],
        failing,
        tells(group=2),
        tells(group=-1),
        tells(group="0"),
        tells(group=0, available=False),
    ]
    grid, roster = federation(*wrong, *[member(i % 2, i) for i in range(6)])
    asked = ask(Poll(Roster()), grid, roster, flics(12))
    assert np.flatnonzero(np.isnan(asked.reports["group"])).tolist() == list(range(6))
    assert np.flatnonzero(np.isnan(asked.reports["accepts"])).tolist() == list(range(6))
    assert [message.metadata.dst_node_id for message in grid.sent[12:]] == list(range(106, 112))
    assert all(roster.group_of(i) is None for i in range(12))
    assert not roster.is_available(5)


def test_no_answer_to_the_invitation_counts_as_no():
    def mute(message, report):
        return report if message.metadata.message_type == GROUP else Report()

    grid, roster = federation(*[member(i % 2, i, mute) for i in range(12)])
    selector = flics(12, k=11)
    asked = ask(Poll(Roster()), grid, roster, selector)
    assert np.isnan(asked.reports["accepts"]).all()
    assert selector.select(1, candidates=asked.candidates, reports=asked.reports).clients.size == 0


def test_an_app_without_private_groups_raises_a_missing_handler_error():
    grid, roster = federation(*[without_handlers] * 5)
    with pytest.raises(MissingHandlerError, match=r"query\.group and query\.invitation, and the clients'"):
        ask(Poll(Roster()), grid, roster, flics(5))


def ask_norms(poll, grid, roster):
    poll.roster = roster
    round = PollRound(grid, pow_d(1), 5, ARRAYS, train_config={"local-steps": 3}, train_deadline=7.0)
    return poll.ask_norms(round, np.arange(len(roster)))


@pytest.mark.parametrize("kind", sorted({*BAD} - {"bad size", "a list", "infinite", "nan"}))
def test_norms_are_asked_for_with_the_training_config(kind):
    grid, roster = federation(tells(update_norm=3.0), BAD[kind], raw(**{"update-norm": float("inf")}))
    poll = Poll(Roster(), deadline=90.0, seed=7)
    norms = ask_norms(poll, grid, roster)
    assert norms[0] == 3.0
    assert np.isnan(norms[1:]).all()
    assert kinds(grid) == [NORM] * 3
    configs = [message.content.config_records["config"] for message in grid.sent]
    assert all(config["local-steps"] == 3 and config["server-round"] == 5 for config in configs)
    assert len({config["seed"] for config in configs}) == 3
    assert [message.content.array_records["arrays"] for message in grid.sent] == [ARRAYS] * 3
    assert {message.metadata.ttl for message in grid.sent} == {307}  # its own deadline


def test_an_app_without_the_handler_for_norms_ends_the_run():
    grid, roster = federation(*[without_handlers] * 4)
    with pytest.raises(MissingHandlerError, match=r"ask_norms = True needs the handler query\.norm"):
        ask_norms(Poll(Roster()), grid, roster)
    some, roster = federation(*[without_handlers] * 3, tells(update_norm=1.0))
    assert ask_norms(Poll(Roster()), some, roster).tolist()[3] == 1.0
