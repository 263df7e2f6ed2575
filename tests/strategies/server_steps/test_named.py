"""Flower's strategies by name."""

import doctest
from inspect import signature

import pytest
from flwr.serverapp import strategy as flower

from strategies.selectors import selector_type
from strategies.server_steps import named
from strategies.server_steps.compatibility import refusal, view_of
from strategies.server_steps.named import SETTINGS, create_server_strategy

WITHOUT_EFFECT_OR_OUR_OWN = {
    "eta_l",
    "train_loss_key",
    "selection_rule",
    "strategy",
    "num_sampled_clients",
    "max_epsilon",
    "accountant",
    "privacy_config",
}


def test_the_examples_run():
    assert doctest.testmod(named).failed == 0


@pytest.mark.parametrize("name", SETTINGS)
def test_a_name_gives_the_strategy_with_all_its_settings(name):
    made = create_server_strategy(name, learning_rate=0.1, proximal_mu=0.2)
    assert type(made).__name__ == name
    view_of(made)
    own = signature(getattr(flower, name).__init__).parameters.keys()
    own -= signature(flower.FedAvg.__init__).parameters.keys() | WITHOUT_EFFECT_OR_OUR_OWN
    assert own == SETTINGS[name].allowed().keys()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("FedAvgM", {"server_momentum": 0.5, "server_learning_rate": 0.7}),
        ("FedAdam", {"eta": 0.05, "tau": 0.01, "beta_1": 0.8, "beta_2": 0.9}),
        ("FedTrimmedAvg", {"beta": 0.1}),
        ("QFedAvg", {"q": 2.0, "client_learning_rate": 0.3}),
        ("MultiKrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 3}),
        ("FedProx", {"proximal_mu": 0.3}),
        ("DifferentialPrivacyServerSideFixedClipping", {"noise_multiplier": 0.5, "clipping_norm": 2.0}),
    ],
)
def test_settings_reach_the_strategy(name, settings):
    made = create_server_strategy(name, settings)
    assert {key: getattr(made, key) for key in settings} == settings


def test_equal_votes_do_not_go_with_weights_by_data():
    kind = selector_type("pow-d")
    assert not refusal(flower.FedMedian(), kind, {"averaging": "plain"})
    assert "use averaging=plain" in refusal(flower.FedMedian(), kind, {"averaging": "sizes"})
    assert not refusal(flower.FedAdam(), kind, {"averaging": "sizes"})
