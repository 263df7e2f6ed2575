"""Updates that the server sees only as a sum: selection learns from norms that clients report."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedMedian

from strategies import SelectionStrategy
from strategies.clients.reports import STATUS
from strategies.options import Faults
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.selectors import create

from ...support.federations import config_of, model, reply, weights
from ...support.toy_grid import ToyGrid
from ..test_strategy import run

SIZES = {1: 10, 2: 20, 3: 70, 4: 40, 5: 5}


class Masks:
    """Pairwise masks of the clients that train in a round: one adds what another subtracts."""

    def __init__(self):
        self.training = []

    def of(self, client, number):
        mask = np.zeros(2)
        for other in self.training:
            pair = np.random.default_rng([number, *sorted((client, other))]).normal(0, 100, 2)
            mask += np.sign(client - other) * pair
        return mask.astype(np.float32)


def client(number, step, masks, silent=False):
    def node(message):
        report = {"num_examples": SIZES[number]}
        if message.metadata.message_type == STATUS:
            return reply(message, client_id=f"c{number}", **report)
        if silent:
            return None
        config, update = config_of(message), np.full(2, step, np.float32)
        if masks is not None:
            assert config["report-update-norm"]
            report["update_norm"] = float(np.linalg.norm(update))
            update = np.float32(config["update-weight"]) * update
            update += masks.of(number, int(config["server-round"]))
        return reply(message, weights(message) + update, **report)

    return node


class MaskedGrid(ToyGrid):
    """Tells clients which others train, as a protocol for secure aggregation does."""

    def __init__(self, nodes, masks):
        super().__init__(nodes)
        self.masks = masks

    def push_messages(self, messages):
        messages = list(messages)
        self.masks.training = [m.metadata.dst_node_id for m in messages if m.metadata.message_type == "train"]
        return super().push_messages(messages)


@pytest.mark.parametrize(
    ("selector", "server_strategy"),
    [("adaptive-osmd", None), ("forecast", None), ("rpow-d", None), ("md", FedAdam(fraction_evaluate=0.0))],
)
def test_masks_change_nothing_but_rounding(selector, server_strategy):
    steps = {1: 1.0, 2: -0.5, 3: 0.2, 4: 3.0, 5: 0.7}
    options = {
        "selector": selector,
        # What the default design of `forecast` remembers is hidden by masks.
        "selector_settings": {"design": "own"} if selector == "forecast" else {},
        "rounds": 12,
        "clients_per_round": 3,
        "min_available_clients": 5,
        "server_strategy": server_strategy,
        "faults": Faults(guard=False),
    }
    plain, records, _ = run(ToyGrid({n: client(n, step, None) for n, step in steps.items()}), **options)
    masks = Masks()
    grid = MaskedGrid({n: client(n, step, masks) for n, step in steps.items()}, masks)
    masked, hidden, _ = run(grid, masked_updates=True, **options)
    for ours, theirs in zip(hidden, records, strict=True):
        np.testing.assert_array_equal(ours.selection.clients, theirs.selection.clients)
        np.testing.assert_allclose(ours.feedback.update_norms, theirs.feedback.update_norms, rtol=1e-5)
        np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-5)
    np.testing.assert_allclose(masked, plain, rtol=0, atol=2e-3)  # masks of 100 in float32, twelve times


def test_a_round_with_a_missing_reply_is_skipped():
    masks = Masks()
    grid = MaskedGrid({n: client(n, 1.0, masks, silent=n == 2) for n in (1, 2, 3)}, masks)
    w, records, _ = run(grid, rounds=2, masked_updates=True, faults=Faults(silence=False))
    assert not w.any()
    for record in records:
        assert record.skipped == "2 usable of 3 replies: the masks cancel only if all replies are usable"
        assert not record.weights.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variates": "fedvarp"}, "variates = 'fedvarp' with masked_updates = True: must be left out"),
        ({"faults": Faults(over_selection=1.5)}, r"faults.over_selection = 1\.5 with masked_updates = True"),
        ({"faults": Faults(correction="rates")}, "faults.correction = 'rates' with masked_updates = True"),
        ({"faults": Faults(guard="strict")}, "faults.guard = 'strict' with masked_updates = True: must be"),
        ({"selector": "prac-delta"}, "selector = 'prac-delta' with masked_updates = True: must not use div"),
        ({"selector": "delta"}, "selector = 'delta' with masked_updates = True: must not use div"),
        ({"server_strategy": FedMedian()}, r"FedMedian\(\) with masked_updates = True: must step"),
    ],
)
def test_what_needs_single_updates_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SelectionStrategy(**{"selector": "uniform", **options}, clients_per_round=5, masked_updates=True)


def test_norms_are_clipped_and_updates_are_not():
    """A clipped update would no longer fit its mask."""
    steps = dict.fromkeys(SIZES, 1.0) | {4: 1000.0}
    masks = Masks()
    grid = MaskedGrid({n: client(n, step, masks) for n, step in steps.items()}, masks)
    w, records, _ = run(grid, rounds=1, selector="full", masked_updates=True, start=model(0, 0))
    expected = sum(SIZES[n] * step for n, step in steps.items()) / sum(SIZES.values())
    np.testing.assert_allclose(w, expected, rtol=1e-4)
    assert records[0].feedback.update_norms.max() < 100
    assert 3 in records[0].clipped


def test_the_record_has_the_weights_that_clients_were_sent():
    """FLICS would use sizes that came with the replies, but clients have multiplied their updates already."""
    selector = create("flics", 3, clients_per_round=3, groups=[0, 1, 1], client_sizes=[10.0, 10, 10])
    rounds = RoundLogic(selector, Faults(guard=False), updates="masked")
    chosen = rounds.choose(rounds.open(1))
    selector.set_sizes([0], [70.0])
    told = chosen.selection.weights
    replies = [Reply({"w": np.array([weight * 3 * (i + 1)])}) for i, weight in enumerate(told)]
    outcome = rounds.finish(chosen, {"w": np.zeros(1)}, replies)
    assert outcome.record.weights.tolist() == told.tolist()
    assert outcome.arrays["w"] == pytest.approx(told @ [1, 2, 3])
