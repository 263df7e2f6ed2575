"""Rounds over the ClientApp and the strategy, with every kind of message."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from client.app import app
from strategies.clients.reports import GROUP, INVITATION, STATUS, Report
from strategies.flower.messages import write_report
from strategies.options import Faults, Polling
from strategies.presets import Delta, Flics, PowerOfChoice
from strategies.selectors.invitation import GroupMember

from ..server.test_apps import DEFAULTS
from ..support.client_app import DIGITS, TRAIN, record
from ..support.toy_grid import ToyGrid, node_of


def federation(strategy, nodes=6, **node):
    """Train over client.app for 6 rounds; of lists in the node's config each node has its own element."""
    grid = ToyGrid(
        {
            100 + m: node_of(
                app,
                {
                    "partition-id": m,
                    "num-partitions": nodes,
                    **{
                        name.replace("_", "-"): value[m] if isinstance(value, list) else value
                        for name, value in node.items()
                    },
                },
                DEFAULTS,
            )
            for m in range(nodes)
        }
    )
    config = ConfigRecord({key: value for key, value in TRAIN.items() if key not in ("seed", "server-round")})
    result = strategy.start(grid, record(DIGITS.initial_arrays(0)), num_rounds=6, train_config=config)
    return {name: array.numpy() for name, array in result.arrays.items()}


# Kinds whose messages no other test sends to the ClientApp.
STRATEGIES = {
    "pow-d, evaluated": (
        lambda **options: PowerOfChoice(3, **{**options, "polling": Polling(poll_with="evaluate")}),
        {},
    ),
    "rpow-d": (lambda **options: PowerOfChoice(3, variant="rpow-d", **options), {}),
    "delta": (lambda **options: Delta(3, local_steps=4, **options), {}),
    "flics": (lambda **options: Flics(3, **options), {"group": ["a", "a", "a", "b", "b", "b"]}),
    "flics, private": (
        lambda **options: Flics(3, private=True, group_shares=[1, 1], epsilon=8.0, **options),
        {"private_group": [0, 0, 0, 1, 1, 1]},
    ),
}


@pytest.mark.parametrize("kind", STRATEGIES)
def test_every_kind_of_round_trains(kind):
    make, node = STRATEGIES[kind]
    records = []
    strategy = make(
        min_available_clients=6,
        polling=Polling(ask_status=True, interval=0.01),
        local_learning_rate=0.5,
        on_round=records.append,
    )
    model = federation(strategy, **node)
    assert len(records) == 6
    assert all(
        not record.failures and not record.skipped for record in records if record.selection.clients.size
    )
    assert sum(record.selection.clients.size for record in records) > 6
    before = DIGITS.evaluate(DIGITS.initial_arrays(0), DIGITS.test_data()).loss
    assert DIGITS.evaluate(model, DIGITS.test_data()).loss < 0.9 * before
    if kind == "delta":
        assert all(np.isfinite(record.feedback.gradient_variances).all() for record in records)


def test_private_flics_makes_the_step_of_its_shares_over_time():
    """Three quarters of the weight are the first ten clients', a quarter that of the ten others."""
    took_part = []

    def node(number):
        member = GroupMember(int(number > 9), 2, 8.0, secret=number)

        def answer(message):
            kind, config = message.metadata.message_type, message.content.config_records.get("config")
            if kind == STATUS or config is None:
                return Message(write_report(Report(client_id=f"c{number}", num_examples=1)), reply_to=message)
            round = int(config["server-round"])
            if kind == GROUP:
                return Message(write_report(Report(group=member.report(round))), reply_to=message)
            if kind == INVITATION:
                yes = member.accepts(round, np.array(config["rates"]))
                return Message(write_report(Report(accepts=yes)), reply_to=message)
            w = message.content.array_records["arrays"]["w"].numpy()
            step = member.scale(np.array(config["update-scales"]))
            w[member.group] += np.float32(step)
            content = write_report(Report(num_examples=1))
            content["arrays"] = ArrayRecord({"w": Array(w)})
            return Message(content, reply_to=message)

        return answer

    strategy = Flics(
        4,
        private=True,
        group_shares=[3, 1],
        epsilon=8.0,
        faults=Faults(guard=False),
        min_available_clients=20,
        on_round=lambda record: took_part.append(record.selection.clients.size),
    )
    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    result = strategy.start(ToyGrid({n: node(n) for n in range(20)}), start, num_rounds=100)
    # Each client moves its group's coordinate by 1: the mean step is the groups' shares.
    assert result.arrays["w"].numpy() / 100 == pytest.approx([0.75, 0.25], abs=0.06)
    assert np.mean(took_part) == pytest.approx(4, abs=0.7)
