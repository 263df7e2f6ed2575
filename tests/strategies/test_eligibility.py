"""Which clients may be selected, and over whom the aggregate is then unbiased."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from strategies import (
    Deadlines,
    Eligibility,
    Forecast,
    NotEnoughClientsError,
    Overrides,
    Report,
    write_report,
)
from strategies.clients.reports import STATUS
from strategies.flower.messages import read_report

from ..support import federations
from ..support.federations import reply, weights
from ..support.toy_grid import ToyGrid

NAMES = ["lab-0", "site-0", "site-1", "site-2", "site-3"]
SIZES = dict(zip(NAMES, (50, 10, 20, 30, 40), strict=True))


@pytest.mark.parametrize(
    ("text", "name", "properties", "admits"),
    [
        ("site-*", "site-3", {}, True),
        ("site-*", "Site-3", {}, False),
        ("lab-*|site-[0-2]", "site-3", {}, False),
        ("lab-*|site-[0-2]", "lab-9", {}, True),
        ("tag:eu", "a", {"tags": ["eu", "day"]}, True),
        ("tag:eu,tag:night", "a", {"tags": ["eu", "day"]}, False),
        ("tag:eu", "a", {"tags": "eu"}, True),
        ("charging=true", "a", {"charging": True}, True),
        ("charging=true", "a", {"charging": "true"}, True),
        ("charging=true", "a", {"charging": 1}, False),
        ("charging=true", "a", {}, False),
        ("region=eu-*,site-*", "site-1", {"region": "eu-west"}, True),
        ("level=3", "a", {"level": 3.0}, True),
        ("level=3", "a", {"level": 4}, False),
        ("group=north", "a", {"group": "north"}, True),
        *(("group=1", "a", {"group": each}, True) for each in (1, 1.0, "1", ["0", "1"])),
        *(("group=1", "a", {"group": each}, False) for each in (True, "true", "01", "1.0", "11", 11, [])),
        *(("group=01", "a", {"group": each}, True) for each in ("01", 1, 1.0)),
        ("group=01", "a", {"group": "1"}, False),
        ("group=[!3]", "a", {"group": "1"}, True),
        ("group=[!3]", "a", {"group": 3}, False),
        ("group=1*", "a", {"group": 17}, True),
        *(("group=true", "a", {"group": each}, True) for each in (True, "true", "True")),
        *(("group=true", "a", {"group": each}, False) for each in (1, "1", "yes")),
        ("share=0.50", "a", {"share": 0.5}, True),
        ("version=3.10", "a", {"version": "3.1"}, False),
        ("count=9007199254740993", "a", {"count": 9007199254740992}, False),
        ("share=nan", "a", {"share": "nan"}, True),
    ],
)
def test_conditions(text, name, properties, admits):
    conditions = Eligibility.parse(text)
    assert conditions.admits(name, properties) == admits
    assert Eligibility.parse(str(conditions)) == conditions


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Eligibility(names=3), 'eligible.names = 3: must be a pattern such as "site-'),
        (lambda: Eligibility(names=[""]), r"eligible.names = \[''\]: must hold patterns"),
        (lambda: Eligibility(properties=["a"]), r"eligible.properties = \['a'\]: must be by name"),
        (lambda: Eligibility(properties={"a": [1]}), r"eligible.properties\['a'\] = \[1\]: must be True"),
        (lambda: Eligibility.parse("a,b"), "eligible = 'a,b': 'b' must be a pattern of names such as"),
        (lambda: Eligibility.parse("=x"), "'=x' must be"),
        *(
            (lambda text=text: Eligibility.parse(text), f"'{text}' must be NAME=VALUE, without any other")
            for text in ("group!=1", "group != 1", "level>=3", "level <= 3", "group==1")
        ),
        (lambda: Forecast(2, eligible=3), "eligible = 3: must be an Eligibility, text such as"),
        (lambda: Forecast(2, eligible=lambda round: 3), r"eligible\(1\) = 3: must be an Eligibility, or"),
        (lambda: Overrides(properties={"a": {"b": object()}}), r"overrides.properties\['a'\]\['b'\] = .*"),
    ],
)
def test_wrong_conditions_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def site(name, reports=dict, group=None):
    """A client that moves the coordinate of its index by 1."""

    def node(message):
        w = None
        if message.metadata.message_type != STATUS:
            w = weights(message).copy()
            w[NAMES.index(name)] += 1
        size = SIZES.get(name, 10)
        return reply(message, w, client_id=name, num_examples=size, group=group, properties=reports() or None)

    return node


def play(grid, rounds, selector="uniform", **options):
    options = {
        "min_available_clients": len(grid.nodes), "deadlines": Deadlines(absence=1, join=1), **options
    }  # fmt: skip
    start = ArrayRecord({"w": Array(np.zeros(len(NAMES)))})
    return federations.play(grid, selector, rounds, start, **options)[1:3]


@pytest.mark.parametrize("selector", ["uniform", "forecast"])
def test_the_aggregate_is_unbiased_over_the_eligible_clients(selector):
    """The mean weight of each client is its share of the eligible data, within 4.5 standard errors.

    By chance, one of the four means is further off with a probability below 3e-5.
    """
    rounds = 200
    records, strategy = play(ToyGrid({n: site(name) for n, name in enumerate(NAMES, 10)}), rounds, selector,
                             eligible="site-*")  # fmt: skip
    weights = np.zeros((rounds, len(NAMES)))
    for row, record in zip(weights, records, strict=True):
        row[record.selection.clients] = record.weights
        assert (record.eligible, record.num_ineligible, record.num_available) == ("site-*", 1, 4)
    assert strategy.roster.ids() == NAMES
    assert not weights[:, 0].any()
    error = weights[:, 1:].std(axis=0) / np.sqrt(rounds)
    np.testing.assert_array_less(
        np.abs(weights[:, 1:].mean(axis=0) - np.array([0.1, 0.2, 0.3, 0.4])), 4.5 * error
    )


@pytest.mark.parametrize("condition", ["group=1", Eligibility(properties={"group": 1})])
def test_a_group_whose_name_is_a_number_is_found(condition):
    grid = ToyGrid({n: site(name, group=str(n % 2)) for n, name in enumerate(NAMES)})
    records, _ = play(grid, 5, eligible=condition)
    assert {client for record in records for client in record.selection.clients.tolist()} == {1, 3}
    assert records[0].eligible == "group=1"


def test_others_get_neither_polls_nor_evaluations_nor_training():
    grid = ToyGrid({n: site(name) for n, name in enumerate(NAMES, 10)})
    play(grid, 3, eligible="site-*", server_strategy=FedAvg(fraction_evaluate=1.0))
    assert {m.metadata.message_type for m in grid.sent if m.metadata.dst_node_id == 10} == {STATUS}


def test_a_property_may_change_between_rounds():
    """Clients that are not charging are asked again before each round."""
    charging = dict.fromkeys(NAMES, False) | {"site-0": True}
    grid = ToyGrid({
        n: site(name, lambda name=name: {"charging": charging[name]}) for n, name in enumerate(NAMES, 10)
    })  # fmt: skip

    def plug(record):
        selected.append([NAMES[client] for client in record.selection.clients])
        charging["site-0"] = False
        charging["site-2"] = True

    selected = []
    play(grid, 3, eligible=Eligibility(properties={"charging": True}), on_round=plug)
    # In round 2, the server does not know yet that site-0 was unplugged after its training.
    assert selected[0] == ["site-0"]
    assert set(selected[1]) == {"site-0", "site-2"}
    assert selected[2] == ["site-2"]


def test_conditions_may_depend_on_the_round():
    grid = ToyGrid({n: site(name) for n, name in enumerate(NAMES, 10)})
    records, _ = play(grid, 4, eligible=lambda round: "site-[01]" if round % 2 else "site-[23]")
    found = [set(record.selection.clients.tolist()) for record in records]
    assert [each <= {1, 2} for each in found] == [True, False, True, False]
    assert found[1] <= {3, 4}
    assert [record.eligible for record in records[:2]] == ["site-[01]", "site-[23]"]


def test_declared_properties_take_precedence():
    grid = ToyGrid({n: site(name, lambda: {"tags": ["eu"]}) for n, name in enumerate(NAMES, 10)})
    declared = {name: {"tags": ["us"]} for name in NAMES[2:]}
    records, _ = play(grid, 5, eligible="tag:eu", overrides=Overrides(properties=declared))
    assert {client for record in records for client in record.selection.clients.tolist()} == {0, 1}


def test_a_pattern_that_matches_nobody_ends_the_run_at_once():
    grid = ToyGrid({n: site(name) for n, name in enumerate(NAMES, 10)})
    with pytest.raises(NotEnoughClientsError, match=r"eligible = 'ward-\*': no client has a name that"):
        play(grid, 1, eligible="ward-*", deadlines=Deadlines(absence=1e9))


def test_without_an_eligible_client_a_round_waits_until_its_deadline():
    grid = ToyGrid({n: site(name, lambda: {"charging": False}) for n, name in enumerate(NAMES, 10)})
    match = r"the quorum is 1, and 0 clients are available and eligible \(charging=true\) after 1 s"
    with pytest.raises(NotEnoughClientsError, match=match):
        play(grid, 1, eligible="charging=true")


def test_the_log_says_over_whom_the_aggregate_is_unbiased(caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        play(ToyGrid({n: site(name) for n, name in enumerate(NAMES, 10)}), 3, eligible="site-*")
    (line,) = {line for line in caplog.messages if "are eligible" in line}
    assert line == (
        "From round 1 on, 4 of 5 clients that are online and willing to train are eligible (site-*): "
        "the aggregate is an unbiased estimate of the mean update of the eligible clients"
    )


def test_odd_properties_are_left_out():
    good = Report(client_id="a", properties={"tags": ["x"], "level": 3, "share": 0.5, "charging": True})
    assert read_report(write_report(good)) == good
    for odd in ({"a": float("nan")}, {"a\x1b": 1}, {"a": "x" * 200}, {str(n): n for n in range(40)}):
        content = write_report(Report(client_id="a"))
        content["properties"] = write_report(good)["properties"].__class__(odd)
        assert read_report(content) == Report(client_id="a")
