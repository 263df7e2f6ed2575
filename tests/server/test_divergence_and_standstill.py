"""The learning rate of a task, and the warning if the training diverges."""

import json
from contextlib import nullcontext
from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest

import tasks
from deploy.engines.batched import run
from server.divergence_and_standstill import Divergence
from server.recording import UnchangedModelError
from server.settings import RunSettings
from strategies.selectors.settings import Schedule
from tasks.base import Metrics

from .test_apps import DEFAULTS, federation


def warnings(lines):
    return [line for line in lines if line["type"] == "warning"]


@pytest.mark.parametrize("task", tasks.available())
def test_a_task_states_its_learning_rate_and_the_setting_overrides_it(task):
    settings = RunSettings.from_run_config({**DEFAULTS, "task": task})
    assert settings.learning_rate == tasks.learning_rate(task) > 0
    assert task != "digits" or settings.learning_rate == 0.5
    assert settings.train_config["learning-rate"] == tasks.learning_rate(task)
    given = RunSettings.from_run_config({**DEFAULTS, "task": task, "learning-rate": 0.25})
    assert given.learning_rates.at(1) == 0.25
    scheduled = RunSettings.from_run_config({**DEFAULTS, "task": task, "learning-rate": "0.3@1/0.1@5"})
    assert scheduled.learning_rates.at(5) == 0.1


def test_a_diverging_federation_warns_once(tmp_path):
    lines = federation(tmp_path / "over", learning_rate=1e4)
    (warning,) = warnings(lines)
    assert warning["reason"].startswith("the training diverges: the test loss is ")
    assert warning["reason"].endswith(
        f"(round {warning['round']}; untrained: 2.303). learning-rate = 10000 may be too large; the default "
        "of digits is 0.5"
    )
    assert not warnings(federation(tmp_path / "fine"))


@pytest.mark.parametrize("rate", [1e4, 1e30])
def test_a_diverging_batched_simulation_warns_once(rate, tmp_path):
    """At the larger rate no update is finite, so the guard keeps the model as it is."""
    pytest.importorskip("sklearn")
    with pytest.raises(UnchangedModelError) if rate == 1e30 else nullcontext():
        run({"num-rounds": 4, "selector": "md", "learning-rate": rate, "output-dir": str(tmp_path)})
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    (warning,) = warnings(lines)
    symptom = "no client's update is finite" if rate == 1e30 else "the test loss is "
    assert warning["reason"].startswith(f"the training diverges: {symptom}")
    assert f"learning-rate = {rate:g} may be too large" in warning["reason"]


def test_a_resumed_run_does_not_take_its_first_loss_for_that_of_the_untrained_model():
    divergence = Divergence("digits", Schedule(((1, 0.5),)), 0.5)
    assert not any(divergence.warning(number, Metrics(0.3 + number / 1000, 0.9)) for number in range(20, 90))
    assert "was 0.32 (round 90). learning-rate = 0.5" in divergence.warning(90, Metrics(4.0, 0.1))


@pytest.mark.parametrize(
    ("failures", "diverges"),
    [
        ({0: "the update has NaN", 1: "the update is not finite"}, True),
        ({0: "the update has NaN"}, False),  # the other client's update was usable, but the quorum was 2
        ({0: "the update has NaN", 1: "no reply by the deadline"}, False),
    ],
)
def test_a_skipped_round_is_a_divergence_only_if_every_update_failed(failures, diverges):
    record = SimpleNamespace(
        skipped="too few updates", failures=failures, selection=SimpleNamespace(clients=np.arange(2))
    )
    found = Divergence("digits", Schedule(((1, 0.5),)), 0.5).warning(3, Metrics(2.0, 0.1), record)
    assert ("no client's update is finite" in found) == diverges == bool(found)


@pytest.mark.parametrize(
    ("losses", "at"),
    [
        ([2.3, 2.2, 5.0, 22.9], None),
        ([2.3, 23.1, 50.0], 1),
        ([2.3, nan], 1),
        ([2.3, 1.0, inf, nan], 2),
        ([nan, nan], 0),
        ([2.3, *[2.4] * 9, 2.2, *[2.4] * 9, 2.2], None),
        ([2.3, *[2.4] * 12], 10),
        ([2.3, *[2.29, 2.31] * 30], 30),
        ([2.3, *[2.2, 2.31] * 30], None),
    ],
)
def test_the_loss_tells(losses, at):
    divergence = Divergence("digits", Schedule(((1, 0.5), (2, 0.25))), 0.5)
    found = [divergence.warning(number, Metrics(loss, 0.1)) for number, loss in enumerate(losses)]
    assert [number for number, text in enumerate(found) if text] == ([] if at is None else [at])
    if at is not None:
        assert f"learning-rate = {0.25 if at >= 2 else 0.5} may be too large" in found[at]
        assert ("stands still: no test loss was lower than 2.29 (round 30; untrained: 2.3)" in found[at]) == (
            at == 30
        )
