"""Wrong arguments of a newcomer: the error names what is expected, or what to use instead."""

import inspect

import pytest
from flwr.clientapp import ClientApp

from strategies import (
    AdaptiveOSMD,
    Delta,
    Flics,
    Forecast,
    Overrides,
    PersonalisedOSMD,
    Polling,
    PowerOfChoice,
    SelectionStrategy,
)

from .flower.test_foreign_apps import M, grid_of, play, quickstart

PRESETS = [AdaptiveOSMD, Delta, Flics, Forecast, PersonalisedOSMD, PowerOfChoice]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("fraction_train", r"AdaptiveOSMD has clients_per_round=\.\.\. \(a number, not a share\) instead"),
        ("min_train_nodes", r"faults=Faults\(quorum=\.\.\.\)"),
        ("min_available_nodes", r"min_available_clients=\.\.\. instead"),
        ("fraction_evaluate", r"server_strategy=FedAvg\(fraction_evaluate=\.\.\.\) instead"),
        ("client_sizes", r"overrides=Overrides\(sizes=\{\.\.\.\}\) instead"),
        ("quorum", r"faults=Faults\(quorum=\.\.\.\) instead"),
        ("clients_per_rounds", r"no such argument \(did you mean clients_per_round\?\)"),
        ("learning_rate", "no such argument"),
        ("alfa", r"no such argument \(did you mean alpha\?\)"),
    ],
)
def test_an_unknown_argument_gets_its_replacement(name, instead):
    with pytest.raises(TypeError, match=f"{name} = 3: .*{instead}"):
        AdaptiveOSMD(clients_per_round=2, **{name: 3})


def test_a_setting_of_the_selector_is_refused_with_the_argument_that_takes_it():
    with pytest.raises(TypeError, match=r"alpha = 0\.2: is a setting .* selector_settings=\{'alpha': 0\.2\}"):
        SelectionStrategy("osmd", alpha=0.2, clients_per_round=3)


@pytest.mark.parametrize("name", ["fraction_train", "client_per_round"])
def test_an_unknown_argument_is_named_before_the_missing_one(name):
    """A newcomer only replaces the name of the class: ``FedAvg(fraction_train=0.1)``."""
    with pytest.raises(TypeError, match=rf"{name} = 0\.1: Forecast has .*clients_per_round"):
        Forecast(**{name: 0.1})
    with pytest.raises(TypeError, match=r"missing 1 required .*clients_per_round"):
        Forecast()


WRONG = [object(), [1, 2], (1,), "abc", b"x", -3, float("nan"), {"a": object()}, {1: 2}]
COMMON = [
    "clients_per_round",
    "server_strategy",
    "seed",
    "num_rounds",
    "min_available_clients",
    "local_learning_rate",
    "budget",
    "deadlines",
    "polling",
    "faults",
    "overrides",
    "checkpoints",
    "variates",
    "masked_updates",
    "stop",
    "on_round",
    "reporters",
]


@pytest.mark.parametrize("make", PRESETS)
def test_wrong_kinds_are_refused_by_every_strategy(make):
    own = [name for name in inspect.signature(make).parameters if name != "options"]
    allowed = ("group_shares", "energy_budgets", "min_shares")  # take lists, and names as keys
    for name in {*COMMON, *own} - {*allowed}:
        for value in WRONG:
            with pytest.raises((TypeError, ValueError), match=name):
                make(**{"clients_per_round": 2, name: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Overrides(sizes=[1, 2]), r"overrides.sizes = \[1, 2\]: must be a mapping by identity"),
        (lambda: Overrides(sizes={1: 2}), "overrides.sizes holds the identity 1: must be text"),
        (lambda: Overrides(settings=[1]), r"overrides.settings = \[1\]: must be of the form"),
        (lambda: Overrides(settings={"groups": ["a"]}), r"settings\['groups'\] = \['a'\]: must be a mapping"),
        (lambda: Overrides(settings={"groups": {"a": 2.5}}), r"groups\['a'\] = 2.5: must be a name or an"),
        (lambda: Overrides(removed=3), "overrides.removed = 3: must be a path or a list of identities"),
        (lambda: Polling(loss_metric=3), "polling.loss_metric = 3: must be the name of a metric"),
        (lambda: Flics(2, groups=["a", "b"]), r"groups = \['a', 'b'\]: must be a mapping by identity, such"),
        (lambda: Flics(2, group_shares=True), "group_shares = True: must be a number for each group"),
        (lambda: Forecast(2, deadlines=60), r"deadlines = 60: must be a Deadlines, such as"),
        (lambda: SelectionStrategy(3, clients_per_round=2), "selector = 3: must be the name of a selector"),
        (lambda: Forecast(2, reporters=["tensorboard"]), "must be a Reporter"),
    ],
)
def test_a_wrong_kind_is_refused_with_what_is_expected(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_declared_clients_that_do_not_come_are_named(caplog):
    sizes = {"hospital-1": 50, "hospital-2": 60, "node-103": 70}
    strategy = AdaptiveOSMD(2, min_available_clients=M, overrides=Overrides(sizes=sizes))
    play(grid_of(quickstart(ClientApp())), strategy, 2)
    (line,) = {line for line in caplog.messages if "declared" in line}
    assert line == (
        "2 declared clients are not here: hospital-1, hospital-2. What is declared for them has no effect "
        "until they come. The ids here look like node-100, node-101 and 4 more"
    )
