"""Selectors that must know all updates before they select: every available client trains for the question."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from strategies import Faults, MissingHandlerError
from strategies.clients.reports import NORM, STATUS, UPDATE, Report
from strategies.flower.diversities import diversities
from strategies.flower.messages import _NO_HANDLER, write_report

from ...support.federations import config_of, model, play, reply, weights
from ...support.toy_grid import ToyGrid

RATE = 0.5
STEPS = {1: (4.0, 0.0), 2: (0.0, 2.0), 3: (0.0, -2.0), 4: (0.0, 0.0)}  # each client's update
SIZES = {1: 1, 2: 1, 3: 1, 4: 1}
VARIANCES = {1: 1.0, 2: 4.0, 3: 9.0, 4: 16.0}


def client(number, asked, odd=None):
    """A client that moves the model by its step; ``odd`` changes or replaces its answer to a question."""

    def node(message):
        kind = message.metadata.message_type
        asked.append((kind, number))
        if kind == STATUS:
            return reply(message, client_id=f"c{number}", num_examples=SIZES[number])
        config, step = config_of(message), np.array(STEPS[number], np.float32)
        assert isinstance(config["seed"], int)
        assert config["local-steps"] == 7
        variance = VARIANCES[number] if config.get("report-gradient-variance") else None
        report = {"gradient_variance": variance, "train_loss": 1.0, "num_examples": SIZES[number]}
        w = None if kind == NORM else weights(message) + step
        made = reply(message, w, update_norm=float(np.linalg.norm(step)), **report)
        if kind in (NORM, UPDATE) and odd is not None:
            answer = odd(message, made.content)
            return answer if isinstance(answer, Message) else Message(answer, reply_to=message)
        return made

    return node


def run(selector, odd=None, who_is_odd=(2,), **options):
    asked = []
    grid = ToyGrid({n: client(n, asked, odd if n in who_is_odd else None) for n in STEPS})
    _, records, strategy, _ = play(
        grid, selector, min_available_clients=4, local_learning_rate=RATE, faults=Faults(guard=False),
        given={"train_config": ConfigRecord({"local-steps": 7})}, **options,
    )  # fmt: skip
    return strategy, records[0], asked


def shares(scores, floor=0.1):
    p = np.array(scores) / sum(scores)
    return list((1 - floor) * p + floor / len(scores))


def chances(record):
    selection = record.selection
    return dict(zip(selection.clients.tolist(), selection.probabilities.tolist(), strict=True))


def test_delta_draws_by_the_distances_from_the_mean_update_and_the_variances():
    _, record, asked = run("delta")
    mean = np.mean(list(STEPS.values()), axis=0)
    apart = [np.linalg.norm(np.array(step) - mean) / RATE for step in STEPS.values()]
    scores = [math.sqrt(0.5 * z**2 + 0.5 * v) for z, v in zip(apart, VARIANCES.values(), strict=True)]
    for m, p in chances(record).items():
        assert p == pytest.approx(shares(scores)[m], rel=1e-6)
    assert sorted(n for kind, n in asked if kind == UPDATE) == [1, 2, 3, 4]
    assert not any(kind == NORM for kind, _ in asked)


def test_fed_is_draws_by_norms_and_asks_for_no_update():
    _, record, asked = run("fed-is")
    for m, p in chances(record).items():
        assert p == pytest.approx(shares([4, 2, 2, 0])[m], rel=1e-6)
    assert sorted(n for kind, n in asked if kind == NORM) == [1, 2, 3, 4]
    assert not any(kind == UPDATE for kind, _ in asked)


def _no_arrays(message, content):
    del content["arrays"]
    return content


def _wrong_shape(message, content):
    content["arrays"] = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    return content


def _nan(message, content):
    content["arrays"] = ArrayRecord({"w": Array(np.full(2, np.nan, np.float32))})
    return content


def _unreadable(message, content):
    content["arrays"] = ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"\x80pickle")})
    return content


def _two(message, content):
    content["more"] = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    return content


def _error(message, content):
    return Message(Error(2, "out of memory"), reply_to=message)


def _paused(message, content):
    return write_report(Report(available=False))


@pytest.mark.parametrize("odd", [_no_arrays, _wrong_shape, _nan, _unreadable, _two, _error, _paused])
def test_a_client_whose_answer_cannot_be_used_is_not_available(odd):
    _, record, _ = run("delta", odd, clients_per_round=3)
    assert sorted(record.selection.clients.tolist()) == [0, 2, 3]
    assert not record.skipped


def test_an_app_that_cannot_answer_is_named():
    def no_handler(message, content):
        return Message(Error(2, f"ValueError: {_NO_HANDLER}"), reply_to=message)

    def no_variance(message, content):
        content["metrics"].pop("gradient-variance")
        return content

    for odd, why in ((no_handler, "it has no query.update handler"), (no_variance, "query.update hold none")):
        with pytest.raises(MissingHandlerError, match=rf"delta needs the .* of all clients .*{why}"):
            run("delta", odd, tuple(STEPS))


def test_that_it_is_expensive_is_said(caplog):
    run("optimal")
    assert "optimal lets all available clients train before each selection" in caplog.text
    caplog.clear()
    run("uniform")
    assert "before each selection" not in caplog.text


def test_a_huge_update_leaves_the_diversities_of_the_others():
    """In the mean, the liar counts with ten times the median norm."""

    def found(last):
        steps = [(1.0, 1.0), (1.0, -1.0), (1.0, 1.0), (1.0, -1.0), (0.0, 0.0), (0.0, 0.0), (last, 0.0)]
        answers = {
            each: RecordDict({"arrays": ArrayRecord({"w": Array(np.array(step, np.float32))})})
            for each, step in enumerate(steps)
        }
        return diversities(model(0, 0), answers, np.array([1.0] * 6 + [0.01]), str)

    honest, attacked = found(1.0), found(1e6)
    np.testing.assert_allclose(attacked[:6], honest[:6], rtol=0.05)
    assert attacked[6] > 1e5
