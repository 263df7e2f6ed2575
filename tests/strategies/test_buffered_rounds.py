"""Buffered rounds of `SelectionStrategy` on the in-process grid, in simulated time."""

import re
from math import inf

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvgM, FedMedian

from simulation.grid import InProcessGrid
from strategies import Buffered, Forecast, Reporter, SelectionStrategy
from strategies.checkpoint import CheckpointError
from strategies.options import Checkpoints, Deadlines, Faults, Overrides, Polling
from strategies.reporters.scalars import scalars
from strategies.selectors import available, selector_type

from ..support.federations import model, reply, weights
from .test_resume import assert_same, trainer

CLIENTS = 8
SLOW = {6: 10.0, 7: 10.0}  # client -> seconds; the others take about one
MODE = Buffered(concurrency=4, size=2)
PATIENT = Deadlines(shortest=30)


def seconds_of(client):
    return SLOW.get(client, 1.0 + 0.01 * client)


class SlowGrid(InProcessGrid):
    """Clients that need `seconds_of` to train. Some of them may be other functions (`others`)."""

    def __init__(self, others=None, seconds=seconds_of):
        super().__init__(latency=self._latency)
        self.seconds = seconds
        self.trained = []  # (client, time) of each TRAIN message
        for client in range(CLIENTS):
            self.add_node(handler=(others or {}).get(client, trainer(client)))

    def _latency(self, message):
        if message.metadata.message_type != "train":
            return 0.0
        client = self.client_of(message.metadata.dst_node_id)
        self.trained.append((client, self.clock.monotonic()))
        return self.seconds(client)


def strategy(selector="md", **options):
    records = []
    made = SelectionStrategy(
        selector,
        **{
            "clients_per_round": 2,
            "min_available_clients": CLIENTS,
            "num_rounds": 12,
            "polling": Polling(ask_status=True, interval=1),
            "seed": 5,
            "mode": MODE,
            "on_round": records.append,
            **options,
        },
    )
    return made, records


def run(grid, rounds=12, selector="md", **options):
    made, records = strategy(selector, **options)
    return made.start(grid, model(1, 2), num_rounds=rounds), records


def used(records):
    return [int(c) for each in records for c in each.selection.clients[each.feedback.responded]]


def test_rounds_do_not_wait_for_slow_clients_and_use_their_updates_later():
    grid = SlowGrid()
    _, records = run(grid, 30, deadlines=PATIENT)
    assert [record.round for record in records] == list(range(1, 31))
    assert records[0].feedback.responded.sum() == MODE.concurrency
    assert all(2 <= record.feedback.responded.sum() <= 4 for record in records[1:])
    assert max(record.seconds for record in records) < 8
    slow = [
        int(tau)
        for each in records
        for client, tau in zip(each.selection.clients, each.staleness, strict=True)
        if client in SLOW
    ]
    assert slow
    assert min(slow) >= 3
    # Four clients are busy all the time: at each time, four of the asked clients have not replied.
    end = grid.clock.monotonic()
    for now in np.arange(0.5, end - 10, 0.7):
        busy = [client for client, at in grid.trained if at <= now < at + seconds_of(client)]
        assert len(busy) in (3, 4)  # 3 while the server notices a reply
        assert len(set(busy)) == len(busy)


def test_the_step_is_the_sum_of_updates_each_against_the_model_it_was_trained_from():
    """A client whose update is always (1, 0): the model moves by the sum of the weights."""

    def mover(client):
        def node(message):
            if message.metadata.message_type != "train":
                return trainer(client)(message)
            return reply(message, weights(message) + np.array([1, 0], np.float32), num_examples=10)

        return node

    others = {client: mover(client) for client in range(CLIENTS)}
    result, records = run(SlowGrid(others), 20, deadlines=PATIENT)
    moved = sum(record.weights.sum() for record in records)
    assert result.arrays["w"].numpy() == pytest.approx([1 + moved, 2], rel=1e-5)
    assert max(int(record.staleness.max()) for record in records) >= 3
    norms = np.concatenate([record.feedback.update_norms for record in records])
    assert norms == pytest.approx(np.ones(norms.size), rel=1e-4)


@pytest.mark.parametrize(
    "server",
    [
        FedAvgM(fraction_evaluate=0.0, server_momentum=0.5),
        FedAdam(fraction_evaluate=0.0, eta=0.05),
    ],
    ids=lambda server: type(server).__name__,
)
def test_strategies_that_step_from_the_average_take_the_step(server):
    result, records = run(SlowGrid(), 8, server_strategy=server)
    assert not any(record.skipped for record in records)
    assert not np.array_equal(result.arrays["w"].numpy(), [1, 2])


def test_equal_arrivals_give_equal_runs_and_another_seed_another_run():
    (one, first), (two, second) = run(SlowGrid(), selector="forecast"), run(SlowGrid(), selector="forecast")
    for ours, theirs in zip(first, second, strict=True):
        assert_same(ours, theirs)
    assert np.array_equal(one.arrays["w"].numpy(), two.arrays["w"].numpy())
    assert used(run(SlowGrid(), selector="forecast", seed=6)[1]) != used(first)


def silent(client):
    return lambda message: None if message.metadata.message_type == "train" else trainer(client)(message)


def test_a_client_that_never_answers_frees_its_place_after_the_deadline():
    grid = SlowGrid({2: silent(2)})
    _, records = run(grid, 40, deadlines=Deadlines(round=6))
    failures = [why for record in records for client, why in record.failures.items() if client == 2]
    assert "no reply by the deadline" in failures
    assert sum(record.feedback.responded.sum() for record in records) >= 79
    assert grid.clock.monotonic() < 120


def test_a_client_without_an_answer_is_quarantined_and_a_late_answer_is_used():
    late = {6: 30.0}  # the first wait is at most a fifth of the deadline
    grid = SlowGrid(seconds=lambda client: late.get(client, 1.0 + 0.01 * client))
    _, records = run(grid, 60, deadlines=Deadlines(round=100, shortest=3))
    assert any(6 in record.silent for record in records)
    assert 6 in used(records)


def nonsense(message):
    reply = trainer(1)(message)
    if message.metadata.message_type == "train":
        reply.content["arrays"] = model(float("nan"), 1)
    return reply


def broken(client):
    def node(message):
        if message.metadata.message_type == "train":
            raise RuntimeError("no data")
        return trainer(client)(message)

    return node


def test_garbage_and_errors_are_no_arrivals_and_lead_to_quarantine():
    _, records = run(SlowGrid({0: broken(0), 1: nonsense}), 40)
    reasons = {client: why for record in records for client, why in record.failures.items()}
    assert "NaN" in reasons[1]
    assert "no data" in reasons[0]
    assert not {0, 1} & set(used(records))
    assert sum(record.feedback.responded.sum() for record in records) >= 79
    assert any(1 in record.quarantined for record in records)
    for record in records:
        assert record.weights[~record.feedback.responded].sum() == 0


def test_all_clients_fail_and_the_run_ends():
    result, records = run(SlowGrid({client: broken(client) for client in range(CLIENTS)}), 5)
    assert [record.round for record in records] == [1, 2, 3, 4, 5]
    assert all("fewer than the quorum" in record.skipped for record in records)
    assert result.arrays["w"].numpy().tolist() == [1, 2]


def test_all_clients_are_silent_and_the_run_ends():
    _, records = run(
        SlowGrid({client: silent(client) for client in range(CLIENTS)}),
        5,
        deadlines=Deadlines(round=6, absence=60),
    )
    assert all(record.skipped for record in records)


def test_stale_updates_are_rejected_counted_and_recorded():
    _, records = run(SlowGrid(), 40, mode=Buffered(concurrency=4, size=2, max_staleness=2))
    stale = [record for record in records if record.num_stale]
    assert stale
    for record in records:
        assert record.num_stale == sum("staleness" in why for why in record.failures.values())
        assert record.staleness[record.feedback.responded].max(initial=0) <= 2
        assert record.staleness.size == record.selection.clients.size
    assert not set(SLOW) & set(used(records))
    assert "must be at most 2 (max_staleness)" in next(iter(stale[0].failures.values()))


@pytest.mark.slow
def test_clients_that_never_answer_take_at_most_twice_as_many_models_as_there_are_places():
    """Client 2 answers so late that its model is no longer kept: silent clients have newer ones."""
    kept = []
    records = []

    def record(each):
        records.append(each)
        kept.append(len(made._parts.buffered.models))

    mode = Buffered(concurrency=1, size=1)
    made, _ = strategy(mode=mode, on_round=record, faults=Faults())
    seconds = {0: 1.0, 1: 1.0, 2: 200.0}
    made.start(SlowGrid(seconds=lambda client: seconds.get(client, inf)), model(1, 2), num_rounds=40)
    assert max(kept) == 2
    (late,) = {each.failures[2] for each in records if 2 in each.failures}
    assert late.endswith("the model that it trained from is no longer kept")
    assert sum(each.num_stale for each in records) == 1


def test_a_client_whose_node_leaves_loses_its_place_and_comes_back():
    grid = SlowGrid()
    grid.offline_after = 2.0
    left = []

    def leave(record):
        if record.round == 3:
            busy = {client for client, at in grid.trained if grid.clock.monotonic() - at < 0.9}
            left.append(min(busy))
            grid.remove_node(grid._node_of[left[0]])
        if record.round == 20:
            grid.add_node(handler=trainer(left[0]))

    records = []
    made, _ = strategy(on_round=lambda record: (records.append(record), leave(record))[0])
    made.start(grid, model(1, 2), num_rounds=60)
    reasons = [each.failures[left[0]] for each in records if left[0] in each.failures]
    assert any("not online" in why for why in reasons)
    assert left[0] in used(records[20:])
    assert all(record.feedback.responded.sum() >= 2 for record in records)


def test_a_removed_client_is_forgotten_while_it_trains(tmp_path):
    file = tmp_path / "removed.json"
    file.write_text("[]")

    def remove(record):
        if record.round == 3:
            file.write_text('["c6", "c7"]')

    made, _ = strategy(on_round=remove, overrides=Overrides(removed=str(file)), deadlines=PATIENT)
    made.start(SlowGrid(), model(1, 2), num_rounds=25)
    buffer = made._parts.clients.logic.buffer
    assert not set(SLOW) & set(buffer.in_flight)


def test_messages_that_cannot_be_sent_end_no_run():
    class Busy(SlowGrid):
        def push_messages(self, messages):
            messages = list(messages)
            training = any(message.metadata.message_type == "train" for message in messages)
            if training and 2 < self.clock.monotonic() < 4.2:
                raise RuntimeError("the SuperLink is busy")
            return super().push_messages(messages)

    _, records = run(Busy(), 20)
    assert len(records) == 20
    assert any("the message could not be sent" in each.failures.values() for each in records)


def test_fewer_clients_than_places():
    _, records = run(SlowGrid(), 10, mode=Buffered(concurrency=20, size=8), deadlines=PATIENT)
    assert all(record.feedback.responded.sum() == CLIENTS for record in records)
    assert [record.weights.sum() for record in records] == pytest.approx([1.0] * 10)


class Scripted(SlowGrid):
    """Answers one message at each look: every third time the oldest in flight, else the one after it.

    With a ``script``, the clients answer in the order of the script.
    """

    def __init__(self, script=None):
        super().__init__(seconds=lambda _: 0.0)
        self.script = script
        self.answered = []  # the clients that have answered
        self._open = {}  # message -> client, in the order of sending

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for message_id, message in zip(ids, messages, strict=True):
            if message.metadata.message_type == "train":
                self._open[message_id] = self.client_of(message.metadata.dst_node_id)
        return ids

    def pull_messages(self, message_ids):
        wanted = list(message_ids)
        training = [each for each in self._open if each in wanted]
        if training:
            now = len(self.answered)
            answering = training[0 if now % 3 == 0 or len(training) == 1 else 1]
            if self.script is not None:
                (answering,) = [each for each in training if self._open[each] == self.script[now]]
            self.answered.append(self._open.pop(answering))
            wanted = [answering]
        return super().pull_messages(wanted)


@pytest.mark.parametrize(
    ("selector", "server"),
    [("md", None), ("oort", None), ("forecast", FedAdam(fraction_evaluate=0.0))],
    ids=["md", "oort", "forecast-FedAdam"],
)
def test_a_resumed_run_equals_the_whole_run_given_the_same_arrivals(selector, server, tmp_path):
    """Clients in flight at the checkpoint are asked again, with the model that they had."""
    options = {"selector": selector, "server_strategy": server, "num_rounds": 9}
    grid, before = Scripted(), Scripted()
    whole, records = run(grid, 9, **options)
    _, first = run(before, 4, checkpoints=Checkpoints(tmp_path), **options)
    assert grid.answered[: len(before.answered)] == before.answered
    after = Scripted(grid.answered[len(before.answered) :])
    resumed, second = run(after, 9, checkpoints=Checkpoints(tmp_path, resume=True), **options)
    assert max(int(record.staleness.max()) for record in second) > 1
    for ours, theirs in zip([*first, *second], records, strict=True):
        assert_same(ours, theirs)
    assert np.array_equal(resumed.arrays["w"].numpy(), whole.arrays["w"].numpy())


def test_clients_whose_models_are_too_old_are_not_asked_again(tmp_path):
    mode = Buffered(concurrency=6, size=1, max_staleness=1)
    run(Scripted(), 6, checkpoints=Checkpoints(tmp_path), mode=mode)
    grid = Scripted()
    _, records = run(grid, 8, checkpoints=Checkpoints(tmp_path, resume=True), mode=mode)
    stale = {client for client, why in records[0].failures.items() if "staleness" in why}
    assert stale
    again = 6 - records[0].num_stale
    assert not stale & {client for client, _ in grid.trained[:again]}


@pytest.mark.parametrize(
    ("selector", "options", "message"),
    [
        ("pow-d", {}, "selector = 'pow-d' with mode = Buffered(...): must not poll candidates"),
        ("optimal", {}, "use forecast, or rpow-d instead of pow-d"),
        ("flics-private", {"selector_settings": {"group_shares": "1/1"}}, "must not poll candidates"),
        ("flics", {}, "must not compute weights from the clients that take part in each whole round"),
        ("personalised-osmd", {}, "must not scale parts of updates"),
        ("rpow-d", {"selector_settings": {"averaging": "sizes"}}, "averaging = 'sizes' with selector"),
        ("md", {"masked_updates": True}, "masked_updates = True with mode = Buffered(...): the masks cancel"),
        ("md", {"variates": "fedvarp"}, "variates = 'fedvarp' with mode = Buffered(...): the variates"),
        ("md", {"budget": 5}, "budget = 5 with mode = Buffered(...): must be left out, since concurrency"),
        ("md", {"faults": Faults(over_selection=1.5)}, "faults.over_selection = 1.5 with mode ="),
        ("md", {"faults": Faults(correction="rates")}, "faults.correction = 'rates' with mode ="),
        ("md", {"mode": Buffered(concurrency=1)}, "mode.concurrency = 1: must be at least 2, the number"),
        (
            "md",
            {"mode": Buffered(concurrency=4, size=1), "faults": Faults(quorum=2)},
            "faults.quorum = 2: must be at most 1, the number of arrivals in a round",
        ),
        (
            "md",
            {"server_strategy": FedMedian()},
            "server_strategy = FedMedian() with mode = Buffered(...): must not need single replies of",
        ),
    ],
)
def test_what_needs_whole_rounds_is_refused_at_construction(selector, options, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        strategy(selector, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "mode.concurrency = 0: must be between 1 and 1e+06"),
        ({"concurrency": 2.5}, "mode.concurrency = 2.5: must be an integer"),
        ({"size": 0}, "mode.size = 0: must be between 1 and 1e+06"),
        ({"max_staleness": -1}, "mode.max_staleness = -1: must be between 0 and 1e+06"),
        ({"staleness_power": float("nan")}, "mode.staleness_power = nan: must be finite"),
        ({"staleness_power": -0.5}, "mode.staleness_power = -0.5: must be"),
        ({"count_busy": 1}, "mode.count_busy = 1: must be True or False"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Buffered(**{"concurrency": 4, **options})


def test_a_mode_of_another_kind_and_a_misplaced_setting_are_refused():
    with pytest.raises(TypeError, match=r"mode = 'buffered': must be a Buffered, such as Buffered\(concurr"):
        strategy(mode="buffered")
    with pytest.raises(TypeError, match=r"concurrency = 4: .* has mode=Buffered\(concurrency=...\) instead"):
        strategy(concurrency=4)
    made, _ = strategy()
    with pytest.raises(RuntimeError, match="its rounds are run by start"):
        made.configure_train(1, model(0, 0), ConfigRecord(), SlowGrid())


def test_a_resume_with_another_mode_is_refused(tmp_path):
    run(SlowGrid(), 2, checkpoints=Checkpoints(tmp_path))
    with pytest.raises(CheckpointError, match="mode"):
        run(SlowGrid(), 4, checkpoints=Checkpoints(tmp_path, resume=True), mode=Buffered(concurrency=5))


@pytest.mark.parametrize("selector", available())
def test_every_selector_runs_or_is_refused_in_one_line(selector):
    kind = selector_type(selector)
    options = {}
    if selector == "lipschitz-is":
        options["overrides"] = Overrides(settings={"lipschitz": {"c1": 2.0}})
    refused = kind.polls_for or kind.part_names or not kind.fixed_size
    if refused:
        if selector == "flics-private":
            options["selector_settings"] = {"group_shares": "1/1"}
        with pytest.raises(ValueError, match="with mode = Buffered"):
            strategy(selector, **options)
        return
    _, records = run(SlowGrid(), 8, selector=selector, deadlines=PATIENT, **options)
    assert not any(record.skipped for record in records)
    assert all(record.feedback.responded.sum() >= 2 for record in records)


def test_a_preset_takes_the_mode_and_a_reporter_is_told_the_staleness():
    reports = []

    class Listener(Reporter):
        def round(self, report):
            reports.append(report)

    made = Forecast(
        2, min_available_clients=CLIENTS, mode=MODE, seed=5, polling=Polling(ask_status=True, interval=1),
        reporters=[Listener()], deadlines=PATIENT,
    )  # fmt: skip
    made.start(SlowGrid(), model(1, 2), num_rounds=20)
    numbers = [scalars(report) for report in reports if report.record is not None]
    assert max(each.get("round/staleness", 0) for each in numbers) >= 1
    assert all(each["round/stale"] == 0 for each in numbers)
