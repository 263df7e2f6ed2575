"""The strategies by name: their examples, and a few rounds of each."""

import doctest
from inspect import signature

import numpy as np
import pytest

import strategies.presets
from strategies import SelectionStrategy
from strategies.clients.reports import LOSS, STATUS
from strategies.options import Faults, Overrides, Polling
from strategies.presets import VARIANTS, AdaptiveOSMD, Delta, Flics, Forecast, Options, PowerOfChoice
from strategies.selectors import selector_type

from ..support.federations import config_of, model, play, reply, weights
from ..support.toy_grid import ToyGrid


def client(number, group=None, energy=None):
    """A client whose loss and step are its number."""

    def node(message):
        kind = message.metadata.message_type
        if kind == STATUS:
            return reply(message, client_id=f"c{number}", num_examples=10, group=group, energy=energy)
        if kind == LOSS:
            return reply(message, loss=number)
        variance = number if config_of(message).get("report-gradient-variance") else None
        report = {"num_steps": 5, "train_loss": number, "gradient_variance": variance}
        return reply(message, weights(message) + np.float32(number), num_examples=10, **report)

    return node


def run(kind, rounds=3, nodes=6, **settings):
    grid = ToyGrid({n: client(n, settings.pop(f"group_{n}", None)) for n in range(1, nodes + 1)})
    return play(
        grid, kind, rounds, min_available_clients=nodes, faults=Faults(guard=False), **settings
    ).records


def test_the_examples_run():
    result = doctest.testmod(strategies.presets)
    assert result.failed == 0
    assert result.attempted >= 10


@pytest.mark.parametrize(
    ("kind", "selectors"),
    [
        (Forecast, ("forecast",)),
        (AdaptiveOSMD, ("adaptive-osmd",)),
        (Delta, ("prac-delta",)),
        (PowerOfChoice, VARIANTS),
        (Flics, ("flics", "flics-private")),
    ],
)
def test_every_setting_of_the_selector_is_a_parameter_with_its_default(kind, selectors):
    parameters = signature(kind).parameters
    assert set(Options.__annotations__) == set(signature(SelectionStrategy).parameters) - {
        *("selector", "unknown", "clients_per_round", "selector_settings")
    }
    for selector in selectors:
        for name, setting in selector_type(selector).allowed_settings().items():
            if name in Options.__annotations__:  # Delta's local_learning_rate
                continue
            assert parameters[name].default in (setting.default, None), name


def test_flics_takes_groups_by_name_in_all_settings():
    strategy = Flics(
        2,
        groups={"a": "night"},
        group_shares={"day": 2, "night": 1},
        min_shares={"night": 0.25},
        energy_budgets={"night": 3.0, "day": 5.0},
        overrides=Overrides(settings={"energies": {"a": 2.0}}),
    )
    assert strategy.overrides.settings == {"energies": {"a": 2.0}, "groups": {"a": "night"}}
    assert strategy.selector_settings == {
        "group_shares": {"day": 2, "night": 1},
        "min_shares": {"night": 0.25},
        "energy_budgets": {"night": 3.0, "day": 5.0},
    }
    assert Flics(2, energy_budgets=6.0).selector_settings == {"energy_budgets": 6.0}


def test_delta_takes_the_constants_of_the_paper():
    strategy = Delta(2, smoothness=2.0, global_learning_rate=1.0, local_learning_rate=0.1)
    assert strategy.selector_settings["local_learning_rate"] == strategy.local_learning_rate == 0.1


@pytest.mark.parametrize("kind", [AdaptiveOSMD, Forecast])
def test_the_unbiased_ones_find_the_large_updates(kind):
    settings = {"learning_rate_multiplier": 1000} if kind is AdaptiveOSMD else {}
    records = run(kind, rounds=40, clients_per_round=2, **settings)
    assert len(records) == 40
    drawn = np.concatenate([np.repeat(r.selection.clients, r.selection.counts) for r in records[20:]])
    assert (drawn >= 3).sum() > 1.5 * (drawn < 3).sum()


def test_delta_asks_for_variances_and_learns_from_them():
    records = run(Delta, clients_per_round=3, local_steps=5, design="systematic")
    for record in records:
        assert record.selection.clients.size == 3
        assert record.feedback.gradient_variances.tolist() == (record.selection.clients + 1).tolist()
        assert np.isfinite(record.feedback.diversities).all()
    assert not np.allclose(records[0].selection.probabilities, records[-1].selection.probabilities)


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d", "adapow-d"])
def test_power_of_choice_takes_the_largest_losses(variant):
    records = run(PowerOfChoice, rounds=4, clients_per_round=2, variant=variant, num_candidates=6)
    # adapow-d has shrunk to d = K at half of the rounds.
    for record in records[:1] if variant == "adapow-d" else records:
        assert sorted(record.selection.clients) == [4, 5]


def test_rpow_d_polls_no_client():
    records = run(PowerOfChoice, rounds=12, clients_per_round=2, variant="rpow-d", num_candidates=6)
    assert sorted(records[-1].selection.clients) == [4, 5]


def test_flics_takes_groups_from_the_operator_and_else_from_the_clients():
    reported = {f"group_{n}": "night" if n <= 4 else "day" for n in range(1, 7)}
    records = run(Flics, rounds=30, clients_per_round=2, group_shares={"day": 1, "night": 1}, **reported)
    took_part = np.concatenate([record.selection.clients for record in records])
    assert (took_part >= 4).mean() == pytest.approx(0.5, abs=0.15)  # two of the six, half of the weight
    overrides = {f"c{n}": "night" if n <= 1 else "day" for n in range(1, 7)}
    records = run(
        Flics,
        rounds=30,
        clients_per_round=2,
        group_shares={"day": 1, "night": 1},
        groups=overrides,
        **reported,
    )
    took_part = np.concatenate([record.selection.clients for record in records])
    assert (took_part == 0).mean() == pytest.approx(0.5, abs=0.15)


def test_flics_takes_energies_from_the_operator_and_else_from_the_clients():
    """A client may not claim so much that its group never takes part; what nobody knows is the median."""
    claimed = (2.0, 3.0, 1e11, None, 0.0, 5.0)
    nodes = {n: client(n, "ab"[n % 2], energy) for n, energy in enumerate(claimed, 1)}
    strategy = Flics(
        2,
        energy_budgets={"a": 4.0, "b": 4.0},
        overrides=Overrides(settings={"energies": {"c6": 7.0}}),
        min_available_clients=6,
        polling=Polling(ask_status=True, interval=1),
    )
    strategy.start(ToyGrid(nodes), model(0, 0), num_rounds=2)
    energies = strategy.selector.state_dict()["energies"]
    assert energies[[0, 1, 4, 5]].tolist() == [2.0, 3.0, 0.0, 7.0]
    assert energies[2] < 1000  # it is no claim, or one at its limit
    assert energies[3] == np.median(np.delete(energies, 3))


def test_flics_without_groups_takes_each_client_for_one():
    records = run(Flics, rounds=30, clients_per_round=2)
    took_part = np.bincount(np.concatenate([record.selection.clients for record in records]), minlength=6)
    assert took_part.min() >= 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PowerOfChoice(2, variant="pow"), "variant = 'pow': must be one of 'pow-d'"),
        (lambda: PowerOfChoice(2, batch_size=8), "batch_size = 8: only cpow-d has it, not pow-d"),
        (lambda: PowerOfChoice(2, num_candidates=1), "num_candidates"),
        (lambda: Delta(2, alpha_1=0, alpha_2=0), "must not both be 0"),
        (lambda: Flics(2, private=True), "group_shares = None: must be given with private = True"),
        (
            lambda: Flics(2, private=True, group_shares=[1], groups={}),
            r"groups = \{\}: must be None with private = True",
        ),
        (lambda: Flics(2, epsilon=1.0), r"epsilon = 1\.0: must be None with private = False"),
        (lambda: Flics(2, coin_epsilon=1.0), r"coin_epsilon = 1\.0: must be None with private = False"),
        (
            lambda: Flics(2, groups={"a": "west"}, group_shares={"day": 2, "night": 1}),
            r"overrides.settings\['groups'\]\['a'\] = 'west': its group is 'west': must be one of 'day'",
        ),
        (lambda: Flics(2, private=True, group_shares=[1], cost_budget=3), "cost_budget = 3: must be None"),
        (lambda: Delta(2, smoothness=1.0), "smoothness = .*must all be given, or none"),
        (lambda: AdaptiveOSMD(2, alpha=2), r"alpha = 2"),
    ],
)
def test_a_wrong_setting_is_refused_at_construction(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
