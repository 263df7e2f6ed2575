"""The handlers of the ClientApp for status, polls and evaluation."""

import numpy as np
import pytest

from strategies.clients.reports import GROUP, INVITATION, LOSS, STATUS, Report
from tasks.base import batches
from tasks.federated_data import Dataset

from ..support.client_app import DATA, DIGITS, MODEL, TRAIN, report, say


@pytest.mark.parametrize("group", ["north", 3])
def test_a_clients_group_is_in_its_status(group):
    assert report(STATUS, node={"group": group}) == Report(
        client_id="client-08", num_examples=len(DATA), group=group
    )
    assert report(STATUS).group is None


@pytest.mark.parametrize("group", [1.5, True])
def test_a_wrong_group_is_refused(group):
    with pytest.raises(ValueError, match=f"group = {group} in the node's config: must be text or a whole"):
        say(STATUS, node={"group": group})


@pytest.mark.parametrize(("group", "given", "expected"), [("a", None, "a"), (7, None, 7), ("a", "b", "b")])
def test_the_group_may_be_in_the_data_file(tmp_path, group, given, expected):
    np.savez(tmp_path / "mine.npz", inputs=DATA.inputs, labels=DATA.labels, group=group)
    node = {"data": str(tmp_path / "mine.npz")} | ({} if given is None else {"group": given})
    assert report(STATUS, node=node).group == expected


def test_a_wrong_group_in_the_data_is_refused(tmp_path):
    np.savez(tmp_path / "mine.npz", inputs=DATA.inputs, labels=DATA.labels, group=[1, 2])
    with pytest.raises(ValueError, match=r"group is int64 .*: must be one text or whole number"):
        say(STATUS, node={"data": str(tmp_path / "mine.npz")})


def test_the_loss_is_that_of_the_model_on_all_samples():
    told = report(LOSS, {"seed": 1, "server-round": 1}, arrays=MODEL)
    assert told.loss == pytest.approx(DIGITS.evaluate(MODEL, DATA).loss, rel=1e-6)
    assert told.num_examples == len(DATA)
    assert told.train_loss is None


def test_the_loss_of_a_mini_batch_is_a_function_of_the_seed():
    losses = [report(LOSS, {"seed": seed, "batch-size": 9}, arrays=MODEL).loss for seed in (1, 1, 2)]
    (batch,) = batches(len(DATA), 9, 1, 1)
    expected = DIGITS.evaluate(MODEL, Dataset(DATA.inputs[batch], DATA.labels[batch])).loss
    assert losses[0] == losses[1] == pytest.approx(expected, rel=1e-6)
    assert losses[0] != losses[2]
    everything = report(LOSS, {"seed": 1, "batch-size": 10**6}, arrays=MODEL).loss
    assert everything == pytest.approx(DIGITS.evaluate(MODEL, DATA).loss, rel=1e-5)


def test_a_device_that_is_paused_answers_without_computing(tmp_path):
    pause = tmp_path / "paused"
    pause.touch()
    node = {"pause-file": str(pause), "private-group": 0, "group": "north"}
    # No model comes along: looking at it would be an error.
    assert report(LOSS, {"seed": 1}, node) == Report(
        client_id="client-08", num_examples=len(DATA), available=False, group="north"
    )
    config = {"num-groups": 2, "epsilon": 1.0, "server-round": 1, "rates": [1.0, 1.0]}
    assert report(GROUP, config, node) == Report(available=False)
    assert report(INVITATION, config, node) == Report(available=False)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("train", {**TRAIN, "local-steps": 2.5}, r"local-steps = 2\.5 in the message's config: must be a"),
        ("train", {**TRAIN, "learning-rate": "fast"}, "learning-rate = 'fast' .* must be a number"),
        ("train", {**TRAIN, "proximal-mu": "big"}, "proximal-mu = 'big'"),
        (LOSS, {"batch-size": 3}, "seed = None"),
        (GROUP, {"epsilon": 1.0}, "num-groups = None"),
    ],
)
def test_a_wrong_question_is_refused(kind, config, message):
    with pytest.raises(ValueError, match=message):
        say(kind, config, arrays=MODEL)


def test_costs_and_energies_are_in_the_status():
    said = report(STATUS, node={"cost": 2, "energy": 0.5})
    assert (said.cost, said.energy) == (2.0, 0.5)
    assert (report(STATUS).cost, report(STATUS).energy) == (None, None)
    for name, wrong in (("cost", -1), ("energy", "much"), ("cost", True), ("energy", float("inf"))):
        with pytest.raises(ValueError, match=f"{name} = .* in the node's config: must be a finite number"):
            say(STATUS, node={name: wrong})
