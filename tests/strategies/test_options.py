"""Options check themselves; every error names the option, its value and what is allowed."""

from dataclasses import FrozenInstanceError
from math import inf, nan

import pytest

from strategies.options import (
    Budgets,
    Checkpoints,
    Deadlines,
    Faults,
    GuardSettings,
    Overrides,
    Polling,
    check_selector,
)
from strategies.selectors import available, selector_type


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Deadlines(round=0), "deadlines.round = 0: must be greater than 0"),
        (lambda: Deadlines(poll=-1.0), r"deadlines.poll = -1\.0: must be greater than 0"),
        (lambda: Deadlines(join=nan), "deadlines.join = nan: must be greater than 0"),
        (lambda: Polling(interval=nan), "polling.interval = nan: must be greater than 0"),
        (lambda: Polling(poll_with="train"), "polling.poll_with = 'train': must be 'query' or 'evaluate'"),
        (lambda: Polling(loss_metric=""), "polling.loss_metric = '': must be the name of a metric"),
        (lambda: Checkpoints(""), "checkpoints.folder = '': must be the path of a folder"),
        (lambda: Faults(quorum=0), "faults.quorum = 0: must be >= 1"),
        (lambda: Faults(over_selection=0.5), r"faults.over_selection = 0\.5: must be finite and between 1"),
        (lambda: Faults(correction="none"), "faults.correction = 'none': must be 'equal' or 'rates'"),
        (lambda: Faults(guard={"factor": 0.5}), r"guard.factor = 0\.5: must be finite and between 1"),
        (lambda: GuardSettings(window=31), "guard.window = 31: must be >= 32"),
        (lambda: GuardSettings(strikes=5), r"guard.strikes = 5: must be between 1 and 4 \(memory\)"),
        (lambda: GuardSettings(memory=9), "guard.memory = 9: must be between 1 and 8"),
        (lambda: GuardSettings(longest_quarantine=9), r"guard.longest_quarantine = 9: must be >= 10"),
        (lambda: Overrides({"a": 0}), r"overrides.sizes\['a'\] = 0\.0: must be finite and between 1e-100"),
        (lambda: Overrides({"a": 1e200}), r"overrides.sizes\['a'\] = 1e\+200: must be finite and between"),
    ],
)
def test_a_value_out_of_range_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Deadlines(round=None), "deadlines.round = None: must be a number of seconds greater than 0"),
        (lambda: Deadlines(absence=True), "deadlines.absence = True: must be a number of seconds"),
        (lambda: Polling(ask_status=1), "polling.ask_status = 1: must be True or False"),
        (lambda: Checkpoints(None), "checkpoints.folder = None: must be the path of a folder"),
        (lambda: Checkpoints("runs", resume="yes"), "checkpoints.resume = 'yes': must be True or False"),
        (lambda: Faults(quorum=1.5), r"faults.quorum = 1\.5: must be an integer >= 1"),
        (lambda: Faults(guard=None), "faults.guard = None: must be 'sane', 'strict', True, False"),
        (lambda: Faults(guard={"factors": 2}), "factors"),
        (lambda: GuardSettings(strikes=True), "guard.strikes = True: must be an integer between 1 and 4"),
        (lambda: GuardSettings(signed_losses=1), "guard.signed_losses = 1: must be True or False"),
        (lambda: Overrides({"a": True}), r"overrides.sizes\['a'\] = True: must be a number"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_options_that_do_not_go_with_the_selector_or_k_are_refused():
    with pytest.raises(ValueError, match=r"faults.quorum = 3: must be between 1 and 2 \(clients_per_round\)"):
        Faults(quorum=3).check(selector_type("md"), 2)
    with pytest.raises(ValueError, match=r"faults.correction = 'rates': must be 'equal' with selector ="):
        Faults(correction="rates").check(selector_type("flics"), 2)
    with pytest.raises(ValueError, match=r"overrides.settings\['groups'\]: md has no such setting per"):
        Overrides(settings={"groups": {"a": 1}}).check(selector_type("md"))
    with pytest.raises(ValueError, match=r"overrides.settings has no 'lipschitz': lipschitz-is must have it"):
        Overrides().check(selector_type("lipschitz-is"))


def test_no_selector_is_refused_but_for_what_no_client_can_be_asked(monkeypatch):
    settings = {"flics-private": {"group_shares": "1/1"}}
    for name in available():
        check_selector(name, 2, settings.get(name, {}), 9)
    monkeypatch.setattr(selector_type("pow-d"), "polls_for", frozenset({"mood"}))
    with pytest.raises(ValueError, match=r"selector = 'pow-d': polls for mood: must be of diversity,"):
        check_selector("pow-d", 2, {}, 9)


def test_the_guard_is_on_off_or_has_settings():
    assert Faults().guard_settings == GuardSettings()
    assert Faults(guard=False).guard_settings is None
    assert Faults(guard={"factor": 3.0}).guard_settings == GuardSettings(factor=3.0)
    assert Faults(guard=GuardSettings(quarantine=2)).guard_settings == GuardSettings(quarantine=2)


def test_options_are_frozen_and_a_deadline_may_be_infinite():
    options = Deadlines(round=inf)
    with pytest.raises(FrozenInstanceError):
        options.round = 1


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("20@1/x@50", "budget = '20@1/x@50': must be a number, or"),
        ("20@5/5@1", "ascending rounds"),
        (-1, "budget = -1.0: must be finite and >= 0"),
        ("3@1/-1@5", "budget = -1.0"),
        ("3@1/1@5", "budget = 1: must be 0, or at least 2, the quorum"),
        ("3@1/11@5", "budget = 11: must be at most 10, the number of clients"),
        (True, "budget = True: must be a number, a schedule"),
        ([3], r"budget = \[3\]: must be a number, a schedule"),
    ],
)
def test_a_wrong_budget_is_refused(budget, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Budgets(3, budget).check(quorum=2, num_clients=10)


def test_a_budget_is_a_number_a_schedule_or_a_function():
    assert [Budgets(3).of(round) for round in (1, 9)] == [3, 3]
    assert [Budgets(3, "5@1/0@3/2.9@4").of(round) for round in (1, 2, 3, 4, 5)] == [5, 5, 0, 2, 2]
    assert Budgets(3, "5@1/0@3/2.9@4").smallest == 2
    assert [Budgets(3, lambda t: t / 2).of(round) for round in (1, 2, 5)] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"budget\(4\) = nan: must be finite"):
        Budgets(3, lambda t: float("nan")).of(4)
