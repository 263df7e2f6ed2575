import numpy as np
import pytest

from strategies.rounds.response_rates import ResponseRates
from strategies.selectors import create


def test_rates_are_drawn_towards_the_rate_of_all_clients():
    """By hand: 3 of 4 and 0 of 2 replied, 3 of 6 in total; (3 + 1)/(6 + 1) is the rate of all clients."""
    rates = ResponseRates(3, strength=2.0, memory=1e9)
    for responded in ([True, False], [True, False]):
        rates.observe([0, 1], responded)
    rates.observe([0], [True])
    rates.observe([0], [False])
    everyone = 4 / 7
    expected = [(3 + 2 * everyone) / 6, 2 * everyone / 4, everyone]
    assert rates.rates([0, 1, 2]) == pytest.approx(expected, rel=1e-6)


def test_nothing_is_corrected_before_anything_is_known():
    assert ResponseRates(3).correct([0.5, 0.0, 1.0], [2, 0, 1], [True, False, True]).tolist() == [0.5, 0, 1]


def test_equal_rates_change_nothing():
    rates = ResponseRates(4)
    for number in range(8):
        rates.observe(range(4), [number % 2 == 0] * 4)
    responded = np.array([True, False, True, True])
    weights = np.array([0.5, 0.0, 1.5, 1.0])
    assert rates.correct(weights, range(4), responded) == pytest.approx(weights)


def test_without_any_reply_weights_stay():
    rates = ResponseRates(2)
    assert rates.correct([0.0, 0.0], [0, 1], [False, False]).tolist() == [0, 0]
    assert rates.correct([], np.array([], int), []).size == 0


def test_a_client_that_hardly_ever_replies_does_not_dominate():
    rates = ResponseRates(2, limit=4.0)
    for _ in range(1000):
        rates.observe([0, 1], [True, False])
    everyone = rates.rates([0])[0] / 2
    assert rates.rates([1])[0] == pytest.approx(everyone / 4, rel=0.05)


def test_old_replies_fade():
    rates = ResponseRates(2, memory=10)
    for _ in range(100):
        rates.observe([0, 1], [True, True])
    for _ in range(50):
        rates.observe([0, 1], [False, True])
    assert rates.rates([0])[0] < 0.35
    assert rates.rates([1])[0] > 0.8


def simulate(rates, rounds):
    """Return the errors (rounds, 2) of corrected and of uncorrected aggregates, in rounds with replies.

    Clients answer with probability .95 (half of them) or .3, whose updates differ, after a long past.
    """
    m, k = 40, 10
    rng = np.random.default_rng(7)
    chances = np.where(np.arange(m) < m // 2, 0.95, 0.3)
    updates = np.stack([np.ones(m), np.where(np.arange(m) < m // 2, 1.0, -1.0)], axis=1)
    selector = create("uniform", m, clients_per_round=k, seed=3, replacement=False)
    for _ in range(3000):
        rates.observe(range(m), rng.random(m) < chances)
    corrected, plain = [], []
    for round in range(rounds):
        selection = selector.select(round)
        who = selection.clients
        responded = rng.random(k) < chances[who]
        if not responded.any():
            continue
        weights = selector.finalize(selection, responded)
        corrected.append(rates.correct(weights, who, responded) @ updates[who])
        plain.append(weights @ updates[who])
        rates.observe(who, responded)
    target = updates.mean(axis=0)
    return np.array(corrected) - target, np.array(plain) - target


def test_known_rates_leave_no_bias_unless_normalised():
    """Mean of 3,000 rounds within 4 standard errors of the target, plus the error of rates from 3,000 rounds.

    The estimate of a rate of .3 from about 3,000 questions is off by .008, and 1/ρ by 3 %, each client's on
    its own; their mean over 20 clients by 0.6 %, of half of the target.
    """
    rates = ResponseRates(40, memory=1e6, normalised=False)
    errors, plain = simulate(rates, 3000)
    standard = errors.std(axis=0) / np.sqrt(len(errors))
    assert np.all(np.abs(errors.mean(axis=0)) < 4 * standard + 4 * 0.006 / 2)
    assert plain.mean(axis=0)[1] > 0.4  # .95/(.95 + .3) of the replies come from the first half


def test_normalised_the_common_part_is_exact_and_the_rest_nearly():
    """The bias of a ratio, with S' = 6 replies of unlike clients, is a quarter of the corrected bias, .52."""
    rates = ResponseRates(40, memory=1e6)
    errors, plain = simulate(rates, 3000)
    assert np.abs(errors[:, 0]).max() < 1e-9
    assert 0.2 * 0.52 < errors.mean(axis=0)[1] < 0.3 * 0.52
    assert abs(plain.mean(axis=0)[1] - 0.52) < 0.02


def test_rates_go_on_bit_for_bit_from_their_state():
    rng = np.random.default_rng(1)
    one, other = ResponseRates(5), ResponseRates(3)
    one.add_clients(2)
    for _ in range(20):
        one.observe(rng.permutation(7)[:3], rng.random(3) < 0.5)
    other.load_state_dict(one.state_dict())
    for rates in (one, other):
        rates.observe([6, 0], [True, False])
    assert one.rates(range(7)).tobytes() == other.rates(range(7)).tobytes()


GOOD = {"asked": [3.0, 1.0], "answered": [2.0, 1.0], "totals": [4.0, 3.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"asked": [3.0]}, "answered"),
        ({"asked": [np.nan, 1.0]}, "asked"),
        ({"answered": [4.0, 1.0]}, "asked'\\] - state\\['answered"),
        ({"answered": [-1.0, 1.0]}, "answered"),
        ({"totals": [1.0]}, "totals"),
        ({"extra": [1.0]}, "keys"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, message):
    rates = ResponseRates(2)
    rates.load_state_dict(GOOD)
    before = rates.state_dict()
    with pytest.raises((TypeError, ValueError), match=message):
        rates.load_state_dict(GOOD | change)
    assert all(np.array_equal(before[key], array) for key, array in rates.state_dict().items())
