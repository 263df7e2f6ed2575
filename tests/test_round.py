from math import inf, nan

import numpy as np
import pytest

from strategies.reports import Report
from strategies.round import Reply, RoundLogic, why_unusable
from strategies.selectors import Selection, create


def logic(m: int = 4, k: int = 2, name: str = "uniform", **kwargs: object) -> RoundLogic:
    return RoundLogic(create(name, m, clients_per_round=k, num_rounds=10, seed=1, **kwargs), 0.5)


def selection(clients: list[int], weights: list[float]) -> Selection:
    ones = np.ones(len(clients))
    return Selection(np.array(clients), np.ones(len(clients), dtype=int), ones / 4, ones, np.array(weights))


MODEL = {"w": np.array([1.0, 2.0], np.float32), "steps": np.array(5, np.int64)}


def reply(*w: float, steps: int = 5, loss: float | None = None) -> Reply:
    return Reply({"w": np.array(w, np.float32), "steps": np.array(steps)}, Report(train_loss=loss))


def test_the_pseudo_gradient_is_the_weighted_sum_of_the_updates() -> None:
    arrays, record = logic().finish(
        1, selection([2, 0], [0.5, 2.0]), MODEL, [reply(3, 2, loss=1.0), reply(1, 3, steps=6, loss=4.0)], 4
    )
    assert arrays is not None
    assert arrays["w"].tolist() == [1 + 0.5 * 2, 2 + 2.0 * 1]
    assert arrays["steps"].dtype == np.int64
    assert arrays["steps"] == 5 + 2
    assert record.feedback.update_norms.tolist() == [2 / 0.5, np.sqrt(2) / 0.5]
    assert record.train_loss == pytest.approx((0.5 * 1 + 2 * 4) / 2.5)
    assert record.failures == {}
    assert MODEL["w"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Reply(failure="error 8: killed"), "error 8: killed"),
        (Reply(), "no arrays"),
        (Reply({"v": np.zeros(2)}), r"arrays are named \['v'\], the model's are \['steps', 'w'\]"),
        (Reply({"w": np.zeros(3), "steps": np.array(1)}), r"'w' has shape \(3,\), the model's has \(2,\)"),
        (Reply({"w": np.array(["a", "b"]), "steps": np.array(1)}), "must be of real numbers"),
        (Reply({"w": np.array([1j, 0]), "steps": np.array(1)}), "must be of real numbers"),
        (reply(nan, 0), "NaN or infinite"),
        (reply(inf, 0), "NaN or infinite"),
    ],
)
def test_a_bad_reply_is_left_out_and_the_others_weigh_more(bad: Reply, reason: str) -> None:
    arrays, record = logic().finish(1, selection([2, 0], [0.5, 0.5]), MODEL, [bad, reply(2, 2)], 4)
    assert arrays is not None
    assert arrays["w"].tolist() == [1 + 1.0 * 1, 2]  # weight 0.5, doubled: one of two answered
    assert record.weights.tolist() == [0, 1.0]
    assert record.feedback.responded.tolist() == [False, True]
    assert np.isnan(record.feedback.update_norms[0])
    assert list(record.failures) == [2]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(record.failures[2])


def test_nobody_answers() -> None:
    arrays, record = logic().finish(1, selection([2], [0.5]), MODEL, [Reply(failure="late")], 4)
    assert arrays is None
    assert record.weights.tolist() == [0]
    assert np.isnan(record.train_loss)


def test_nobody_was_chosen() -> None:
    arrays, record = logic().finish(1, selection([], []), MODEL, [], 0)
    assert arrays is None
    assert record.failures == {}


def test_float16_models_are_summed_in_float32() -> None:
    model = {"w": np.zeros(1, np.float16)}
    replies = [Reply({"w": np.array([1e-4], np.float16)})] * 3
    arrays, _ = logic(k=3).finish(1, selection([0, 1, 2], [1 / 3] * 3), model, replies, 4)
    assert arrays is not None
    assert arrays["w"].dtype == np.float16
    assert arrays["w"][0] == np.float16(1e-4)


def test_the_selector_learns_from_the_round() -> None:
    rounds = logic(m=4, k=2, name="adaptive-osmd", learning_rate_multiplier=1000)
    before = rounds.selector.probabilities
    chosen = rounds.choose(1)
    replies = [reply(1, 2 + 10.0 * (client == chosen.clients[0])) for client in chosen.clients]
    rounds.finish(1, chosen, MODEL, replies, 4)
    assert rounds.selector.probabilities[chosen.clients[0]] > before[chosen.clients[0]]


def test_only_who_is_here_is_chosen() -> None:
    rounds = logic(m=6, k=2)
    drawn = {int(c) for r in range(1, 40) for c in rounds.choose(r, np.array([1, 4, 5])).clients}
    assert drawn == {1, 4, 5}
    assert rounds.choose(1, np.array([], dtype=int)).clients.size == 0


def test_the_aggregate_is_unbiased() -> None:
    """Mean of 4,000 rounds of a skewed federation within 4 standard errors of the weighted mean of all."""
    sizes = np.array([1.0, 2.0, 5.0, 30.0])
    rounds = logic(m=4, k=2, client_sizes=sizes)
    updates = np.array([[4.0, 0.0], [1.0, -3.0], [0.0, 2.0], [-1.0, 1.0]])
    model = {"w": np.zeros(2)}
    steps = []
    for number in range(1, 4001):
        chosen = rounds.choose(number)
        arrays, _ = rounds.finish(
            number, chosen, model, [Reply({"w": updates[c]}) for c in chosen.clients], 4
        )
        assert arrays is not None
        steps.append(arrays["w"])
    error = np.mean(steps, axis=0) - sizes @ updates / sizes.sum()
    assert np.all(np.abs(error) < 4 * np.std(steps, axis=0) / np.sqrt(len(steps)))


def test_why_unusable_takes_other_float_types() -> None:
    assert why_unusable({"w": np.zeros(2, np.float64), "steps": np.array(5)}, MODEL) == ""
